//! The same command started again: what it finds, what it does, and its exit status.

mod absurd_numbers;
mod changed_inputs;
mod tampered;

use crate::common::run::*;
use crate::common::shell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use test_support::{Random, seed};

const SHORT: &[&str] = &["-s", "training.updates=20"];

fn with<'a>(more: &[&[&'a str]]) -> Vec<&'a str> {
    more.concat()
}

fn manifest(run: &Path, step: u64) -> serde_json::Value {
    let path = run.join(format!("ckpt/step-{step:08}/manifest.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn active_killed_finished_and_extended_runs() {
    let temporary = prepare();
    let folder = temporary.path();
    let job = |command: &mut Command| {
        command.env("SLURM_JOB_ID", "4711");
    };
    let (name, first) = start_and_stop(folder, 6, job); // fresh for 90 s
    let (run, name) = (folder.join(&name), name.as_str());
    let (exit, stdout) = train(folder, name, &[]);
    assert_eq!(exit, Some(75), "{stdout}");
    let pid = format!("process {}", first.child.id());
    for part in ["attempt 1", "job 4711", &pid, &unix::host::name(), "last heartbeat"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    first.signal("KILL");
    assert_eq!(first.end().0, None);
    // Immediately, because the process is known to be gone.
    let (exit, stdout) = train(folder, name, &[]);
    assert_eq!(exit, Some(0), "{stdout}");
    assert!(stdout.contains("is gone: taking over as attempt 2"), "{stdout}");
    assert_eq!(manifest(&run, 400)["attempt"], 2);

    let before = records(&run).len();
    let (exit, stdout) = train(folder, name, &[]);
    assert_eq!((exit, stdout.contains("nothing to do")), (Some(0), true), "{stdout}");
    assert_eq!(records(&run).len(), before);

    // More updates are a changed configuration, which must be accepted.
    let (exit, stdout) = train(folder, name, &["-s", "training.updates=410"]);
    assert_eq!(exit, Some(78), "{stdout}");
    assert!(stdout.contains("training.updates: was 400, now 410"), "{stdout}");
    let more = ["-s", "training.updates=410", "--accept-config-change"];
    let (exit, stdout) = train(folder, name, &more);
    assert_eq!(exit, Some(0), "{stdout}");
    let accepted = manifest(&run, 410)["progress"]["accepted"].clone();
    assert_eq!(accepted[0], "attempt 3, update 400: training.updates: was 400, now 410");
    let start = records(&run).into_iter().rfind(|record| record["kind"] == "start").unwrap();
    assert_eq!(start["accepted"][0], "training.updates: was 400, now 410");
    let (exit, stdout) = train(folder, name, &more);
    assert_eq!((exit, stdout.contains("nothing to do")), (Some(0), true), "{stdout}");
}

#[test]
fn other_data_are_refused_unless_accepted_and_other_machines_warned_of() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!((exit, stdout.contains("may differ")), (Some(0), false), "{stdout}");
    let env = std::fs::read_to_string(run.join("env.json")).unwrap();
    let vectors = format!("\"vectors\": \"{}\"", tensor::simd::level());
    assert!(env.contains(&vectors), "{env}");
    std::fs::write(run.join("env.json"), env.replace(&vectors, "\"vectors\": \"sse9\"")).unwrap();
    // Back to a checkpoint that leaves updates to do.
    shell(
        folder,
        "rm -r run/ckpt/step-00000020 data split.json stats.json
         ds-prep gen burgers --parameter 0.02 --samples 10 --grid 64 --frames 11 --seed 6 -o data
         ds-prep split data/*.hdf5 --seed 6 -o split.json
         ds-prep stats split.json -o stats.json",
    );
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!(exit, Some(78), "{stdout}");
    for part in ["data: hash was", "data: the buffer"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(!run.join("ckpt/step-00000020").exists());
    let (exit, stdout) = train(folder, "run", &with(&[SHORT, &["--accept-config-change"]]));
    assert_eq!(exit, Some(0), "{stdout}");
    assert!(stdout.contains("accepted: data: hash was"), "{stdout}");
    let warning = stdout.lines().find(|line| line.contains("bits may differ")).unwrap();
    assert!(warning.contains("vectors sse9, now"), "{warning}");
}

#[test]
fn all_checkpoints_bad_is_refused_with_a_list() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!(exit, Some(0), "{stdout}");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(run.join("ckpt")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            std::fs::write(entry.path().join("model.safetensors"), "x").unwrap();
            names.push(entry.file_name().into_string().unwrap());
        }
    }
    assert!(names.len() >= 2, "{names:?}");
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!(exit, Some(65), "{stdout}");
    assert!(
        stdout.contains("ckpt verify") && names.iter().all(|name| stdout.contains(name)),
        "{stdout}"
    );
}

#[test]
fn attempts_without_progress_end_in_failure_until_told_to_retry() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    // The time limit is shorter than the margin: every attempt stops before its first update and asks to be requeued.
    let hopeless = ["-s", "training.time_limit=1s", "-s", "training.attempts_without_progress=3"];
    for _ in 0..3 {
        let (exit, stdout) = train(folder, "run", &hopeless);
        assert_eq!(exit, Some(75), "{stdout}");
    }
    for _ in 0..2 {
        let (exit, stdout) = train(folder, "run", &hopeless);
        assert_eq!(exit, Some(1), "{stdout}");
        assert!(stdout.contains("no progress: the last 3 attempts") && stdout.contains("--retry"));
        assert_eq!(status(&run)["state"], "failed");
        assert!(status(&run)["reason"].as_str().unwrap().contains("no progress"));
    }
    let (exit, stdout) = train(folder, "run", &with(&[&hopeless, &["--retry"]]));
    assert_eq!(exit, Some(75), "{stdout}");
    let (exit, stdout) = train(folder, "run", &with(&[SHORT, &["--accept-config-change"]]));
    assert_eq!(exit, Some(0), "{stdout}");
    assert_eq!(status(&run)["state"], "finished");
}

/// One attempt at a run of a hundred million updates, stopped by TERM once it has completed `updates` of them; returns
/// where it resumed and where it stopped.
fn attempt(folder: &Path, name: &str, more: &[&str], updates: u64) -> (u64, u64) {
    let run = folder.join(name);
    let starts = || records(&run).into_iter().filter(|record| record["kind"] == "start");
    let before = starts().count();
    let long = ["-s", "training.updates=100000000", "-s", "checkpoint.keep_last=1000"];
    let mut child = start(folder, name, &with(&[&long, more]));
    wait_until(|| {
        let start = starts().nth(before);
        let due = start.as_ref().map(|start| start["update"].as_u64().unwrap() + updates);
        let of_this =
            |record: &serde_json::Value| record["attempt"] == start.as_ref().unwrap()["attempt"];
        due.is_some_and(|due| {
            records(&run).iter().any(|r| of_this(r) && r["update"].as_u64() >= Some(due))
        }) || !child.is_alive()
    });
    child.signal("TERM");
    let (exit, stdout) = child.end();
    assert_eq!(exit, Some(75), "{stdout}");
    let resumed = starts().nth(before).unwrap()["update"].as_u64().unwrap();
    (resumed, status(&run)["update"].as_u64().unwrap())
}

#[test]
fn resume_never_and_resume_path_apply_once() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let never = ["--resume", "never"];
    let (resumed, stopped) = attempt(folder, "run", &never, 12);
    assert_eq!(resumed, 0);
    let (resumed, stopped) = (attempt(folder, "run", &never, 12), stopped);
    assert_eq!(resumed.0, stopped);
    // Back to one of its own checkpoints, once; also when that checkpoint is gone, or its path is spelled differently.
    let step = folder.join("run/ckpt/step-00000010");
    let path = step.to_str().unwrap();
    let (resumed, stopped) = attempt(folder, "run", &["--resume", path], 8);
    assert_eq!(resumed, 10);
    let spellings: [&[&str]; 4] = [
        &["--resume", path],
        &["--resume", "run/ckpt/../ckpt/step-00000010"],
        &[],
        &["--resume", "run/ckpt/step-00000010"],
    ];
    let mut last = stopped;
    for (at, spelling) in spellings.into_iter().enumerate() {
        if at == 2 {
            std::fs::remove_dir_all(&step).unwrap();
        }
        let (resumed, stopped) = attempt(folder, "run", spelling, 2);
        assert_eq!(resumed, last, "{spelling:?}");
        last = stopped;
    }
    // Another checkpoint, or another configuration, counts as another command.
    let other = ["--resume", "run/ckpt/step-00000015"];
    assert_eq!(attempt(folder, "run", &other, 8).0, 15);
    let slower = ["-s", "optimizer.learning_rate=1e-4", "--accept-config-change"];
    assert_eq!(attempt(folder, "run", &with(&[&other, &slower]), 8).0, 15);
    assert_ne!(attempt(folder, "run", &with(&[&other, &slower]), 8).0, 15);
    // A fresh start would orphan all of these.
    let (exit, stdout) =
        train(folder, "run", &with(&[&never, &["-s", "training.updates=100000000"]]));
    assert_eq!((exit, stdout.contains("--resume never")), (Some(73), true), "{stdout}");
    assert!(manifest(&run, 15)["progress"]["origin"]["resume"].is_string());
}

#[test]
fn a_run_resumed_from_another_is_finished_once() {
    let temporary = prepare();
    let folder = temporary.path();
    let all = with(&[SHORT, &["-s", "checkpoint.keep_last=99"]]);
    assert_eq!(train(folder, "a", &all).0, Some(0));
    let from = with(&[&all, &["--resume", "a/ckpt/step-00000010"]]);
    for (nothing, again) in [(false, &from), (true, &from)] {
        let (exit, stdout) = train(folder, "b", again);
        assert_eq!((exit, stdout.contains("nothing to do")), (Some(0), nothing), "{stdout}");
    }
    let first = records(&folder.join("b")).into_iter().next().unwrap();
    assert_eq!(first["update"], 10);
}

#[test]
fn a_run_continues_another_from_its_newest_or_best_checkpoint() {
    let temporary = prepare();
    let folder = temporary.path();
    assert_eq!(train(folder, "a", &with(&[SHORT, &["-s", "checkpoint.keep_last=99"]])).0, Some(0));
    let best = std::fs::read_link(folder.join("a/ckpt/best")).unwrap();
    let best: u64 = best.to_str().unwrap().trim_start_matches("step-").parse().unwrap();
    for (name, from, update) in [
        ("newest", "a", 20),
        ("listed", "a/ckpt", 20),
        ("best", "a/ckpt/best", best),
        ("good", "a", 15),
    ] {
        if name == "good" {
            flip(&folder.join("a/ckpt/step-00000020/model.safetensors"), 0.5, 0);
        }
        let longer = ["-s", "training.updates=24", "--accept-config-change", "--resume", from];
        for nothing in [false, true] {
            let (exit, stdout) = train(folder, name, &longer);
            assert_eq!((exit, stdout.contains("nothing to do")), (Some(0), nothing), "{stdout}");
        }
        assert_eq!(records(&folder.join(name))[0]["update"], update, "{name}");
    }
    std::fs::create_dir_all(folder.join("empty/ckpt")).unwrap();
    for from in ["empty", "absent"] {
        let (exit, stdout) = train(folder, "b", &["--resume", from]);
        assert_eq!((exit, stdout.contains(from)), (Some(66), true), "{stdout}");
    }
}

#[test]
fn a_run_that_diverged_is_held_until_it_is_changed() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let wild = with(&[SHORT, &["-s", "optimizer.learning_rate=1e30"]]);
    let (exit, stdout) = train(folder, "run", &wild);
    assert_eq!(exit, Some(1), "{stdout}");
    let before = records(&run).len();
    let (exit, again) = train(folder, "run", &wild);
    assert_eq!(exit, Some(1), "{again}");
    assert!(again.contains("diverged") && again.contains("--accept-config-change"), "{again}");
    assert_eq!(records(&run).len(), before, "nothing was tried");
    let (exit, stdout) = train(folder, "run", &with(&[SHORT, &["--accept-config-change"]]));
    assert_ne!(exit, Some(78), "{stdout}");
    assert!(records(&run).len() > before, "{stdout}");
}

/// There is never more than one writer: the attempt numbers of the records never decrease, nor does the highest.
/// Asserts that the records of the attempts follow each other, except that an owner that lost its lease may have been
/// suspended in the middle of its last `late` records, and that readers see every update once.
fn one_after_the_other(run: &Path, late: usize) {
    let attempts: Vec<u64> =
        records(run).iter().map(|record| record["attempt"].as_u64().unwrap()).collect();
    assert!(attempts.windows(2).filter(|two| two[0] > two[1]).count() <= late, "{attempts:?}");
    let found = unix::log::read(&run.join("log.jsonl")).unwrap();
    assert_eq!(found.bad_lines, 0);
    let updates = found.records.iter().filter(|record| record["kind"] == "update");
    let mut updates: Vec<u64> = updates.map(|record| record["update"].as_u64().unwrap()).collect();
    updates.sort_unstable();
    assert!((1..).zip(&updates).all(|(i, update)| i == *update), "{updates:?}");
}

#[test]
fn of_several_concurrent_starts_only_one_runs() {
    let temporary = prepare();
    let folder = temporary.path();
    for round in 0..rounds(2, 50) {
        let name = format!("run-{round}");
        let starts: Vec<Run> = (0..4).map(|_| start(folder, &name, SHORT)).collect();
        let ends: Vec<_> = starts.into_iter().map(Run::end).collect();
        let of = |wanted| ends.iter().filter(|(exit, _)| *exit == Some(wanted)).count();
        assert_eq!(of(0) + of(75), 4, "{ends:?}");
        assert!(of(0) >= 1, "{ends:?}");
        let run = folder.join(&name);
        one_after_the_other(&run, 0);
        let starts = records(&run).iter().filter(|record| record["kind"] == "start").count();
        assert_eq!(starts, 1, "finished is finished: {ends:?}");
        all_verify(folder, &name);
    }
}

#[test]
fn a_suspended_owner_is_taken_over_and_fenced() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let quick = |command: &mut Command| {
        command.env("LONGHAUL_HEARTBEAT", "0.1");
    };
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..rounds(2, 20) {
        let name = format!("run-{round}");
        let run = run.with_file_name(&name);
        // It would take hours, unless it stops by itself.
        let long = ["-s", "training.updates=100000000"];
        let mut older = start_with(folder, &name, &long, quick);
        older.wait_for_update(&run, 1 + random.below(60) as u64);
        std::thread::sleep(Duration::from_secs_f64(0.01 * random.uniform()));
        assert!(older.suspend());
        // Its heartbeat counts as old after 0.9 s.
        let beat = std::fs::File::open(run.join("lease/attempt-00000001.json")).unwrap();
        let beaten = || beat.metadata().unwrap().modified().unwrap();
        wait_until(|| beaten().elapsed().is_ok_and(|age| age > Duration::from_secs(1)));
        let newer = start_with(folder, &name, &long, quick);
        wait_until(|| records(&run).iter().any(|r| r["attempt"] == 2 && r["kind"] == "checkpoint"));
        older.signal("CONT");
        let (exit, stdout) = older.end();
        assert_eq!(exit, Some(75), "seed {seed}: {stdout}");
        assert!(stdout.contains("attempt 2") && stdout.contains("took over the run"), "{stdout}");
        newer.signal("TERM");
        let (exit, stdout) = newer.end();
        assert_eq!(exit, Some(75), "seed {seed}: {stdout}");
        assert!(stdout.contains("taking over as attempt 2"), "{stdout}");
        one_after_the_other(&run, 1);
        assert_eq!(status(&run)["attempt"], 2);
        all_verify(folder, &name);
    }
}

#[test]
fn stopped_before_its_first_update_it_keeps_its_best_checkpoint() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    // Validated at 22, the last update.
    let (exit, stdout) = train(folder, "run", &["-s", "training.updates=22"]);
    assert_eq!(exit, Some(0), "{stdout}");
    let (before, best) = (manifest(&run, 22), std::fs::read_link(run.join("ckpt/best")).unwrap());
    assert!(before["metrics"]["nrmse"].is_number(), "{before}");
    // No time is left to do anything. First a change is accepted, which is recorded.
    for accepted in [true, false] {
        let flag: &[&str] = if accepted { &["--accept-config-change"] } else { &[] };
        let (exit, stdout) =
            train(folder, "run", &with(&[&["-s", "training.time_limit=1s"], flag]));
        assert_eq!(exit, Some(75), "{stdout}");
        let after = manifest(&run, 22);
        assert_eq!(after["metrics"], before["metrics"]);
        assert_eq!(after["attempt"], 2, "written again only where something is new");
        assert_eq!(std::fs::read_link(run.join("ckpt/best")).unwrap(), best);
    }
}

#[test]
fn fewer_updates_than_are_done_are_refused() {
    let temporary = prepare();
    let folder = temporary.path();
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!(exit, Some(0), "{stdout}");
    let fewer = ["-s", "training.updates=10", "--accept-config-change"];
    let (exit, stdout) = train(folder, "run", &fewer);
    assert_eq!(exit, Some(78), "{stdout}");
    assert!(stdout.contains("training.updates (10) is below the 20 already completed"), "{stdout}");
}

#[test]
fn a_checkpoint_is_logged_once_it_exists() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let (exit, stdout) = train(folder, "run", SHORT);
    assert_eq!(exit, Some(0), "{stdout}");
    let of = |kind: &str| -> Vec<u64> {
        let records = records(&run).into_iter().filter(|record| record["kind"] == kind);
        records.map(|record| record["update"].as_u64().unwrap()).collect()
    };
    // Every checkpoint that was started, in the same order.
    assert_eq!(of("saved"), of("checkpoint"));
    assert_eq!(of("saved").last(), Some(&20));
}
