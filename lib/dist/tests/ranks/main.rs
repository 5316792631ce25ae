//! Ranks started by mpirun: collectives compared with the arithmetic of a single rank, with and without shared memory,
//! and what happens to a job when one of its ranks fails.

mod job;
mod nccl;

use job::{Job, program};
use rustix::process::Signal;
use std::process::Stdio;
use std::time::Duration;
use test_support::seed;

/// The value of LONGHAUL_SHARED_MEMORY: all ranks of a host share memory, none do, or pairs of them do, as if there
/// were two per host.
const ALL: Option<&str> = None;
const NONE: Option<&str> = Some("0");
const PAIRS: Option<&str> = Some("2");

#[test]
fn collectives_match_a_single_rank() {
    let seed = seed().to_string();
    for ranks in 1..=5 {
        for shared in [ALL, NONE, PAIRS] {
            if ranks == 1 && shared != ALL {
                continue;
            }
            let Some(job) = Job::start(ranks, shared, &["check", &seed]) else { return };
            let seen = job.end();
            assert_eq!(seen.status, Some(0), "{ranks} ranks, {shared:?}: {}", seen.stderr);
            let said = seen.stdout.matches("all as computed by one").count();
            assert_eq!(said, ranks, "{}", seen.stdout);
        }
    }
}

