//! A model of images that is adapted in 4 bits, preempted and killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::cluster::{Cluster, processes};
use super::common::images::{ADAPTED, DATA, SMALL};
use super::common::run::{records, wait_until};
use super::interrupted::{kill, preempt, wait_for_update};
use super::{digests, starts};

/// After the first update, writing a log record takes a second: timekeep delays the next attempt if one ends at once.
const SLOW: &str = "FAIL=log.write:5+=sleep";
/// A cost of 1 per second. The learning rate becomes so high that the first two checkpoints are the best ones.
const OPTIONS: &str = "-s training.updates=20 -s training.validate_every=4 -s checkpoint.every=4 \
    -s checkpoint.keep_best=2 -s checkpoint.keep_last=1 -s cost.rate_per_hour=3600 \
    -s optimizer.learning_rate=0.1 -s 'schedule=[{kind: linear, start_factor: 0.01, end_factor: 1.0}]'";

/// Preempted, then killed: weights and metrics have the bits of an undisturbed run, the best checkpoints are the same,
/// and the cost of all attempts adds up.
pub fn preempted(cluster: &Cluster, folder: &Path) {
    let folder = &folder.join("images");
    fs::create_dir(folder).unwrap();
    let base = "-s training.updates=12 -s training.validate_every=6 --run whole";
    cluster.stdout(folder, &format!("{{ {DATA}; {SMALL} {base}; }} >&2"));
    let command = format!("{SMALL} {ADAPTED} {OPTIONS} --run");
    let options = format!("--parsable --partition=low --export=ALL,{SLOW}");
    let job =
        cluster.stdout(folder, &format!("sbatch {options} $SLURM/train.sbatch {command} run"));
    wait_for_update(folder, 5);
    preempt(cluster, folder);
    // Kills the second attempt after some updates.
    let run = folder.join("run");
    wait_until(|| starts(&run).len() == 2);
    let resumed = starts(&run)[1];
    wait_for_update(folder, resumed + 4);
    let conf = cluster.stdout(folder, "echo SLURM_CONF=$SLURM_CONF");
    let task = processes(&[&conf, &format!("SLURM_JOB_ID={job}"), "SLURM_STEP_ID=0"]);
    assert_eq!(task.len(), 1, "{task:?}");
    kill(&task);
    cluster.stdout(folder, &format!("{command} undisturbed >&2"));
    cluster.wait_for_success(&job, folder);

    let undisturbed = folder.join("undisturbed");
    let starts = starts(&run);
    assert!(starts.len() == 3 && starts[1] >= 5 && starts[2] >= resumed, "{starts:?}");
    let kept = checkpoints(&undisturbed);
    assert_eq!(checkpoints(&run), kept);
    assert_eq!(kept.keys().copied().collect::<Vec<u64>>(), [4, 8, 20]);
    for run in [&run, &undisturbed] {
        let best = fs::read_link(run.join("ckpt/best")).unwrap();
        assert_eq!(best.to_str(), Some("step-00000004"));
    }
    for update in kept.into_keys() {
        assert_eq!(digests(&run, update), digests(&undisturbed, update), "{update}");
    }
    cluster.stdout(folder, "ckpt verify run >&2");
    assert_eq!(test_support::logged(&run), test_support::logged(&undisturbed));
    cost_adds_up(&run, &starts);
}

/// The metrics in the checkpoints of a run, as text, by update.
fn checkpoints(run: &Path) -> BTreeMap<u64, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(run.join("ckpt")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(update) = name.strip_prefix("step-") {
            let manifest = fs::read(path.join("manifest.json")).unwrap();
            let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
            all.insert(update.parse().unwrap(), manifest["metrics"].to_string());
        }
    }
    all
}

/// Every attempt adds to the cost at the checkpoint where it resumes.
fn cost_adds_up(run: &Path, starts: &[u64]) {
    let mut before: BTreeMap<u64, f64> = BTreeMap::from([(0, 0.0)]);
    let mut attempts = 0;
    for record in records(run) {
        let update = record["update"].as_u64().unwrap();
        match record["kind"].as_str() {
            Some("start") => {
                attempts += 1;
                before.retain(|own, _| *own <= update);
                assert!(before.contains_key(&update), "{update}: {before:?}");
            }
            Some("update") => {
                let cost = record["cost"].as_f64().unwrap();
                let (_, last) = before.last_key_value().unwrap();
                assert!(cost > *last, "{update}: {cost} after {before:?}");
                before.insert(update, cost);
            }
            _ => {}
        }
    }
    assert_eq!((attempts, before.len()), (starts.len(), 21));
}
