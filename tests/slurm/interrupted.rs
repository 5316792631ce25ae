//! A single run that is interrupted in various ways.

use std::path::Path;
use std::time::Duration;

use super::cluster::{Cluster, output, processes};
use super::common::run::{newest_update, status, wait_until};
use super::{SLOW, equals_undisturbed, equals_undisturbed_with, starts};

/// Submits the run `run` with `updates` slow updates; returns its job id.
fn submit(cluster: &Cluster, folder: &Path, options: &str, updates: u64) -> String {
    let run = format!("-c codec.yaml -s training.updates={updates} --run run");
    let words = format!("--parsable --export=ALL,{SLOW} {options}");
    cluster.stdout(folder, &format!("sbatch {words} $SLURM/train.sbatch train-stage codec {run}"))
}

/// Waits for the update of the run `run`, and for the newest checkpoint due by then (every fourth update): it is written
/// concurrently.
pub fn wait_for_update(folder: &Path, update: u64) {
    let run = folder.join("run");
    let saved = || {
        let names = std::fs::read_dir(run.join("ckpt")).into_iter().flatten().flatten();
        let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse().ok();
        names.filter_map(|entry| step(entry.file_name())).max().unwrap_or(0)
    };
    wait_until(|| newest_update(&run) >= update && saved() >= update / 4 * 4);
}

/// Asserts that submitting the finished run again starts no attempt.
fn stays_finished(cluster: &Cluster, folder: &Path, updates: u64) {
    let before = starts(&folder.join("run")).len();
    let job = submit(cluster, folder, "", updates);
    cluster.wait_for_success(&job, folder);
    assert_eq!(starts(&folder.join("run")).len(), before);
    assert!(output(folder, &job).contains("nothing to do"), "{}", output(folder, &job));
}

/// SLURM's USR1 before the limit, which requeues the job, and a dependent job. The number of restarts depends on when
/// SLURM checks its limits, twice a minute; a USR1 that arrives before timekeep runs is lost.
pub fn time_limit(cluster: &Cluster, folder: &Path) {
    // SLURM checks twice a minute, so it warns some 30 s after each start.
    let job = submit(cluster, folder, "--time=3 --signal=B:USR1@175", 40);
    let after = format!(
        "sbatch --parsable --dependency=afterok:{job} --open-mode=append --output=after.out \
         --wrap 'echo ran; grep -c finished run/status.json'"
    );
    let after = cluster.stdout(folder, &after);
    cluster.wait_for_success(&job, folder);
    cluster.wait_for_success(&after, folder);
    let starts = starts(&folder.join("run"));
    assert!(starts.len() >= 2, "{starts:?}: {}", output(folder, &job));
    assert!(starts.is_sorted() && starts[1] > 0, "{starts:?}");
    let restarts: usize = cluster.field(&job, "Restarts").parse().unwrap();
    assert_eq!(restarts, starts.len() - 1);
    let text = std::fs::read_to_string(folder.join("after.out")).unwrap();
    assert_eq!(text, "ran\n1\n", "once, after the end");
    equals_undisturbed(cluster, folder, "run", 40);
}

/// A command that ignores all signals until the limit has passed, and then exits with 75.
pub fn over_time(cluster: &Cluster, folder: &Path) {
    let script = "#!/bin/sh
exec timekeep run --warn-signal USR2 --grace 10m -- sh -c '
    trap \"\" USR2; trap \"exit 75\" TERM
    echo start >> starts; test $(wc -l < starts) -lt 2 || exit 0
    while :; do sleep 0.1; done'
";
    std::fs::write(folder.join("job.sh"), script).unwrap();
    let job = cluster.stdout(folder, "sbatch --parsable --open-mode=append --time=1 job.sh");
    cluster.wait_for_success(&job, folder);
    let stdout = output(folder, &job);
    assert!(stdout.contains("DUE TO TIME LIMIT") && stdout.contains("restart 1"), "{stdout}");
    assert_eq!(cluster.field(&job, "Restarts"), "1");
}

/// Signals that reach the tasks but not the script; and a request to save that does not stop the run.
pub fn signals_to_the_steps(cluster: &Cluster, folder: &Path) {
    let job = submit(cluster, folder, "", 40);
    wait_for_update(folder, 6);
    cluster.stdout(folder, &format!("scancel --signal=USR2 {job}"));
    wait_for_update(folder, 8);
    cluster.stdout(folder, &format!("scancel --signal=USR1 {job}"));
    wait_until(|| starts(&folder.join("run")).len() == 2);
    wait_for_update(folder, 12);
    // TERM to the steps: srun survives and returns the status of its task.
    cluster.stdout(folder, &format!("scancel --signal=TERM {job}"));
    cluster.wait_for_success(&job, folder);
    let starts = starts(&folder.join("run"));
    assert_eq!(starts.len(), 3, "{starts:?}");
    assert!(starts[1] >= 8 && starts[2] >= 12, "saved when told to: {starts:?}");
    equals_undisturbed(cluster, folder, "run", 40);
}

/// Runs a job that preempts those in the partition `low`.
pub fn preempt(cluster: &Cluster, folder: &Path) {
    let words = "--parsable --partition=high --exclusive --output=/dev/null --wrap 'sleep 1'";
    let better = cluster.stdout(folder, &format!("sbatch {words}"));
    cluster.wait_for_success(&better, folder);
}

