//! Training on several ranks started by `mpirun`: the same bits for any number of ranks if configured so, all ranks
//! stop at the same update, and no rank waits for one that is gone.

mod faults;
mod ranks;

use crate::common::run::{self, newest_update, records, send, wait_until};
use ranks::{can_start, outcome, prepare, processes, same, start, start_each};
use std::fs;
use std::time::Duration;
use test_support::Random;

#[test]
fn any_number_of_ranks_gives_the_same_bits() {
    if !can_start() {
        return;
    }
    let folder =
        prepare(&[("batch_size: 8", "batch_size: 8, accumulation: 2, clip_grad_norm: 0.5")]);
    let folder = folder.path();
    assert_eq!(run::train(folder, "one", &[]).0, Some(0));
    let expected = outcome(&folder.join("one"), 400);
    for (ranks, more) in [(2, &[][..]), (4, &["-s", "optimizer.shard=true"])] {
        let name = format!("of-{ranks}");
        let (status, stderr) = start(folder, ranks, &name, more).end();
        assert_eq!(status, Some(0), "{stderr}");
        same(&outcome(&folder.join(&name), 400), &expected, &name);
        let files = fs::read_dir(folder.join(&name).join("ckpt/step-00000400")).unwrap();
        let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
        let shards = names.filter(|name| name.starts_with("optim-")).count();
        assert_eq!(shards, if more.is_empty() { 1 } else { ranks });
        run::all_verify(folder, &name);
    }
    // A finished run is finished for any number of ranks.
    let (status, stderr) = start(folder, 2, "of-2", &[]).end();
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(stderr.matches("nothing to do").count(), 1, "{stderr}");
}

/// The number of ranks changes at every stop: 2, 4, 1, 2 with shards, 4. Only one rank receives the signal.
#[test]
fn a_signal_to_one_rank_stops_all_and_any_number_resumes() {
    if !can_start() {
        return;
    }
    let seed = test_support::seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let folder = prepare(&[]);
    let folder = folder.path();
    assert_eq!(run::train(folder, "whole", &[]).0, Some(0));
    let shard = &["-s", "optimizer.shard=true"][..];
    let worlds = [(2, &[][..]), (4, &[]), (1, &[]), (2, shard), (4, &[])];
    let (mut stops, mut runs) = (0, 0);
    // One run suffices, unless this test is delayed and an attempt finishes before the signal.
    while stops < 2 {
        let name = format!("run-{runs}");
        let run = folder.join(&name);
        runs += 1;
        assert!(runs < 10, "too few stops to mean anything: {stops}");
        for (part, (ranks, more)) in worlds.into_iter().enumerate() {
            let mut job = start(folder, ranks, &name, more);
            let until = newest_update(&run) + 10 + random.below(60) as u64;
            job.wait_for_update(&run, until);
            let pids = processes(folder, &name);
            let signal = ["TERM", "USR1", "INT"][random.below(3)];
            let expected =
                part < 4 && pids.len() == ranks && send(pids[random.below(ranks)], signal);
            let (status, stderr) = job.end();
            if expected && status == Some(75) {
                assert!(stderr.contains("signal"), "{stderr}");
                stops += 1;
            } else {
                let is_over = !expected || newest_update(&run) == 400;
                assert!(
                    status == Some(0) && is_over,
                    "{ranks} ranks, {signal}: {status:?} {stderr}"
                );
            }
        }
        same(&outcome(&run, 400), &outcome(&folder.join("whole"), 400), "stopped and gone on");
    }
}

/// Kills a random rank with SIGKILL at random moments: all ranks end soon, and any number of ranks resumes from the
/// last checkpoint. Repeats with new runs until it was done often enough.
#[test]
fn a_rank_that_dies_takes_all_down_and_nothing_is_lost() {
    if !can_start() {
        return;
    }
    let seed = test_support::seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let folder = prepare(&[]);
    let folder = folder.path();
    assert_eq!(run::train(folder, "whole", &[]).0, Some(0));
    let whole = outcome(&folder.join("whole"), 400);
    let (mut kills, mut runs) = (0, 0);
    while kills < run::rounds(3, 100) {
        runs += 1;
        assert!(runs <= 10 * run::rounds(3, 100), "only {kills} kills came in time");
        let name = format!("run-{runs}");
        let run = folder.join(&name);
        while kills < run::rounds(3, 100) {
            let ranks = [1, 2, 4][random.below(3)];
            let mut job = start(folder, ranks, &name, &[]);
            let until = newest_update(&run) + 6 + random.below(30) as u64;
            job.wait_for_update(&run, until);
            std::thread::sleep(Duration::from_millis(random.below(20) as u64));
            let pids = processes(folder, &name);
            if pids.len() < ranks {
                break; // at its end already
            }
            let killed = send(pids[random.below(ranks)], "KILL");
            let (status, stderr) = job.end();
            if status == Some(0) || !killed {
                let is_over = newest_update(&run) == 400;
                assert!(is_over, "killed: {killed}, and ended with {status:?}: {stderr}");
                break;
            }
            wait_until(|| processes(folder, &name).is_empty());
            kills += 1;
        }
        let (status, stderr) = start(folder, 2, &name, &[]).end();
        assert_eq!(status, Some(0), "{stderr}");
        same(&outcome(&run, 400), &whole, &format!("{kills} times killed and gone on"));
    }
    println!("{kills} kills in {runs} runs");
}

