//! Programs connected by pipes: lists of names on stdin, documents and images on stdout, JSON lines.

use std::fs;
use std::process::Command;

use super::{data_set, run};
use serde_json::Value;

const FILES: [&str; 2] = ["raw/1D_Burgers_Sols_Nu0.01.hdf5", "raw/1D_Burgers_Sols_Nu0.1.hdf5"];

#[test]
fn every_verb_reads_names_from_stdin_and_a_dash_is_stdout() {
    let folder = data_set();
    let folder = folder.path();
    let names = format!("{}\n\n{}\n", FILES[0], FILES[1]);
    for verb in ["ls", "check"] {
        let output = run(folder, &names, &[verb, "-"]);
        assert_eq!(output.status, Some(0), "{verb}: {}", output.stderr);
    }
    let split = run(folder, &names, &["split", "-", "--seed", "3", "-o", "-"]);
    assert_eq!(split.status, Some(0), "{}", split.stderr);
    assert_eq!(split.stdout, fs::read_to_string(folder.join("split.json")).unwrap());
    let stats = run(folder, "", &["stats", "split.json", "-o", "-"]);
    assert_eq!(stats.status, Some(0), "{}", stats.stderr);
    assert!(!folder.join("stats.json").exists() && !folder.join("-").exists());
    assert_eq!(run(folder, "", &["stats", "split.json"]).status, Some(0));
    assert_eq!(stats.stdout, fs::read_to_string(folder.join("stats.json")).unwrap());
    for verb in ["audit", "check", "ls"] {
        let output = run(folder, "split.json\n", &[verb, "-", "--json"]);
        assert_eq!(output.status, Some(0), "{verb}: {}", output.stderr);
    }
    assert_eq!(run(folder, &names, &["import", "-", "-o", "in"]).status, Some(0));
    let program = env!("CARGO_BIN_EXE_ds-prep");
    let plot = ["plot", FILES[0], "-o", "-"];
    let picture = Command::new(program).args(plot).current_dir(folder).output().unwrap();
    assert!(picture.status.success() && picture.stdout.starts_with(b"\x89PNG"));
}

#[test]
fn every_record_is_a_line_of_json_and_a_reader_may_close_the_pipe() {
    let folder = data_set();
    let folder = folder.path();
    for words in [
        &["ls", FILES[0], FILES[1], "--json"][..],
        &["ls", "split.json", "--json"],
        &["show", FILES[0], "--json"],
        &["show", FILES[0], "--sample", "1", "--json"],
        &["stats", "split.json", "--json"],
        &["import", FILES[0], "-o", "in", "--json"],
        &["plot", FILES[0], "-o", "a.png", "--json"],
    ] {
        let output = run(folder, "", words);
        assert_eq!(output.status, Some(0), "{words:?}: {}", output.stderr);
        assert!(
            !output.stdout.is_empty() && output.records().iter().all(Value::is_object),
            "{words:?}"
        );
    }
    let script = "\"$0\" show \"$1\" --sample 1 --json | head -n 1; \"$0\" ls \"$1\" | true";
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-c", script, env!("CARGO_BIN_EXE_ds-prep"), FILES[0]]);
    let output = shell.current_dir(folder).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_file_that_cannot_be_read_does_not_hide_the_others() {
    let folder = data_set();
    let folder = folder.path();
    let output = run(folder, "", &["ls", FILES[0], "absent.hdf5", FILES[1]]);
    assert_eq!(output.status, Some(66));
    assert!(FILES.iter().all(|name| output.stdout.contains(name)), "{}", output.stdout);
    assert!(output.stderr.contains("absent.hdf5"), "{}", output.stderr);
}
