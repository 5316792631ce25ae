//! Jobs that must not continue.

use std::path::Path;

use super::cluster::{Cluster, output};
use super::common::run::wait_until;

/// A job that SLURM may not requeue exits with 75 and says what to do.
pub fn not_to_be_requeued(cluster: &Cluster, folder: &Path) {
    let command = "sbatch --parsable --no-requeue $SLURM/train.sbatch sh -c 'exit 75'";
    let job = cluster.stdout(folder, command);
    cluster.wait_for(&job, &["FAILED"]);
    assert_eq!(cluster.field(&job, "ExitCode"), "75:0");
    assert_eq!(cluster.field(&job, "Restarts"), "0");
    let stdout = output(folder, &job);
    assert!(
        stdout.contains("--no-requeue") && stdout.contains("submit the same job again"),
        "{stdout}"
    );
}

/// A run that fails every time is restarted as often as allowed, and no more.
pub fn started_too_often(cluster: &Cluster, folder: &Path) {
    let command = "sbatch --parsable --export=ALL,LONGHAUL_MAX_RESTARTS=2 $SLURM/train.sbatch \
                   sh -c 'echo start >> starts; exit 75'";
    let job = cluster.stdout(folder, command);
    cluster.wait_for(&job, &["FAILED"]);
    assert_eq!(cluster.field(&job, "ExitCode"), "75:0");
    let starts = std::fs::read_to_string(folder.join("starts")).unwrap();
    assert_eq!(starts.lines().count(), 3);
    assert!(output(folder, &job).contains("--max-restarts"), "{}", output(folder, &job));
}

/// A failed step of a pipeline is held for its user, and the steps after it keep waiting.
pub fn held(cluster: &Cluster, folder: &Path) {
    let command = "sbatch --parsable --export=ALL,LONGHAUL_ON_FAILURE=hold $SLURM/train.sbatch \
                   sh -c 'test -e mended || exit 78'";
    let job = cluster.stdout(folder, command);
    let after =
        format!("sbatch --parsable --dependency=afterok:{job} --output=/dev/null --wrap true");
    let after = cluster.stdout(folder, &after);
    wait_until(|| cluster.field(&job, "Reason") == "job_requeued_in_held_state");
    wait_until(|| output(folder, &job).contains(&format!("scontrol release {job}")));
    // If released before SLURM has ended it, it would be requeued a second time.
    wait_until(|| cluster.field(&job, "JobState") == "PENDING");
    assert_eq!(cluster.field(&after, "JobState"), "PENDING");
    std::fs::write(folder.join("mended"), "").unwrap();
    cluster.stdout(folder, &format!("scontrol release {job}"));
    cluster.wait_for_success(&job, folder);
    cluster.wait_for_success(&after, folder);
    assert_eq!(cluster.field(&job, "Restarts"), "1");
}
