//! A run that is stopped, killed, or whose output nobody reads.

use crate::common::run::*;
use crate::common::shell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use test_support::{Random, seed, torture};

/// Updates with a checkpoint, according to the log.
fn saved(run: &Path) -> Vec<u64> {
    let records = records(run);
    let saves = records.iter().filter(|record| record["kind"] == "checkpoint");
    saves.map(|record| record["update"].as_u64().unwrap()).collect()
}

fn newest_checkpoint(run: &Path) -> String {
    let link = std::fs::read_link(run.join("ckpt/latest")).unwrap();
    link.to_string_lossy().into_owned()
}

#[test]
fn a_storm_of_requests_saves_one_at_a_time_and_loses_none_at_the_stop() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    for _ in 0..rounds(1, 20) {
        let rarely = ["-s", "checkpoint.every=100000000", "-s", "training.updates=100000000"];
        let mut child = start(folder, "run", &rarely);
        child.wait_for_update(&run, 3);
        let mut before = saved(&run).len();
        for _ in 0..30 {
            child.signal("USR2");
            let left = |name: &str| name.starts_with(".tmp-step");
            let names = std::fs::read_dir(run.join("ckpt")).unwrap().flatten();
            let at_work = names.filter(|entry| left(&entry.file_name().to_string_lossy()));
            assert!(at_work.count() <= 1, "two saves at once");
        }
        wait_until(|| saved(&run).len() > before);
        // A single further request is not lost either.
        std::thread::sleep(Duration::from_millis(50));
        before = saved(&run).len();
        child.signal("USR2");
        wait_until(|| saved(&run).len() > before);
        child.signal("USR2");
        child.signal("TERM");
        let (exit, stdout) = child.end();
        assert_eq!(exit, Some(75), "{stdout}");
        let updates = saved(&run);
        assert!(updates.windows(2).all(|pair| pair[0] <= pair[1]), "{updates:?}");
        let stopped = status(&run)["update"].as_u64().unwrap();
        assert_eq!(newest_checkpoint(&run), format!("step-{stopped:08}"));
        all_verify(folder, "run");
        std::fs::remove_dir_all(&run).unwrap();
    }
}

/// Update, save and validation take milliseconds; the rest allows for a machine under load.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn signals_at_any_moment_end_it_with_75_and_the_bits_stay() {
    let temporary = prepare();
    let folder = temporary.path();
    let (exit, stdout) = train(folder, "whole", &[]);
    assert_eq!(exit, Some(0), "{stdout}");
    let whole = outcome(&folder.join("whole"));
    let seed = seed();
    let mut random = Random(seed);
    let (mut late, mut round, mut stopped) = (0, 0, 0);
    while stopped < rounds(12, 200) {
        round += 1;
        assert!(
            round < 10 * rounds(12, 200),
            "seed {seed}: the signals come too late, {late} times"
        );
        let name = format!("run-{round}");
        let run = folder.join(&name);
        loop {
            let signal = ["TERM", "INT", "HUP", "USR1"][stopped % 4];
            let mut child = start(folder, &name, &[]);
            child.wait_for_handlers();
            if stopped % 3 > 0 {
                // After an update, or during an update, a validation or a save; otherwise while it starts.
                let far = newest_update(&run) + 1 + random.below(90) as u64;
                child.wait_for_update(&run, far);
            }
            std::thread::sleep(Duration::from_secs_f64(0.03 * random.uniform()));
            if !child.is_alive() {
                assert_eq!(child.end().0, Some(0), "seed {seed}");
                break;
            }
            child.signal(signal);
            let asked = Instant::now();
            let (exit, stdout) = child.end();
            assert!(asked.elapsed() < SOON, "{signal}, seed {seed}: {:?}", asked.elapsed());
            assert!(
                [Some(75), Some(0)].contains(&exit),
                "{signal}, seed {seed}: {exit:?} {stdout}"
            );
            if exit == Some(0) {
                late += 1;
                break;
            }
            stopped += 1;
            assert_eq!(status(&run)["state"], "stopped", "{signal}, seed {seed}: {stdout}");
            let update = status(&run)["update"].as_u64().unwrap();
            assert_eq!(newest_checkpoint(&run), format!("step-{update:08}"), "seed {seed}");
        }
        let (exit, stdout) = train(folder, &name, &[]);
        assert_eq!(exit, Some(0), "seed {seed}: {stdout}");
        all_verify(folder, &name);
        assert!(outcome(&run) == whole, "seed {seed}: a stopped run ended differently");
    }
    println!("{stopped} signals stopped a run, {late} came too late, in {round} runs");
}

