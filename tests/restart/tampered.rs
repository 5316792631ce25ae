//! Files of a run that others move, replace or damage, during an attempt or between two.

use super::{SHORT, attempt};
use crate::common::run::*;
use crate::common::shell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything below a folder: names, contents of files, targets of links.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            let target = std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
            all.push((path, target));
        } else if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_run_directory_that_is_replaced_or_moved_away_is_not_written_to() {
    let temporary = prepare();
    let folder = temporary.path();
    let long = ["-s", "training.updates=100000000"];
    for (name, replace) in [
        ("copied", "cp -a copied new && mv copied old && mv new copied"),
        ("moved", "mv moved older"),
        ("removed", "rm -r removed"),
        ("empty", "mv empty oldest && mkdir empty"),
    ] {
        let run = folder.join(name);
        // A check of the lease stays valid for a tenth of the heartbeat interval.
        let quick = |command: &mut Command| {
            command.env("LONGHAUL_HEARTBEAT", "1");
        };
        let mut child = start_with(folder, name, &long, quick);
        child.wait_for_update(&run, 30); // the checkpoint of 20 is saved
        assert!(child.suspend(), "{}", child.stderr());
        let output = shell(folder, replace);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        let before = run.is_dir().then(|| contents(&run));
        child.signal("CONT");
        let (exit, stdout) = child.end();
        assert_eq!(exit, Some(74), "{name}: {stdout}");
        assert!(
            stdout.contains("removed or replaced; put the run directory back"),
            "{name}: {stdout}"
        );
        assert!(run.is_dir().then(|| contents(&run)) == before, "{name} was written to: {stdout}");
    }
    // Moved back, the same command resumes.
    let (resumed, _) = attempt(folder, "old", &[], 2);
    assert!(resumed >= 10);
}

#[test]
fn a_log_that_is_moved_away_continues_at_its_path() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let mut child = start(folder, "run", &["-s", "training.updates=100000000"]);
    child.wait_for_update(&run, 10);
    let (log, old) = (run.join("log.jsonl"), run.join("log.old"));
    std::fs::rename(&log, &old).unwrap();
    wait_until(|| newest_update(&run) > 0 || !child.is_alive());
    child.signal("TERM");
    let (exit, stdout) = child.end();
    assert_eq!(exit, Some(75), "{stdout}");
    assert_eq!(stdout.matches("the log was moved, removed or replaced").count(), 1, "{stdout}");
    // Together they contain every update once.
    let mut updates = Vec::new();
    for path in [&old, &log] {
        let records = unix::log::read(path).unwrap();
        assert_eq!(records.bad_lines, 0);
        let of_updates = records.records.into_iter().filter(|record| record["kind"] == "update");
        updates.extend(of_updates.map(|record| record["update"].as_u64().unwrap()));
    }
    let stopped = status(&run)["update"].as_u64().unwrap();
    assert_eq!(updates, (1..=stopped).collect::<Vec<u64>>());
}

#[test]
fn files_of_a_run_that_are_pipes_are_refused_or_replaced() {
    let temporary = prepare();
    let folder = temporary.path();
    for (name, file, status) in [
        ("a", "log.jsonl", 66),
        ("b", "env.json", 66),
        ("c", "lease/attempt-00000001.json", 66),
        ("d", "status.json", 0),
        ("e", "config.yaml", 0),
    ] {
        let output = shell(folder, &format!("mkdir -p {name}/lease && mkfifo {name}/{file}"));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        let (exit, stdout) = train(folder, name, &["-s", "training.updates=2"]);
        assert_eq!(
            (exit, stdout.contains(file)),
            (Some(status), status > 0 || file == "status.json"),
            "{stdout}"
        );
    }
    let output =
        shell(folder, "mkdir -p f/lease && touch f/lease/attempt-18446744073709551615.json");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    shell(folder, "touch -d @0 f/lease/attempt-18446744073709551615.json");
    let (exit, stdout) = train(folder, "f", SHORT);
    assert_eq!(
        (exit, stdout.contains("no attempt can have a higher number")),
        (Some(65), true),
        "{stdout}"
    );
}

#[test]
fn a_damaged_line_of_the_log_is_named() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    assert_eq!(train(folder, "run", SHORT).0, Some(0));
    let mut text = std::fs::read(run.join("log.jsonl")).unwrap();
    let second = text.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    text[second + 20] ^= 4;
    std::fs::write(run.join("log.jsonl"), text).unwrap();
    std::fs::remove_dir_all(run.join("ckpt/step-00000020")).unwrap();
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!(exit, Some(0), "{stdout}");
    assert!(stdout.contains("log.jsonl: skipped 1 damaged lines: 2"), "{stdout}");
}
