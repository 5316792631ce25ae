//! End-to-end tests of `ds-prep`.

mod faults;
mod headers;
mod large;
mod pipes;
mod read_back;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use data::fields::field::Shape;
use data::fields::split::Split;
use data::fields::write::{Header, write_field};
use serde_json::Value;

struct Captured {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Captured {
    fn records(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs ds-prep in `folder` with `stdin`.
fn run(folder: &Path, stdin: &str, words: &[&str]) -> Captured {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ds-prep"));
    command.args(words).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Captured {
        status: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

const GEN: [&str; 10] = [
    "gen",
    "burgers",
    "--samples",
    "10",
    "--grid",
    "32",
    "--frames",
    "5",
    "--parameter",
    "0.01,0.1",
];

/// A folder with two files in raw/ and split.json.
fn data_set() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = run(folder.path(), "", &[&GEN[..], &["-o", "raw"]].concat());
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    let split = ["split", "raw/1D_Burgers_Sols_Nu0.01.hdf5", "raw/1D_Burgers_Sols_Nu0.1.hdf5"];
    let split = run(folder.path(), "", &[&split[..], &["--seed", "3"]].concat());
    assert_eq!(split.status, Some(0), "{}", split.stderr);
    folder
}

#[test]
fn from_the_solver_to_checked_data() {
    let folder = data_set();
    let folder = folder.path();
    let parts = run(folder, "", &["ls", "--json", "split.json"]).records();
    let counts: Vec<(&str, u64)> = parts
        .iter()
        .map(|p| (p["split"].as_str().unwrap(), p["trajectories"].as_u64().unwrap()))
        .collect();
    let expected = [("train", 8), ("validation", 1), ("test", 1)];
    assert_eq!(counts, expected.map(|part| [part; 2]).concat());

    let stats = run(folder, "", &["stats", "split.json", "--json"]);
    assert_eq!(stats.status, Some(0), "{}", stats.stderr);
    let records = stats.records();
    let file: Value =
        serde_json::from_slice(&fs::read(folder.join("stats.json")).unwrap()).unwrap();
    assert_eq!(records[0]["of"], "all");
    assert_eq!(records[0]["mean"], file["overall"]["mean"]);
    assert_eq!(file["overall"]["count"], 16 * 5 * 32);

    let check = run(folder, "", &["check", "split.json"]);
    assert_eq!((check.status, check.stdout.as_str()), (Some(0), ""));
    assert!(check.stderr.contains("2 files, 20 trajectories, 0 problems"), "{}", check.stderr);
}

#[test]
fn generation_is_reproducible_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (to, threads) in [("a", "1"), ("b", "3")] {
        let made =
            run(folder, "", &[&GEN[..], &["-o", to, "--threads", threads, "--json"]].concat());
        assert_eq!(made.status, Some(0), "{}", made.stderr);
        assert_eq!(made.records()[1]["parameter"], "nu=0.1");
    }
    let name = "1D_Burgers_Sols_Nu0.01.hdf5";
    let read = |to: &str| fs::read(folder.join(to).join(name)).unwrap();
    let before = read("a");
    assert!(before == read("b"), "another number of threads, another file");
    let again = run(folder, "", &[&GEN[..], &["-o", "a", "--seed", "9"]].concat());
    assert_eq!(again.status, Some(73), "{}", again.stderr);
    assert!(again.stderr.contains(name) && before == read("a"));
}

#[test]
fn wrong_command_lines_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        &["gen", "heat", "--parameter", "1", "--samples", "1", "-o", "x"][..],
        &["gen", "burgers", "--parameter", "-1", "--samples", "1", "-o", "x"],
        &["gen", "burgers", "--parameter", "nan", "--samples", "1", "-o", "x"],
        &["gen", "burgers", "--parameter", "0.1,0.1", "--samples", "1", "-o", "x"],
        &["gen", "burgers", "--parameter", "1", "--samples", "0", "-o", "x"],
        &["split", "a.hdf5", "--train", "many"],
        &["ls", "-"],
        &["nothing"],
    ] {
        let output = run(folder.path(), "", words);
        assert_eq!(
            (output.status, output.stdout.as_str()),
            (Some(2), ""),
            "{words:?}: {}",
            output.stderr
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn missing_and_bad_inputs_have_their_exit_status_and_are_named() {
    let folder = data_set();
    let folder = folder.path();
    fs::write(folder.join("text.hdf5"), "no HDF5").unwrap();
    fs::write(folder.join("other.json"), "{}").unwrap();
    for (words, status) in [
        (["ls", "absent.hdf5"], 66),
        (["ls", "text.hdf5"], 65),
        (["ls", "other.json"], 65),
        (["stats", "absent.json"], 66),
        (["check", "absent.json"], 66),
        (["show", "text.hdf5"], 65),
        (["split", "absent.hdf5"], 66),
    ] {
        let output = run(folder, "", &words);
        assert_eq!(output.status, Some(status), "{words:?}: {}", output.stderr);
        assert!(output.stderr.contains(words[1]), "{words:?}: {}", output.stderr);
    }
    // A manifest that runs may have used is not overwritten; the same content is accepted.
    let split = |seed| {
        let file = "raw/1D_Burgers_Sols_Nu0.01.hdf5\nraw/1D_Burgers_Sols_Nu0.1.hdf5\n";
        run(folder, file, &["split", "-", "--seed", seed]).status
    };
    assert_eq!((split("3"), split("4")), (Some(0), Some(73)));
    let many = ["split", "raw/1D_Burgers_Sols_Nu0.1.hdf5", "--train", "11", "-o", "new.json"];
    let output = run(folder, "", &many);
    assert_eq!(output.status, Some(2));
    let expected = "raw/1D_Burgers_Sols_Nu0.1.hdf5: 10 trajectories of nu=0.1, 13 are requested";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
}

#[test]
fn check_names_every_fault_and_ends_with_65() {
    let folder = data_set();
    let folder = folder.path();
    let shape = Shape { trajectories: 2, frames: 3, grid: vec![8], channels: 1 };
    let [x, t] = [8, 1].map(|n| (0..n).map(f64::from).collect());
    let header =
        Header { attributes: vec![("Nu".into(), 0.1.into())], ..Header::tensor(shape, vec![x], t) };
    write_field(&folder.join("bad.hdf5"), &header, |writer| {
        writer.write(0, &[1.0; 24])?;
        let mut values: Vec<f32> = (0..24).map(|i| i as f32).collect();
        values[13] = f32::INFINITY;
        writer.write(1, &values)
    })
    .unwrap();
    let words = ["check", "--json", "bad.hdf5", "split.json", "absent.hdf5", "--limit", "20"];
    let output = run(folder, "", &words);
    assert_eq!(output.status, Some(65));
    let kinds: Vec<_> = output.records().iter().map(|r| r["kind"].clone()).collect();
    assert_eq!(kinds, ["coordinates", "constant", "not-finite", "too-large", "missing"]);
    assert_eq!(output.records()[2]["frame"], 1);
    assert_eq!(output.records()[2]["index"], 5);
    let text = run(folder, "", &["check", "bad.hdf5"]);
    assert!(
        text.stdout.contains("bad.hdf5: trajectory 1, frame 1, point 5: inf"),
        "{}",
        text.stdout
    );

    let data = folder.join("raw/1D_Burgers_Sols_Nu0.1.hdf5");
    let file = fs::OpenOptions::new().write(true).open(&data).unwrap();
    file.set_len(fs::metadata(&data).unwrap().len() - 64).unwrap();
    let output = run(folder, "", &["check", "split.json", "--json"]);
    assert_eq!(
        (output.status, output.records()[0]["kind"].as_str()),
        (Some(65), Some("unreadable"))
    );
    let output = run(folder, "", &["stats", "split.json"]);
    assert!(output.status == Some(65) && output.stderr.contains("Nu0.1.hdf5"), "{}", output.stderr);
}

#[test]
fn show_describes_a_file_and_a_trajectory() {
    let folder = data_set();
    let file = "raw/1D_Burgers_Sols_Nu0.1.hdf5";
    let output = run(folder.path(), "", &["show", file, "--json"]);
    let record = &output.records()[0];
    assert_eq!(record["attributes"]["Nu"], 0.1);
    assert_eq!(record["attributes"]["seed"], 0);
    assert_eq!(record["t"], serde_json::json!([0.0, 2.0]));
    // For people it is a table with two columns.
    let text = run(folder.path(), "", &["show", file]).stdout;
    assert!(
        text.starts_with("field ") && text.lines().next().unwrap().ends_with("value"),
        "{text}"
    );
    for (name, value) in [("grid", "32"), ("t", "0.0, 2.0"), ("attributes.Nu", "0.1")] {
        let row = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.trim() == value);
        assert!(text.lines().any(row), "{name} in {text}");
    }
    let frames = run(folder.path(), "", &["show", file, "--sample", "9", "--json"]).records();
    assert_eq!(frames.len(), 5);
    let rms = |i: usize| frames[i]["rms"].as_f64().unwrap();
    assert!(rms(4) < rms(0), "viscosity takes energy away");
    assert_eq!(run(folder.path(), "", &["show", file, "--sample", "10"]).status, Some(2));
}

#[test]
fn a_stop_signal_leaves_only_complete_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ds-prep"));
    command.args(["gen", "burgers", "--parameter", "0.5,0.001", "--samples", "4000", "-o", "raw"]);
    command.args(["--grid", "512", "--frames", "3", "--end", "2"]).current_dir(folder.path());
    command.args(["--threads", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let raw = folder.path().join("raw");
    while !raw.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{stderr}");
    assert!(stderr.contains("TERM") && stderr.contains("Nu0.5.hdf5 was not made"), "{stderr}");
    assert_eq!(fs::read_dir(&raw).unwrap().count(), 0, "a part of a file is left");
}

#[test]
fn foreign_files_are_imported_plotted_and_audited() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden/layouts");
    let groups = golden.join("2D_diff-react_NA_NA.h5");
    let table = golden.join("table.csv");
    let names = format!("{}\n{}\n", groups.display(), table.display());
    let made = run(folder, &names, &["import", "-", "-o", "in", "--threads", "2", "--json"]);
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    let mut records = made.records();
    records.sort_by_key(|record| record["grid"].to_string());
    let expected = |i: usize| {
        ["grid", "channels", "layout", "reads", "parameter"]
            .map(|key| records[i][key].as_str().unwrap())
    };
    assert_eq!(expected(0), ["7", "density,Vx", "tensor", "direct", "nu=0.2"]);
    assert_eq!(expected(1), ["7x6", "u0,u1", "tensor", "direct", "du=0.001,dv=0.005,k=0.005"]);
    let again = run(folder, &names, &["import", "-", "-o", "in"]);
    assert_eq!((again.status, again.stderr.matches("already exists").count()), (Some(0), 2));
    let other = run(folder, &names, &["import", "-", "-o", "in", "--stride", "2"]);
    assert_eq!(other.status, Some(73), "{}", other.stderr);

    // Ambiguous files are refused with the flag that decides, and accepted with that flag.
    let wrong = golden.join("transposed.hdf5");
    let wrong = wrong.to_str().unwrap();
    let output = run(folder, "", &["import", wrong, "-o", "in"]);
    assert!(
        output.status == Some(65) && output.stderr.contains("--axes nctyx"),
        "{}",
        output.stderr
    );
    let output = run(folder, "", &["check", wrong, "--json"]);
    assert_eq!(
        (output.status, output.records()[0]["kind"].as_str()),
        (Some(65), Some("axis-order"))
    );
    let right = ["import", wrong, "-o", "in", "--axes", "nctyx", "--channels", "u,v"];
    assert_eq!(run(folder, "", &right).status, Some(0));
    assert_eq!(run(folder, "", &["check", "in/transposed.hdf5"]).status, Some(0));
    assert_eq!(run(folder, "", &["import", wrong, "-o", "in", "--axes", "nq"]).status, Some(2));

    let drawn = run(folder, "", &["plot", "in/transposed.hdf5", "--channel", "v", "-o", "v.png"]);
    assert_eq!(drawn.status, Some(0), "{}", drawn.stderr);
    assert!(drawn.stdout.contains("v of trajectory 0, colours from 32 to"), "{}", drawn.stdout);
    assert_eq!(fs::read(folder.join("v.png")).unwrap()[..8], *b"\x89PNG\r\n\x1a\n");
    let plot =
        |words: &[&str]| run(folder, "", &[&["plot", "in/table.hdf5"][..], words].concat()).status;
    assert_eq!(plot(&["-o", "t.png", "--sample", "3"]), Some(2));
    assert_eq!(plot(&["-o", "t.png", "--channel", "w"]), Some(2));
    assert_eq!(plot(&["-o", "in/table.hdf5"]), Some(2), "a data set is no picture");
    assert_eq!(plot(&["-o", "t.png", "--channel", "density"]), Some(0));
}

#[test]
fn small_chunks_are_reported_with_their_cost_and_import_makes_them_contiguous() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden");
    fs::copy(golden.join("small_chunks.hdf5"), folder.join("small_chunks.hdf5")).unwrap();
    let shown = run(folder, "", &["show", "small_chunks.hdf5", "--json"]).records().remove(0);
    assert_eq!(shown["reads"], "packed chunks x20.0", "20 chunks for each trajectory");
    let check = run(folder, "", &["check", "small_chunks.hdf5"]);
    assert_eq!(check.status, Some(0), "{}", check.stdout);
    assert!(check.stderr.contains("packed chunks") && check.stderr.contains("20 times"));
    let expected = check.stderr.split('`').find_map(|text| text.strip_prefix("ds-prep "));
    let command: Vec<&str> = expected.unwrap().split_whitespace().collect();
    assert_eq!(command, ["import", "small_chunks.hdf5", "-o", "FOLDER"]);
    let made = run(folder, "", &[&command[..], &["--json"]].concat()).records().remove(0);
    assert_eq!((&made["reads"], &made["trajectories"]), (&"direct".into(), &3.into()));
    let frames = |file| run(folder, "", &["show", file, "--sample", "2", "--json"]).stdout;
    assert_eq!(frames("small_chunks.hdf5"), frames("FOLDER/small_chunks.hdf5"));
}

#[test]
fn an_audit_names_the_copy_that_a_split_leaks() {
    let folder = data_set();
    let folder = folder.path();
    let clean = run(folder, "", &["audit", "split.json"]);
    assert_eq!((clean.status, clean.stdout.as_str()), (Some(0), ""), "{}", clean.stderr);
    let (mut split, _) = Split::load(&folder.join("split.json")).unwrap();
    let sample = split.train[0].samples[3];
    split.test[0].samples.push(sample);
    split.save(&folder.join("leaking.json")).unwrap();
    let output = run(folder, "leaking.json\n", &["audit", "-", "--json"]);
    assert_eq!((output.status, output.records().len()), (Some(1), 1), "{}", output.stdout);
    assert_eq!(output.records()[0]["kind"], "overlap");
    assert_eq!(output.records()[0]["trajectory"], sample);
    let far = ["split", "raw/1D_Burgers_Sols_Nu0.01.hdf5", "raw/1D_Burgers_Sols_Nu0.1.hdf5"];
    let far = [
        &far[..],
        &[
            "--by",
            "parameter",
            "--train",
            "1",
            "--validation",
            "0",
            "--test",
            "1",
            "-o",
            "far.json",
            "--json",
        ],
    ]
    .concat();
    let parts = run(folder, "", &far).records();
    let expected: Vec<_> =
        parts.iter().map(|part| (part["split"].clone(), part["parameter"].clone())).collect();
    assert_eq!(expected, [("train".into(), "nu=0.01".into()), ("test".into(), "nu=0.1".into())]);
}

#[test]
fn the_examples_of_the_page_work() {
    let folder = tempfile::tempdir().unwrap();
    let text = run(folder.path(), "", &["--help"]).stdout;
    let examples: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("    $ ")).collect();
    assert!(examples.len() >= 6, "{text}");
    let program = Path::new(env!("CARGO_BIN_EXE_ds-prep")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let script = format!("set -e\n{}", examples.join("\n"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("PATH", path).current_dir(&folder);
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
