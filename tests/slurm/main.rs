//! Runs as jobs of a real SLURM: time limits, signals, preemption, arrays, pipelines, dead nodes. However they are
//! interrupted, they end with the same bits as an undisturbed run.
//!
//! All scenarios run at once in one cluster, because they mostly wait. `SCENARIO=name` selects one.

#[path = "../common/mod.rs"]
mod common;

mod cluster;
mod ends;
mod images;
mod interrupted;
mod many;
mod outage;
mod ranks;
mod study;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use cluster::Cluster;

/// A name and a test function.
type Scenario = (&'static str, fn(&Cluster, &Path));

const SCENARIOS: [Scenario; 18] = [
    ("time_limit", interrupted::time_limit),
    ("over_time", interrupted::over_time),
    ("signals_to_the_steps", interrupted::signals_to_the_steps),
    ("preempted", preempted),
    ("cancelled", interrupted::cancelled),
    ("dead_node", interrupted::dead_node),
    ("ranks", interrupted::ranks),
    ("killed_task", interrupted::killed_task),
    ("controller_outage", outage::controller_outage),
    ("array", many::array),
    ("pipeline", many::pipeline),
    ("two_jobs_of_one_run", many::two_jobs_of_one_run),
    ("cron", many::cron),
    ("study", study::study),
    ("ranks_with_a_time_limit", ranks::ranks_with_a_time_limit),
    ("not_to_be_requeued", ends::not_to_be_requeued),
    ("held", ends::held),
    ("started_too_often", ends::started_too_often),
];

/// One after the other, because both preempt what runs on the only node of their partition.
fn preempted(cluster: &Cluster, folder: &Path) {
    interrupted::preempted(cluster, folder);
    images::preempted(cluster, folder);
}

/// A codec whose updates take a second with [`SLOW`] set, and almost no time otherwise.
const CONFIG: &str = "seed: 3
data: {split: split.json, stats: stats.json, random_shift: true, random_reflection: true}
model: {patch: 8, latent: 2, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {reencoding: 0.1}
training: {updates: 20, batch_size: 8, log_every: 1, validate_every: 9, validation_samples: 8, ema: 0.9,
  threads: 1}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 4}
";

/// An environment variable for a job: writing each log record takes a second.
pub const SLOW: &str = "FAIL=log.write:1+=sleep";

/// Creates the data and `codec.yaml` for all scenarios, which only read them through links.
fn prepare(cluster: &Cluster) -> PathBuf {
    let folder = cluster.folder("data");
    std::fs::write(folder.join("codec.yaml"), CONFIG).unwrap();
    cluster.stdout(
        &folder,
        "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json",
    );
    folder
}

#[test]
fn runs_survive_slurm() {
    let cluster = Cluster::start();
    test_support::require(cluster.is_some(), "SLURM (slurmctld, slurmd, sbatch, srun)");
    let Some(cluster) = cluster else { return };
    let data = prepare(&cluster);
    let wanted = std::env::var("SCENARIO").ok();
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (name, scenario) in SCENARIOS {
            if wanted.as_deref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            let (cluster, data, failed) = (&cluster, &data, &failed);
            scope.spawn(move || {
                let folder = cluster.folder(name);
                for file in ["data", "split.json", "stats.json", "codec.yaml"] {
                    std::os::unix::fs::symlink(data.join(file), folder.join(file)).unwrap();
                }
                let began = Instant::now();
                let ended = catch_unwind(AssertUnwindSafe(|| scenario(cluster, &folder)));
                let how = if ended.is_ok() { "ok" } else { "FAILED" };
                eprintln!("{name}: {how} after {:.0} s", began.elapsed().as_secs_f64());
                if ended.is_err() {
                    failed.lock().unwrap().push(name);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// The hashes of all tensor files in the checkpoint after `updates` updates.
fn digests(run: &Path, updates: u64) -> Vec<(String, String)> {
    let last = run.join(format!("ckpt/step-{updates:08}"));
    let files =
        std::fs::read_dir(&last).unwrap_or_else(|cause| panic!("{}: {cause}", last.display()));
    let digest = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_string();
        name.ends_with(".safetensors").then(|| (name, unix::publish::hash_file(&path).unwrap()))
    };
    let mut all: Vec<_> = files.filter_map(|file| digest(file.unwrap().path())).collect();
    all.sort();
    assert!(all.len() >= 3, "{all:?}");
    all
}

/// Asserts that the run in `folder` has the same bits as an undisturbed one, and that every checkpoint verifies.
fn equals_undisturbed(cluster: &Cluster, folder: &Path, run: &str, updates: u64) {
    equals_undisturbed_with(cluster, folder, run, updates, "");
}

/// The same with additional options.
fn equals_undisturbed_with(cluster: &Cluster, folder: &Path, run: &str, updates: u64, more: &str) {
    let words = format!("-c codec.yaml -s training.updates={updates} {more}");
    cluster.stdout(folder, &format!("train-stage codec {words} --run undisturbed >&2"));
    let expected = digests(&folder.join("undisturbed"), updates);
    assert_eq!(digests(&folder.join(run), updates), expected, "{run} has other bits");
    cluster.stdout(folder, &format!("ckpt verify {run} >&2"));
}

/// The update at which each attempt in the log of a run started.
fn starts(run: &Path) -> Vec<u64> {
    let records = common::run::records(run);
    let starts = records.iter().filter(|record| record["kind"] == "start");
    starts.map(|record| record["update"].as_u64().unwrap()).collect()
}