#[test]
fn without_a_launcher_mpi_is_not_started() {
    let output = program(&["who"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        stdout.starts_with("rank 0 of 1, 0 on ") && stdout.ends_with("mpi false\n"),
        "{stdout}"
    );
    let Some(job) = Job::start(2, ALL, &["who"]) else { return };
    let seen = job.end();
    for rank in 0..2 {
        let line = format!("rank {rank} of 2, {rank} on ");
        assert!(seen.stdout.contains(&line) && !seen.stdout.contains("false"), "{}", seen.stdout);
    }
}

/// The environment of a step with two tasks, in which MPI cannot find the other task.
#[test]
fn tasks_that_do_not_find_each_other_are_an_error() {
    let step = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")];
    let output = program(&["who"]).envs(step).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_ne!(output.status.code(), Some(0), "{stderr}");
    assert!(output.stdout.is_empty());
    // Open MPI may fail before we can ask it for the number of ranks; then its own message says the same.
    assert!(stderr.contains("srun --mpi=pmix") || stderr.contains("PMI"), "{stderr}");
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_is_named() {
    for shared in [ALL, NONE, PAIRS] {
        let Some(mut job) = Job::start(4, shared, &["loop", "300"]) else { return };
        let victim = seed() as usize % 4;
        job.signal(&[victim], Signal::KILL);
        let seen = job.end();
        let named =
            format!("(pid {}) is gone; ending all ranks with status 75", seen.pids[&victim]);
        assert!(seen.stderr.contains(&format!("rank {victim} on ")), "{}", seen.stderr);
        assert!(seen.stderr.contains(&named), "{}", seen.stderr);
        // The status is that of mpirun, which depends on the signal.
        assert_ne!(seen.status, Some(0));
        seen.nobody_is_left();
    }
}

/// These run concurrently because they take about half a minute.
#[test]
fn missing_ranks_are_named_and_slow_ranks_are_waited_for() {
    let victim = seed() as usize % 4;
    let run = |ranks, shared, words: &[&str]| Job::start(ranks, shared, words);
    let idle = ["loop", "300", "--compute", "50"];
    let stopped = [ALL, NONE, PAIRS].map(|shared| run(4, shared, &idle));
    let stuck = [ALL, NONE]
        .map(|shared| run(3, shared, &["loop", "300", "--compute", "50", "--stuck", "5"]));
    // Slower than the minimum timeout, but less than twenty times as slow as usual.
    let slow = run(2, ALL, &["loop", "20", "--compute", "2000,28000"]);
    let busy = run(2, NONE, &["loop", "27", "--compute", "50", "--busy", "28"]);
    let paused = run(3, ALL, &["loop", "20", "--compute", "50"]);
    let (Some(slow), Some(busy), Some(mut paused)) = (slow, busy, paused) else { return };

    // First the one that ends by itself.
    paused.signal(&[0, 1, 2], Signal::STOP);
    let mut stopped = stopped.map(Option::unwrap);
    stopped.iter_mut().for_each(|job| job.signal(&[victim], Signal::STOP));
    std::thread::sleep(Duration::from_secs(17));
    paused.signal(&[2, 0, 1], Signal::CONT);

    for job in stopped {
        let seen = job.end();
        let named = format!("(pid {}) has not run for 15 s", seen.pids[&victim]);
        assert!(seen.stderr.contains(&named), "{}", seen.stderr);
        assert_eq!(seen.status, Some(75), "{}", seen.stderr);
        seen.nobody_is_left();
    }
    for job in stuck.map(Option::unwrap) {
        let seen = job.end();
        let named = format!("(pid {}) is running but 25 s late", seen.pids[&1]);
        assert!(seen.stderr.contains(&named), "{}", seen.stderr);
        assert_eq!(seen.status, Some(75), "{}", seen.stderr);
    }
    for (job, what) in [(slow, "slow"), (busy, "busy"), (paused, "paused")] {
        let seen = job.end();
        assert_eq!((seen.status, &*seen.stderr), (Some(0), ""), "{what}: {}", seen.stdout);
    }
}

#[test]
fn an_error_of_one_rank_ends_all_with_its_message() {
    let Some(job) = Job::start(3, ALL, &["loop", "60", "--fail", "3"]) else { return };
    let seen = job.end();
    assert!(seen.stderr.contains("ranks[1/3]: the disk is full"), "{}", seen.stderr);
    assert_eq!(seen.status, Some(74), "{}", seen.stderr);
}

#[test]
fn signal_handlers_survive_mpi_init() {
    let Some(mut job) = Job::start(3, ALL, &["signals"]) else { return };
    job.signal(&[1], Signal::USR1);
    let seen = job.end();
    assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    assert!(seen.stdout.contains("rank 1 saw Some(\"SIGUSR1\")"), "{}", seen.stdout);
    assert!(seen.stdout.contains("rank 0 saw None"), "{}", seen.stdout);
}

/// Within MPI_Init only the launcher knows which ranks exist.
#[test]
fn a_rank_that_never_starts_mpi_is_not_awaited_for_ever() {
    let limit = |text| Some(("LONGHAUL_START_LIMIT", text));
    let Some(job) = Job::start_with(3, limit("2s"), &["never"]) else { return };
    let seen = job.end();
    assert_eq!(seen.status, Some(75), "{}", seen.stderr);
    let told =
        |rank| seen.stderr.contains(&format!("ranks: rank {rank} on {}", unix::host::name()));
    assert!((told(0) || told(2)) && !told(1), "{}", seen.stderr);
    assert!(
        seen.stderr.contains("has waited 00:00:02 for all ranks to start MPI"),
        "{}",
        seen.stderr
    );
    seen.nobody_is_left();
    // With a long timeout, or none, nothing is reported.
    for text in ["10m", "none"] {
        let seen = Job::start_with(2, limit(text), &["who"]).unwrap().end();
        assert_eq!((seen.status, &*seen.stderr), (Some(0), ""));
    }
    let seen = Job::start_with(2, limit("soon"), &["who"]).unwrap().end();
    assert_eq!(seen.status, Some(2), "{}", seen.stderr);
    assert!(
        seen.stderr.contains("LONGHAUL_START_LIMIT: \"soon\" is not a duration"),
        "{}",
        seen.stderr
    );
}

#[test]
fn mismatched_collectives_are_reported() {
    let Some(job) = Job::start(2, ALL, &["mismatch"]) else { return };
    let seen = job.end();
    assert!(seen.stderr.contains("are not in the same call"), "{}", seen.stderr);
    assert_eq!(seen.status, Some(70), "{}", seen.stderr);
}

/// On machines without NCCL: every rank prints one line that says what to do, and does not wait.
#[test]
fn missing_nccl_is_reported() {
    let Some(job) = Job::start(2, ALL, &["gpu", "1"]) else { return };
    let seen = job.end();
    assert_eq!(seen.status, Some(1), "{}", seen.stderr);
    let told = ["libnccl.so.2", "no GPU: ", "no cuda:0", "NCCL_DEBUG"];
    assert!(told.iter().any(|words| seen.stderr.contains(words)), "{}", seen.stderr);
}
