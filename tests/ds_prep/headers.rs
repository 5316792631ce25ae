//! Generated headers of well logs.

use super::run;
use data::images::headers::parse_answer;
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const GEN: [&str; 4] = ["gen", "headers", "--samples", "12"];

/// Generates pages into the folder `to` and returns the records of pages.jsonl with the bytes of their images.
fn generate(folder: &Path, to: &str, more: &[&str]) -> Vec<(Value, Vec<u8>)> {
    let made = run(folder, "", &[&GEN[..], &["-o", to, "--json"], more].concat());
    assert_eq!((made.status, made.stderr.as_str()), (Some(0), ""), "{more:?}");
    let rows = made.records();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["file"], format!("{to}/pages.jsonl"));
    assert_eq!(rows[0]["images"], format!("{to}/images"));
    let list = fs::read_to_string(folder.join(to).join("pages.jsonl")).unwrap();
    assert_eq!(rows[0]["records"], list.lines().count());
    let page = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        let image = folder.join(to).join(record["image"].as_str().unwrap());
        let bytes = fs::read(image).unwrap();
        (record, bytes)
    };
    list.lines().map(page).collect()
}

#[test]
fn pages_depend_on_the_options_alone() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let usual = generate(folder, "usual", &[]);
    assert_eq!(usual, generate(folder, "threads", &["--seed", "0", "--threads", "3"]));
    assert_eq!(usual, generate(folder, "clean", &["--preset", "clean", "--rows", "2..5"]));
    let further = generate(folder, "further", &["--first", "4"]);
    assert_eq!(usual[4..], further[..8]);
    for (to, other) in [("seed", ["--seed", "1"]), ("preset", ["--preset", "shifted"])] {
        for (page, other) in usual.iter().zip(generate(folder, to, &other)) {
            assert!(page.0["answer"] != other.0["answer"] && page.1 != other.1, "{page:?}");
        }
    }
}

#[test]
fn records_have_answers_of_as_many_rows_as_requested() {
    let folder = tempfile::tempdir().unwrap();
    for preset in ["clean", "moderate", "shifted"] {
        let options = ["--preset", preset, "--rows", "1..3"];
        let pages = generate(folder.path(), preset, &options);
        let mut rows = HashSet::new();
        for (index, (record, image)) in pages.iter().enumerate() {
            let keys: Vec<&String> = record.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["id", "image", "answer", "group"]);
            assert_eq!(record["id"], format!("{preset}-{index:07}"));
            assert_eq!(record["image"], format!("images/0000/{index:07}.png"));
            let answer = record["answer"].as_str().unwrap();
            let fields = parse_answer(answer);
            assert_eq!(fields.len(), answer.lines().count());
            let well = fields.iter().find(|(label, _)| *label == "WELL");
            assert!(well.is_none_or(|(_, name)| record["group"] == *name), "{record}");
            rows.insert(fields.len());
            // The header of a PNG file states the size, in big-endian numbers.
            let size = [16, 20].map(|at| u32::from_be_bytes(image[at..at + 4].try_into().unwrap()));
            assert_eq!(size, [192, 16 * fields.len() as u32]);
        }
        assert_eq!(rows, HashSet::from([1, 2, 3]), "{preset}");
    }
}

#[test]
fn existing_pages_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    generate(folder, "pages", &[]);
    let list = folder.join("pages/pages.jsonl");
    let before = fs::read(&list).unwrap();
    for (removed, left) in [("", "images"), ("images", "pages.jsonl")] {
        if !removed.is_empty() {
            fs::remove_dir_all(folder.join("pages").join(removed)).unwrap();
        }
        let again = run(folder, "", &[&GEN[..], &["-o", "pages", "--seed", "9"]].concat());
        assert_eq!((again.status, again.stdout.as_str()), (Some(73), ""), "{}", again.stderr);
        assert!(again.stderr.contains(&format!("pages/{left}")), "{}", again.stderr);
        assert!(fs::read(&list).unwrap() == before);
    }
}

#[test]
fn options_that_are_wrong_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    for (words, says) in [
        ("--preset dirty", "possible values: clean, moderate, shifted"),
        ("--rows 5..2", "5 to 2"),
        ("--rows 0..3", "within 1 to 10"),
        ("--rows 1..11", "within 1 to 10"),
        ("--rows 3", "MIN..MAX"),
        ("--samples 0", "at least 1"),
        ("--samples -1", "-1"),
        ("--first 18446744073709551615", "begin at a smaller one"),
        ("--threads 0", "from 1 to 1024"),
        ("--difficulty easy --noise 0.5", "--difficulty, --noise: no effect on `gen headers`"),
    ] {
        let more = words.split(' ').collect::<Vec<_>>();
        let usual = ["gen", "headers", "-o", "x"];
        let samples = if words.contains("--samples") { &[][..] } else { &["--samples", "2"] };
        let output = run(folder.path(), "", &[&usual[..], samples, &more].concat());
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{words}");
        assert!(output.stderr.contains(says), "{words}: {}", output.stderr);
    }
    for (subject, option) in [("burgers", "--rows=2..3"), ("dialogues", "--preset=clean")] {
        let words = ["gen", subject, "--samples", "1", "--parameter", "1", "-o", "x", option];
        let output = run(folder.path(), "", &words);
        assert_eq!(output.status, Some(2), "{words:?}");
        let name = option.split('=').next().unwrap();
        assert!(output.stderr.contains(name), "{words:?}: {}", output.stderr);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_stop_signal_leaves_no_page() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("pages");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ds-prep"));
    command.args(["gen", "headers", "--preset", "shifted", "--samples", "20000", "-o", "pages"]);
    command.args(["--threads", "1"]).current_dir(folder.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    while !fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_some()) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(75), 0), "{stderr}");
    assert!(stderr.contains("TERM") && stderr.contains("pages.jsonl was not made"), "{stderr}");
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0, "a part of the images is left");
}
