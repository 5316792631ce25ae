//! Every system call of a save fails once, or is the last one that the process makes.

use std::process::{Command, Stdio};

use learn::checkpoint::{Saver, list, load, load_newest, write};

use super::*;

/// The system calls that change the disk.
const CALLS: [&str; 5] = ["fsync", "/^rename", "/^mkdir", "/^symlink", "/^unlink"];

/// More calls of one kind than a save makes.
const MAX: usize = 40;

#[test]
fn after_any_failing_call_the_old_or_the_new_one_loads() {
    if !test_support::require_program("strace", &["-V"]) || !every_call("error=EIO", false) {
        return;
    }
    every_call("error=ENOSPC", false);
    every_call("signal=KILL", true);
}

/// Injects `fault` into the first, second, … of each call until a save completes without it; false, with a printed
/// reason, if faults cannot be injected here.
fn every_call(fault: &str, kills: bool) -> bool {
    let seed = seed();
    let mut hit = 0;
    for call in CALLS {
        for nth in 1..=MAX {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), &state(seed, 1), 1).unwrap();
            let log = folder.path().join("strace.log");
            let ran = Command::new("strace")
                .args(["-f", "-o"])
                .arg(&log)
                .args(["-e", &format!("trace={call}")])
                .args(["-e", &format!("inject={call}:{fault}:when={nth}")])
                .arg(std::env::current_exe().unwrap())
                .args([
                    "system_calls::child_that_saves_once",
                    "--exact",
                    "--ignored",
                    "--nocapture",
                ])
                .env("CHECKPOINT_FOLDER", folder.path())
                .env("CHECKPOINT_SEED", seed.to_string())
                .stderr(Stdio::null())
                .output();
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let Some(ran) = ran.ok().filter(|_| log.contains("exited") || log.contains("killed"))
            else {
                test_support::skip("strace cannot trace here");
                return false;
            };
            let injected = log.contains("INJECTED") || log.contains("killed by SIGKILL");
            check(folder.path(), seed, &String::from_utf8_lossy(&ran.stdout), kills, &log);
            if !injected {
                assert!(
                    nth > 1,
                    "{call} is never called: the test looks at the wrong calls\n{log}"
                );
                break;
            }
            assert!(nth < MAX, "{call}: no end\n{log}");
            hit += 1;
        }
    }
    println!("{fault}: {hit} calls");
    true
}

fn check(folder: &Path, seed: u64, said: &str, killed: bool, log: &str) {
    let newest = load_newest(folder).unwrap().unwrap();
    let update = newest.manifest.update;
    assert!(update == 1 || update == 2);
    assert!(is_same(&newest, &state(seed, update)), "{log}");
    assert!(update == 2 || !said.contains("saved"), "what it called saved is lost\n{log}");
    for entry in list(folder).unwrap() {
        load(&entry.path).unwrap();
    }
    let hidden =
        || names(folder).into_iter().filter(|name| name.starts_with('.')).collect::<Vec<_>>();
    // Files that cannot be unlinked, or whose new name may not be durable, are left for the next start.
    let failed = |call| log.lines().any(|line| line.contains(call) && line.contains("INJECTED"));
    let trash = hidden().iter().all(|name| name.starts_with(".trash-"));
    let stays = killed || failed("unlink") || failed("fsync") && trash;
    assert!(stays || hidden().is_empty(), "{:?}\n{log}", hidden());
    Saver::new(folder, last(1), 2).unwrap();
    assert_eq!(hidden(), Vec::<String>::new());
}

/// Not a test of its own: the process into which faults are injected.
#[test]
#[ignore = "run by after_any_failing_call_the_old_or_the_new_one_loads"]
fn child_that_saves_once() {
    let Some(folder) = std::env::var_os("CHECKPOINT_FOLDER") else { return };
    let seed = std::env::var("CHECKPOINT_SEED").unwrap().parse().unwrap();
    let rules =
        KeepRules { last: 1, best: 1, every: 0, metric: "error".into(), ..KeepRules::default() };
    let mut saver = Saver::new(Path::new(&folder), rules, 1).unwrap();
    saver.save(state(seed, 2)).unwrap();
    match saver.finish() {
        Ok(done) => println!("saved {}", done.unwrap().update),
        Err(error) => println!("failed: {error}"),
    }
}

/// A power cut can only lose what was not fsynced: data before the name, the name before it is relied on, the manifest
/// after everything else.
#[test]
fn everything_is_synced_before_it_is_relied_on() {
    if !test_support::require_program("strace", &["-V"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &state(1, 1), 1).unwrap();
    let log = folder.path().join("strace.log");
    let ran = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=openat,fsync,/^rename,/^unlink", "-o"])
        .arg(&log)
        .arg(std::env::current_exe().unwrap())
        .args(["system_calls::child_that_saves_once", "--exact", "--ignored"])
        .env("CHECKPOINT_FOLDER", folder.path())
        .env("CHECKPOINT_SEED", "1")
        .output();
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    if ran.is_err() || !log.contains("exited") {
        test_support::skip("strace cannot trace here");
        return;
    }
    let root = folder.path().display().to_string();
    let lines: Vec<&str> = log.lines().collect();
    let after = |from: usize, words: &[&str]| {
        let found = lines.iter().skip(from).position(|l| words.iter().all(|w| l.contains(w)));
        from + found.unwrap_or_else(|| panic!("no {words:?} after line {from} in\n{log}"))
    };
    let named = after(0, &["rename", ".tmp-step-00000002", "/step-00000002\""]);
    let made = after(0, &["openat", "manifest.json", "O_CREAT"]);
    for name in ["model", "optim-0-of-1", "buffers"] {
        assert!(
            after(0, &["fsync(", ".tmp-step-00000002", &format!("{name}.safetensors>")]) < made
        );
    }
    let sealed = after(made, &["fsync(", ".tmp-step-00000002", "manifest.json>"]);
    // The folder itself: its name is the last component of the path.
    let is_folder = |l: &str| {
        l.contains("fsync(")
            && l.contains(".tmp-step-00000002")
            && !l.contains(".safetensors>")
            && !l.contains(".json>")
    };
    let listed: Vec<usize> = (0..lines.len()).filter(|at| is_folder(lines[*at])).collect();
    let [before_manifest, listed] = listed[..] else { panic!("{listed:?}\n{log}") };
    assert!(before_manifest < made && made < sealed && sealed < listed && listed < named);
    let durable = after(named, &["fsync(", &format!("<{root}>")]);
    let old = after(0, &["rename", "step-00000001", ".trash-step-00000001"]);
    assert!(durable < old, "the old one went before the new one was safe\n{log}");
    assert!(after(0, &["rename", "\"", "/latest\""]) > durable);
}
