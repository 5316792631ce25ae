//! A run with several ranks that is interrupted by its time limit.

use std::path::Path;

use super::cluster::{Cluster, output};
use super::common::run::records;
use super::{SLOW, equals_undisturbed_with, starts};

/// Two tasks by PMIx, warned before the time limit and requeued; the result has the same bits as with one rank.
pub fn ranks_with_a_time_limit(cluster: &Cluster, folder: &Path) {
    if !cfg!(feature = "mpi") || !cluster.stdout(folder, "srun --mpi=list 2>&1").contains("pmix") {
        test_support::skip("ranks in a job: this build has no MPI, or this SLURM no PMIx");
        return;
    }
    let deterministic = "-s training.deterministic=true";
    // The margin determines the warning, 30 s after each start; SLURM's own signal would come later, even if up to a
    // minute early.
    let words = format!(
        "--parsable --export=ALL,{SLOW},LONGHAUL_MARGIN=150s --ntasks-per-node=2 --time=3 --signal=B:USR1@60"
    );
    let run = format!("-c codec.yaml -s training.updates=40 {deterministic} --run run");
    let command = format!("sbatch {words} $SLURM/train.sbatch train-stage codec {run}");
    let job = cluster.stdout(folder, &command);
    cluster.wait_for_success(&job, folder);
    let starts = starts(&folder.join("run"));
    assert!(starts.len() >= 2 && starts[1] > 0, "{starts:?}: {}", output(folder, &job));
    let all = records(&folder.join("run"));
    let of_two = all.iter().filter(|r| r["kind"] == "start" && r["ranks"] == 2).count();
    assert_eq!(of_two, starts.len(), "{}", output(folder, &job));
    equals_undisturbed_with(cluster, folder, "run", 40, deterministic);
}