/// CPU time of a process in hundredths of a second.
fn computed(child: &Run) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", child.child.id())).unwrap();
    // proc(5): the third field follows the name; utime and stime are the 14th and 15th.
    let fields = text.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_second_term_ends_it_at_once_and_the_state_is_good() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let endless = ["-s", "training.updates=100000000"];
    let mut child = start(folder, "run", &endless);
    child.wait_for_update(&run, 20);
    child.signal("TERM");
    assert_eq!(child.end().0, Some(75));
    let before = status(&run)["update"].as_u64().unwrap();
    let starts = || records(&run).iter().filter(|record| record["kind"] == "start").count();
    for signal in ["TERM", "INT"] {
        // One update takes many minutes, so the first signal has to wait.
        let long = ["training.accumulation=1024", "training.batch_size=16384"];
        let long = [&["-s", long[0], "-s", long[1]][..], &["--accept-config-change"]].concat();
        let starts_before = starts();
        let mut child = start(folder, "run", &[&endless[..], &long].concat());
        wait_until(|| starts() > starts_before || !child.is_alive());
        assert!(child.is_alive(), "{}", child.stderr());
        // After one more second of CPU time it is in that update.
        let at_start = computed(&child);
        wait_until(|| computed(&child) > at_start + 100);
        child.signal(signal);
        child.wait_for_delivery();
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.is_alive(), "one signal ended it: {}", child.stderr());
        let asked = Instant::now();
        child.signal(signal);
        let (exit, stdout) = child.end();
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        assert_eq!(exit, Some(if signal == "TERM" { 143 } else { 130 }), "{stdout}");
        all_verify(folder, "run");
        assert_eq!(newest_checkpoint(&run), format!("step-{before:08}"));
    }
    let few = format!("training.updates={}", before + 20);
    let (exit, stdout) = train(folder, "run", &["-s", &few, "--accept-config-change"]);
    assert_eq!(exit, Some(0), "{stdout}");
}

#[test]
fn suspended_by_job_control_and_continued_it_finishes() {
    let temporary = prepare();
    let folder = temporary.path();
    // A heartbeat much shorter than 60 s: the process is suspended for far longer than its lease is valid.
    let quick = |command: &mut Command| {
        command.env("LONGHAUL_HEARTBEAT", "0.1");
    };
    let pause = if torture() { 60 } else { 2 };
    let (name, child) = start_and_stop(folder, 20, quick);
    std::thread::sleep(Duration::from_secs(pause));
    child.signal("CONT");
    let (exit, stdout) = child.end();
    assert_eq!(exit, Some(0), "{stdout}");
    assert!(!stdout.contains("warning"), "{stdout}");
    let records = records(&folder.join(name));
    assert!(!records.is_empty() && records.iter().all(|record| record["attempt"] == 1));
}

#[test]
fn unread_output_does_not_lose_log_records() {
    let temporary = prepare();
    let folder = temporary.path();
    let (exit, stdout) = train(folder, "whole", &[]);
    assert_eq!(exit, Some(0), "{stdout}");
    let whole = outcome(&folder.join("whole"));
    let command = "train-stage codec -c codec.yaml";
    for (name, script) in [
        ("closed", format!("{command} --run closed <&- >&- 2>&-")),
        ("stdio", format!("{command} --run stdio <&- >&-")),
        ("full", format!("{command} --run full >/dev/full 2>/dev/full")),
    ] {
        let output = shell(folder, &script);
        assert_eq!(output.status, Some(0), "{name}: {}", output.stderr);
        assert!(outcome(&folder.join(name)) == whole, "{name}");
        assert_eq!(unix::log::read(&folder.join(name).join("log.jsonl")).unwrap().bad_lines, 0);
    }
    // A reader of both streams that exits while the run is running.
    let run = folder.join("pipe");
    let pipe = |command: &mut Command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    };
    let mut child = start_with(folder, "pipe", &[], pipe);
    child.wait_for_update(&run, 10);
    drop((child.child.stdout.take(), child.child.stderr.take()));
    assert_eq!(child.end().0, Some(0));
    assert!(outcome(&run) == whole, "pipe");
    // The results of a dry run are data: a reader that closes the pipe ends it quietly.
    let output = shell(folder, &format!("{command} --run dry --dry-run --json | true"));
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
}

#[test]
fn killed_twice_in_an_epoch_and_at_its_end_the_bits_are_those_of_a_whole_run() {
    let temporary = prepare();
    let folder = temporary.path();
    let (exit, stdout) = train(folder, "whole", &[]);
    assert_eq!(exit, Some(0), "{stdout}");
    let whole = outcome(&folder.join("whole"));
    let expected = shell(folder, "train-stage codec -c codec.yaml --run dry --dry-run --json");
    let expected: serde_json::Value = serde_json::from_str(&expected.stdout).unwrap();
    let epoch = expected["samples"].as_u64().unwrap() / 8;
    assert!((6..100).contains(&epoch), "{expected}");
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..rounds(1, 25) {
        let name = format!("run-{round}");
        let run = folder.join(&name);
        // Twice in the third epoch, at the end of the fifth, then anywhere.
        let mut moments = vec![2 * epoch + 2, 2 * epoch + epoch / 2 + 2, 5 * epoch];
        while moments.len() < rounds(6, 20) {
            let last = moments[moments.len() - 1];
            moments.push((last + 1 + random.below(30) as u64).min(395));
        }
        for moment in &moments {
            let mut child = start(folder, &name, &[]);
            child.wait_for_update(&run, *moment);
            if *moment != 5 * epoch {
                std::thread::sleep(Duration::from_secs_f64(0.002 * random.uniform()));
            }
            child.child.kill().unwrap();
            child.end();
        }
        let (exit, stdout) = train(folder, &name, &[]);
        assert_eq!(exit, Some(0), "seed {seed}: {stdout}");
        assert!(outcome(&run) == whole, "killed after {moments:?}, seed {seed}");
    }
}