#[test]
fn errors_of_all_ranks_are_reported_once() {
    if !can_start() {
        return;
    }
    let folder = prepare(&[]);
    let folder = folder.path();
    for (ranks, more, expected, words) in [
        (3, &["-s", "training.deterministic=false"][..], 78, "cannot be shared equally by 3 ranks"),
        (3, &[], 78, "which 3 ranks cannot share"),
        (2, &["-s", "data.stats=none.json"], 66, "none.json"),
    ] {
        let (status, stderr) = start(folder, ranks, "run", more).end();
        assert_eq!(status, Some(expected), "{stderr}");
        assert_eq!(stderr.matches(words).count(), 1, "{stderr}");
    }
    // All ranks see the same errors in a configuration, which are reported once; each rank reports errors of its own.
    let wrong = ["-s", "training.updates=many", "-s", "nonsense=1"];
    let (status, stderr) = start(folder, 4, "run", &wrong).end();
    assert_eq!(status, Some(78), "{stderr}");
    for words in ["training.updates", "nonsense"] {
        assert_eq!(stderr.lines().filter(|line| line.contains(words)).count(), 1, "{stderr}");
    }
    let seeds = ["SEED=4", "SEED=four", "SEED=4"];
    let (status, stderr) = start_each(folder, &seeds, "run", &["-s", "seed=${SEED}"]).end();
    assert_eq!(status, Some(78), "{stderr}");
    let expected: Vec<&str> = stderr.lines().filter(|line| line.contains("seed")).collect();
    assert!(expected.len() == 1 && expected[0].starts_with("train-stage[1/3]: "), "{stderr}");
    let (status, _) = start(folder, 2, "run", &["-s", "training.updates=30"]).end();
    assert_eq!(status, Some(0));
    let (status, stderr) = start(folder, 2, "run", &["-s", "seed=4"]).end();
    assert_eq!(status, Some(78), "{stderr}");
    assert_eq!(stderr.matches("was made with another configuration").count(), 1, "{stderr}");
    let starts = records(&folder.join("run"));
    assert!(starts.iter().any(|r| r["kind"] == "start" && r["ranks"] == 2));
    let update = starts.iter().find(|r| r["kind"] == "update").unwrap();
    assert!(update["comm_s"].is_f64() && update["comm_wait_s"].is_f64(), "{update}");
}

/// Rank 0 verifies for all ranks: they stop together, before the next checkpoint, and report the reason once.
#[test]
fn data_changed_under_ranks_stop_all_of_them() {
    if !can_start() {
        return;
    }
    let folder = prepare(&[]);
    let (folder, data) = (folder.path(), folder.path().join("data/1D_Burgers_Sols_Nu0.01.hdf5"));
    let run = folder.join("run");
    let long = ["-s", "training.updates=100000000", "-s", "checkpoint.keep_last=1"];
    let mut job = start(folder, 2, "run", &long);
    wait_until(|| records(&run).iter().any(|r| r["kind"] == "saved") || !job.is_alive());
    run::flip(&data, 0.5, 0);
    // While they run, and again at a restart.
    for _ in 0..2 {
        let (status, stderr) = job.end();
        assert_eq!(status, Some(78), "{stderr}");
        assert_eq!(stderr.matches("the content has changed").count(), 1, "{stderr}");
        job = start(folder, 2, "run", &long);
    }
    assert_eq!(job.end().0, Some(78));
    run::flip(&data, 0.5, 0);
    let before = newest_update(&run);
    let mut job = start(folder, 2, "run", &long);
    job.wait_for_update(&run, before + 20);
    assert!(send(processes(folder, "run")[0], "TERM"));
    let (status, stderr) = job.end();
    assert_eq!(status, Some(75), "{stderr}");
    run::all_verify(folder, "run");
}
