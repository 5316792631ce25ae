//! Faults that affect a single rank: its disk, its memory, its process. No rank hangs, no checkpoint is lost, and after
//! a restart the run ends with the same bits as one without faults.

use super::ranks::{can_start, outcome, prepare, processes, same, start, start_by, start_each};
use crate::common::run::{self, Hold, Run, records, send, status, wait_until};
use crate::common::{make_clock, shell};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::Random;
use unix::fail::POINTS;

const UPDATES: u64 = 60;
/// Updates of a run that is disturbed while its first rank is held (at log record 30), with enough updates left after
/// that.
const LONG: u64 = 200;
/// The environment of the ranks of such a run.
const HELD: [&str; 2] = ["FAIL=log.write:30=hold", "RANK=1"];

/// A folder with data, the number of updates of the runs to disturb, and the outcome of an undisturbed run.
struct Setup {
    folder: tempfile::TempDir,
    updates: u64,
    whole: Vec<String>,
}

impl Setup {
    fn new(updates: u64, change: &[(&str, &str)]) -> Self {
        let all = format!("updates: {updates}");
        let mut all = vec![("updates: 400", all.as_str())];
        all.extend(change);
        let folder = prepare(&all);
        let (status, stderr) = run::train(folder.path(), "whole", &[]);
        assert_eq!(status, Some(0), "{stderr}");
        let whole = outcome(&folder.path().join("whole"), updates);
        Self { folder, updates, whole }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Continues on two ranks to the end; the outcome is then that of an undisturbed run.
    fn goes_on(&self, name: &str) {
        wait_until(|| processes(self.path(), name).is_empty());
        let (status, stderr) = start(self.path(), 2, name, &[]).end();
        assert_eq!(status, Some(0), "{name}: {stderr}");
        same(&outcome(&self.run(name), self.updates), &self.whole, name);
        run::all_verify(self.path(), name);
    }

    /// Asserts that the run has ended with the expected tensors; records of its log may be missing.
    fn has_its_tensors(&self, name: &str) {
        let found = outcome(&self.run(name), self.updates);
        let other = found.iter().find(|found| !self.whole.contains(found));
        assert!(other.is_none(), "{name}: {other:?}");
        let tensors = |all: &[String]| all.iter().filter(|line| !line.starts_with('{')).count();
        assert!(tensors(&found) > 5 && tensors(&found) == tensors(&self.whole), "{name}");
    }
}

/// Waits until the first rank of a run is held at its log.
fn is_held(job: &mut Run) {
    wait_until(|| job.stderr().contains("failpoint log.write:30") || !job.is_alive());
    assert!(job.is_alive(), "{}", job.stderr());
}

/// Failpoints of a save, of the log and of the status, which only the first rank reaches: it is killed there, or its
/// disk fails. Under `make torture` all of them, at random times.
#[test]
fn the_first_rank_fails_at_a_point_of_a_save() {
    if !can_start() {
        return;
    }
    let seed = test_support::seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let setup = Setup::new(UPDATES, &[]);
    let all =
        POINTS.iter().flat_map(|point| ["kill", "eio", "enospc"].map(|fault| (*point, fault)));
    let all: Vec<(&str, &str)> = all.collect();
    let some = ["kill", "enospc"].map(|fault| (POINTS[6 + random.below(12)], fault)).to_vec();
    for (point, fault) in if test_support::torture() { all } else { some } {
        let name = format!("{point}-{fault}");
        let fail = format!("FAIL={point}:{}={fault}", 1 + random.below(9));
        let (status, stderr) = start_each(setup.path(), &[&fail, "RANK=1"], &name, &[]).end();
        assert!(!stderr.contains("panicked"), "{fail}: {stderr}");
        if !stderr.contains("failpoint") {
            // Points that are seldom reached, such as those of pruning.
            assert_eq!(status, Some(0), "{fail}: {stderr}");
        }
        assert!(fault != "kill" || !stderr.contains("failpoint") || status != Some(0), "{stderr}");
        if status == Some(0) {
            setup.has_its_tensors(&name);
        } else if point == "log.write" {
            assert_eq!(start(setup.path(), 2, &name, &[]).end().0, Some(0), "{fail}: {stderr}");
            setup.has_its_tensors(&name);
        } else {
            setup.goes_on(&name);
        }
    }
}

#[test]
fn a_full_disk_at_the_end_is_reported_once_and_ends_all_ranks() {
    if !can_start() {
        return;
    }
    let setup = Setup::new(UPDATES, &[]);
    let settings = ["FAIL=save.begin:4+=enospc", "RANK=1"];
    let (status, stderr) = start_each(setup.path(), &settings, "run", &[]).end();
    assert!(status.is_some_and(|status| status == 73 || status == 74), "{status:?} {stderr}");
    let lines = stderr.lines().filter(|line| line.contains("No space left on device"));
    assert_eq!(lines.filter(|line| !line.contains("warning")).count(), 1, "{stderr}");
    assert_eq!(run::status(&setup.run("run"))["state"], "failed");
    setup.goes_on("run");
}

/// A real disk that is full for a while.
#[test]
fn a_disk_that_fills_and_empties_costs_warnings() {
    if !can_start() {
        return;
    }
    let setup = Setup::new(LONG, &[]);
    let small = setup.run("run");
    std::fs::create_dir(&small).unwrap();
    let mount = format!("mount -t tmpfs -o size=600k tmpfs '{}' 2>&1", small.display());
    if !test_support::require_mount(shell(setup.path(), &mount).status == Some(0)) {
        return;
    }
    let looked = std::panic::catch_unwind(|| {
        let hold = Hold::new(setup.path());
        let mut job = start_each(setup.path(), &HELD, "run", &[]);
        is_held(&mut job);
        shell(&small, "cat /dev/zero > filler 2>/dev/null || true");
        drop(hold);
        wait_until(|| job.stderr().contains("No space left on device") || !job.is_alive());
        std::fs::remove_file(small.join("filler")).unwrap();
        let (status, stderr) = job.end();
        assert!(stderr.contains("warning"), "{stderr}");
        // It ended before there was space again: only its last records may be missing.
        if status != Some(0) {
            assert!(status.is_some_and(|status| status == 73 || status == 74), "{stderr}");
            assert_eq!(start(setup.path(), 2, "run", &[]).end().0, Some(0));
        }
        setup.has_its_tensors("run");
        run::all_verify(setup.path(), "run");
    });
    wait_until(|| processes(setup.path(), "run").is_empty());
    assert_eq!(shell(setup.path(), "umount -l run").status, Some(0));
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Only rank 0 notices it; all ranks exit with its status, which keeps the job from being requeued.
#[test]
fn a_run_directory_that_is_moved_away_ends_all_ranks_with_74() {
    if !can_start() {
        return;
    }
    let folder = prepare(&[]);
    let folder = folder.path();
    let long = ["-s", "training.updates=100000000"];
    // A check of the lease stays valid for a tenth of the heartbeat interval.
    let mut job = start_each(folder, &["LONGHAUL_HEARTBEAT=1"; 2], "run", &long);
    job.wait_for_update(&folder.join("run"), 30);
    std::fs::rename(folder.join("run"), folder.join("moved")).unwrap();
    let (status, stderr) = job.end();
    assert_eq!(status, Some(74), "{stderr}");
    let expected = stderr.lines().filter(|line| line.contains("put the run directory back"));
    assert_eq!(expected.filter(|line| !line.contains("warning")).count(), 1, "{stderr}");
    assert!(
        !stderr.contains("is gone") && !stderr.contains("MPI_ABORT"),
        "one rank ended alone: {stderr}"
    );
    assert!(!folder.join("run").exists());
}

/// The clock of one rank jumps by a day every second, while rank 0 is told to stop.
#[test]
fn ranks_whose_clock_jumps_stop_together_and_go_on() {
    if !can_start() {
        return;
    }
    let setup = Setup::new(LONG, &[]);
    make_clock(setup.path());
    let preload = format!("LD_PRELOAD={}", setup.path().join("clock.so").display());
    for jumping in 0..2 {
        let name = format!("run-{jumping}");
        let mut settings = ["RANK=any"; 2];
        settings[jumping] = &preload;
        for shift in ["SHIFT=86400", "SHIFT=-86400"] {
            let mut mpirun = Command::new("env");
            mpirun.args([shift, "JUMP=yes", "LONGHAUL_HEARTBEAT=0.3", "mpirun"]);
            let mut job = start_by(mpirun, setup.path(), &settings, &name, &[]);
            job.wait_for_update(&setup.run(&name), run::newest_update(&setup.run(&name)) + 20);
            let told = processes(setup.path(), &name).first().is_some_and(|pid| send(*pid, "TERM"));
            let (status, stderr) = job.end();
            let is_over = status == Some(0) && run::newest_update(&setup.run(&name)) == LONG;
            assert!(told && status == Some(75) || is_over, "{shift}: {status:?} {stderr}");
        }
        setup.goes_on(&name);
    }
}

#[test]
fn a_rank_that_cannot_start_ends_all_with_its_status_and_is_named() {
    if !can_start() {
        return;
    }
    let folder = prepare(&[]);
    let folder = folder.path();
    std::fs::create_dir(folder.join("other")).unwrap();
    std::fs::copy(folder.join("codec.yaml"), folder.join("other/codec.yaml")).unwrap();
    let (exit, stderr) = start_each(folder, &["RANK=0", "--chdir=other"], "run", &[]).end();
    assert_eq!(exit, Some(66), "{stderr}");
    let status = status(&folder.join("run"));
    assert_eq!(status["state"], "failed", "{status}");
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.starts_with("rank 1 on ") && reason.contains("split.json"), "{reason}");
    assert!(
        !stderr.contains("is gone") && !stderr.contains("MPI_ABORT"),
        "one rank ended alone: {stderr}"
    );
}

/// All checkpoints of a running run are removed.
#[test]
fn vanished_checkpoints_are_reported_and_the_run_completes() {
    if !can_start() {
        return;
    }
    let setup = Setup::new(LONG, &[]);
    let run = setup.run("run");
    let hold = Hold::new(setup.path());
    let mut job = start_each(setup.path(), &HELD, "run", &[]);
    is_held(&mut job);
    std::fs::rename(run.join("ckpt"), setup.path().join("gone")).unwrap();
    drop(hold);
    let (status, stderr) = job.end();
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(stderr.matches("and all checkpoints in it").count(), 1, "{stderr}");
    same(&outcome(&run, LONG), &setup.whole, "checkpoints vanished");
    run::all_verify(setup.path(), "run");
}

#[test]
fn a_flipped_bit_on_one_rank_is_detected_and_never_saved() {
    if !can_start() {
        return;
    }
    let setup = Setup::new(UPDATES, &[("ema: 0.9", "ema: 0.9, hash_every: 20")]);
    // It is found by the periodic comparison, or earlier by a save.
    let all = [(20, 20), (23, 25), (36, 40)];
    let one = Random(test_support::seed()).below(all.len());
    for (nth, found) in if test_support::torture() { &all[..] } else { &all[one..=one] } {
        let name = format!("flip-{nth}");
        let fail = format!("FAIL=update.parameters:{nth}=flip");
        let job = start_each(setup.path(), &["RANK=0", &fail], &name, &[]);
        let (exit, stderr) = job.end();
        assert_eq!(exit, Some(75), "{stderr}");
        let expected = stderr.lines().filter(|line| line.contains("has different parameters"));
        let expected: Vec<&str> = expected.collect();
        let words = format!("after update {found} rank 1 on {}", unix::host::name());
        assert!(!expected.is_empty() && expected[0].contains(&words), "{stderr}");
        let status = status(&setup.run(&name));
        assert_eq!(status["state"], "stopped", "{status}");
        assert!(status["reason"].as_str().unwrap().contains(&words), "{status}");
        setup.goes_on(&name);
    }
}

/// As documented in longhaul(7), RANKS: mpirun itself kills its ranks when it receives TERM.
#[test]
fn under_timekeep_ranks_save_and_stop_on_request() {
    if !can_start() {
        return;
    }
    let folder = prepare(&[("updates: 400", "updates: 1000000")]);
    let run = folder.path().join("run");
    let mut timekeep = Command::new(env!("CARGO_BIN_EXE_timekeep"));
    timekeep.args(["run", "--", "mpirun"]);
    let mut job = start_by(timekeep, folder.path(), &["RANK=any"; 2], "run", &[]);
    job.wait_for_update(&run, 1);
    job.signal("TERM");
    let (exit, stderr) = job.end();
    assert_eq!(exit, Some(75), "{stderr}");
    let status = status(&run);
    assert_eq!(status["state"], "stopped", "{stderr}");
    let last = format!("ckpt/step-{:08}", status["update"].as_u64().unwrap());
    assert!(run.join(&last).exists(), "{last}: {stderr}");
    run::all_verify(folder.path(), "run");
}

#[test]
fn any_rank_accepts_a_request_for_a_checkpoint() {
    if !can_start() {
        return;
    }
    let seldom = [("validate_every: 11", "validate_every: 1000"), ("every: 5", "every: 1000")];
    let setup = Setup::new(LONG, &seldom);
    let run = setup.run("run");
    let hold = Hold::new(setup.path());
    let mut job = start_each(setup.path(), &HELD, "run", &[]);
    is_held(&mut job);
    let pids = processes(setup.path(), "run");
    assert!(pids.len() == 2 && send(pids[1], "USR2"), "{pids:?}");
    drop(hold);
    let (status, stderr) = job.end();
    assert_eq!(status, Some(0), "{stderr}");
    let saved = records(&run).into_iter().filter(|record| record["kind"] == "checkpoint");
    let saved: Vec<u64> = saved.map(|record| record["update"].as_u64().unwrap()).collect();
    assert!(saved.len() == 2 && saved[0] >= 10 && saved[0] < LONG && saved[1] == LONG, "{saved:?}");
    same(&outcome(&run, LONG), &setup.whole, "saved when told to");
}

/// It takes about 15 seconds until a suspended rank is declared dead, so this runs under `make torture` only.
#[test]
fn a_suspended_rank_ends_the_job_and_is_named() {
    if !can_start() {
        return;
    }
    if !test_support::torture() {
        test_support::skip("takes a minute: only in make torture");
        return;
    }
    let setup = Setup::new(UPDATES, &[]);
    for victim in [0, 1] {
        let name = format!("stopped-{victim}");
        let run = setup.run(&name);
        let slow = ["FAIL=log.write:1+=sleep", "RANK=1"];
        let mut job = start_each(setup.path(), &slow, &name, &[]);
        job.wait_for_update(&run, 7);
        let pids = processes(setup.path(), &name);
        assert!(pids.len() == 2 && send(pids[victim], "STOP"), "{pids:?}");
        let (status, stderr) = job.end();
        let words = format!("rank {victim} on {}", unix::host::name());
        assert!(stderr.contains(&words), "{stderr}");
        assert_eq!(status, Some(75), "{stderr}");
        setup.goes_on(&name);
    }
}
