//! A search by arrays of workers, as longhaul-study(5) describes it.

use std::path::Path;

use serde_json::Value;

use super::cluster::Cluster;
use super::common::run::{newest_update, records, wait_until};
use super::{SLOW, digests, starts};

/// Two rounds; the parameters of a trial depend only on its number and the results of the round before.
const STUDY: &str = "name: search
command: [train-stage, codec, -c, codec.yaml]
metric: nrmse
seed: 7
space: {optimizer.learning_rate: {kind: float, low: 1e-4, high: 1e-2, log: true}}
sampler: {kind: random}
rounds:
  - {name: coarse, trials: 4, fidelity: {training.updates: 10}}
  - {name: fine, trials: 2, fidelity: {training.updates: 12}, narrow: {top: 2}}
";

fn trials(cluster: &Cluster, folder: &Path, study: &str) -> Vec<Value> {
    let listed = cluster.stdout(folder, &format!("hpo trials {study} --json"));
    listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The values and parameters by number.
fn results(trials: &[Value]) -> Vec<[Value; 4]> {
    let of = |trial: &Value| ["trial", "state", "value", "params"].map(|key| trial[key].clone());
    trials.iter().map(of).collect()
}

/// Three workers for the first round and two for the second; SLURM warns them, requeues one and cancels another.
pub fn study(cluster: &Cluster, folder: &Path) {
    std::fs::write(folder.join("study.yaml"), STUDY).unwrap();
    cluster.stdout(folder, "hpo new whole -c study.yaml && hpo worker whole");
    cluster.stdout(folder, "hpo new search -c study.yaml");
    let submit = |words: &str, round: &str| {
        let command = format!("$SLURM/train.sbatch hpo worker search --round {round}");
        cluster.stdout(folder, &format!("sbatch --parsable {words} --export=ALL,{SLOW} {command}"))
    };
    // SLURM checks twice a minute, so it warns each worker some 30 s after its start.
    let coarse = submit("--array=1-3 --time=3 --signal=B:USR1@175", "coarse");
    let fine = submit(&format!("--array=1-2 --dependency=afterok:{coarse}"), "fine");

    let run = |number: usize| folder.join(format!("search/trials/{number:05}"));
    wait_until(|| (0..3).all(|number| newest_update(&run(number)) >= 3));
    cluster.stdout(folder, &format!("scontrol requeue {coarse}_1"));
    cluster.stdout(folder, &format!("scancel --signal=TERM {coarse}_2"));
    assert_eq!(cluster.field(&format!("{fine}_1"), "JobState"), "PENDING");
    for job in [1, 2, 3].map(|task| format!("{coarse}_{task}")) {
        cluster.wait_for_success(&job, folder);
    }
    for job in [1, 2].map(|task| format!("{fine}_{task}")) {
        cluster.wait_for_success(&job, folder);
    }
    let restarts = |job: String| cluster.field(&job, "Restarts").parse::<usize>().unwrap();
    let restarted = [1, 2].map(|task| restarts(format!("{coarse}_{task}")));
    assert!(restarted.iter().all(|count| *count > 0), "{restarted:?}");

    let found = trials(cluster, folder, "search");
    assert_eq!(results(&found), results(&trials(cluster, folder, "whole")));
    for (number, trial) in found.iter().enumerate() {
        let path = run(number).join("trial.jsonl");
        let journal = std::fs::read_to_string(&path).unwrap();
        assert_eq!(journal.matches("\"kind\":\"end\"").count(), 1, "{journal}");
        let updates = if number < 4 { 10 } else { 12 };
        let whole = folder.join(format!("whole/trials/{number:05}"));
        assert_eq!(digests(&run(number), updates), digests(&whole, updates), "trial {number}");
        let began = starts(&run(number));
        // An attempt that is asked to stop before its run has begun leaves no record there.
        let attempts = trial["attempts"].as_u64().unwrap() as usize;
        assert_eq!(attempts, journal.matches("\"kind\":\"start\"").count(), "{journal}");
        assert!(!began.is_empty() && began.len() <= attempts, "{journal}");
        // No update is repeated: the attempt before has saved a checkpoint when it was asked to stop.
        let mut newest = 0;
        for record in records(&run(number)) {
            let update = record["update"].as_u64().unwrap_or(newest);
            assert!(record["kind"] != "start" || update == newest, "{began:?}: {newest}");
            newest = update.max(newest);
        }
    }
    let attempts = |number: usize| found[number]["attempts"].as_u64().unwrap();
    assert!((0..3).filter(|number| attempts(*number) > 1).count() >= 2, "{found:?}");
    // The second array began when the first one had ended.
    let time = |number: usize, kind: &str| {
        let journal = std::fs::read_to_string(run(number).join("trial.jsonl")).unwrap();
        let mut records = journal.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.find(|record| record["kind"] == kind).unwrap()["time"].to_string()
    };
    let last = (0..4).map(|number| time(number, "end")).max().unwrap();
    assert!((4..6).all(|number| time(number, "start") > last));
}