/// Preempted twice by a partition of higher priority, each time within the grace time.
pub fn preempted(cluster: &Cluster, folder: &Path) {
    let job = submit(cluster, folder, "--partition=low", 30);
    for update in [4, 10] {
        wait_for_update(folder, update);
        preempt(cluster, folder);
    }
    cluster.wait_for_success(&job, folder);
    let starts = starts(&folder.join("run"));
    // It saved within the grace time, although SLURM 22.05 does not requeue a job that exits within it.
    assert!(starts.len() == 3 && starts[1] >= 4 && starts[2] >= 10, "{starts:?}");
    equals_undisturbed(cluster, folder, "run", 30);
    stays_finished(cluster, folder, 30);
}

/// A job that its user cancels is not requeued, and the run resumes in another job.
pub fn cancelled(cluster: &Cluster, folder: &Path) {
    let job = submit(cluster, folder, "", 26);
    wait_for_update(folder, 6);
    cluster.stdout(folder, &format!("scancel {job}"));
    cluster.wait_for(&job, &["CANCELLED"]);
    // Longer than a requeued job takes to start.
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!(cluster.field(&job, "JobState"), "CANCELLED", "{}", output(folder, &job));
    assert_eq!(starts(&folder.join("run")).len(), 1);
    let stdout = output(folder, &job);
    assert!(!stdout.contains("will start job") && stdout.contains("scancel"), "{stdout}");
    let job = submit(cluster, folder, "", 26);
    cluster.wait_for_success(&job, folder);
    assert!(starts(&folder.join("run"))[1] >= 4);
    equals_undisturbed(cluster, folder, "run", 26);
}

/// Kills processes.
pub fn kill(processes: &[i32]) {
    for id in processes {
        let id = rustix::process::Pid::from_raw(*id).unwrap();
        let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL); // it may have ended with its parent
    }
}

/// Two ranks by PMIx: after a signal both stop together; when one is killed, the job restarts with both.
pub fn ranks(cluster: &Cluster, folder: &Path) {
    if !cfg!(feature = "mpi") || !cluster.stdout(folder, "srun --mpi=list 2>&1").contains("pmix") {
        test_support::skip("ranks in a job: this build has no MPI, or this SLURM no PMIx");
        return;
    }
    let deterministic = "-s training.deterministic=true";
    let job = cluster.stdout(
        folder,
        &format!(
            "sbatch --parsable --export=ALL,{SLOW} --ntasks-per-node=2 $SLURM/train.sbatch \
             train-stage codec -c codec.yaml {deterministic} -s training.updates=30 --run run"
        ),
    );
    wait_for_update(folder, 6);
    cluster.stdout(folder, &format!("scancel --signal=USR1 {job}"));
    wait_until(|| starts(&folder.join("run")).len() == 2);
    wait_for_update(folder, 11);
    let conf = cluster.stdout(folder, "echo SLURM_CONF=$SLURM_CONF");
    let rank = processes(&[&conf, &format!("SLURM_JOB_ID={job}"), "SLURM_PROCID=1"]);
    assert_eq!(rank.len(), 1, "{rank:?}");
    kill(&rank);
    cluster.wait_for_success(&job, folder);
    let starts = starts(&folder.join("run"));
    assert!(starts.len() == 3 && starts[1] >= 6 && starts[2] >= 8, "{starts:?}");
    let stdout = output(folder, &job);
    assert!(!stdout.contains("is in use by"), "one run of two ranks: {stdout}");
    equals_undisturbed_with(cluster, folder, "run", 30, deterministic);
}

/// The only task is killed from outside: the job is requeued, as when one of several ranks is killed.
pub fn killed_task(cluster: &Cluster, folder: &Path) {
    let job = submit(cluster, folder, "", 20);
    wait_for_update(folder, 6);
    let conf = cluster.stdout(folder, "echo SLURM_CONF=$SLURM_CONF");
    let task = processes(&[&conf, &format!("SLURM_JOB_ID={job}"), "SLURM_STEP_ID=0"]);
    assert_eq!(task.len(), 1, "{task:?}");
    kill(&task);
    cluster.wait_for_success(&job, folder);
    let starts = starts(&folder.join("run"));
    assert!(starts.len() == 2 && starts[1] >= 4, "{starts:?}: {}", output(folder, &job));
    equals_undisturbed(cluster, folder, "run", 20);
}

/// The node dies with everything on it: SLURM restarts the job on another node.
pub fn dead_node(cluster: &Cluster, folder: &Path) {
    let job = submit(cluster, folder, "--partition=frail", 26);
    wait_for_update(folder, 6);
    let node = cluster.field(&job, "NodeList");
    assert!(node == "n4" || node == "n5", "{node}");
    let conf = cluster.stdout(folder, "echo SLURM_CONF=$SLURM_CONF");
    let step_daemons = [format!("slurmstepd: [{job}.batch]"), format!("slurmstepd: [{job}.0]")];
    let mut all = processes(&[&conf, "slurmd", &node]);
    assert_eq!(all.len(), 1, "{all:?}");
    all.extend(step_daemons.iter().flat_map(|name| processes(&[name])));
    all.extend(processes(&[&conf, &format!("SLURM_JOB_ID={job}")]));
    kill(&all);
    assert_eq!(status(&folder.join("run"))["state"], "running", "killed before it could write");
    // Its threads end only when each has been scheduled.
    wait_until(|| cluster.stdout(folder, "timekeep status run").contains("lost"));
    cluster.wait_for_success(&job, folder);
    assert_ne!(cluster.field(&job, "NodeList"), node);
    let starts = starts(&folder.join("run"));
    assert!(starts.len() == 2 && starts[1] >= 4, "{starts:?}");
    equals_undisturbed(cluster, folder, "run", 26);
}
