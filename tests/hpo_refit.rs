//! `hpo refit`: the best configuration with several seeds, the test split, and the report.

use crate::common::shell;
use crate::records::{done, npy, refused};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Of another program: the value of a trial is its parameter plus a hundredth of its seed.
const STUDY: &str =
    "command: [sh, -c, 'hpo tell $HPO_STUDY $HPO_TRIAL $(echo \"{x} + {seed} / 100\" | bc -l)']
metric: loss
trials: 4
sampler: {kind: grid}
space: {x: {kind: categorical, choices: [3, 1.5, 1.4, 2]}}
test: [sh, test.sh, '{run}', '{output}']
";

/// What the run told as its final value, and a setting.
const TEST: &str = r#"echo >> tests
echo text
value=$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' $1/log.jsonl)
mkdir $2
echo "{\"seen\": 4, \"error\": $value}" | tee $2/copy
"#;

fn rows(folder: &Path, command: &str) -> Vec<Value> {
    let output = done(folder, &format!("{command} --json"));
    output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_refit_trains_new_seeds_tests_once_and_lists_what_is_within_noise() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fs::write(folder.join("study.yaml"), STUDY).unwrap();
    fs::write(folder.join("test.sh"), TEST).unwrap();
    done(folder, "hpo new study -c study.yaml");
    refused(folder, "hpo refit study", 75, "round search has not ended; run workers, or choose");
    done(folder, "hpo worker study");
    refused(folder, "hpo refit study --trial 9", 2, "trial 9 is not complete");
    // Killed after two of its three seeds, and in the first test.
    assert_eq!(shell(folder, "hpo refit study --seeds 3 --time 0s").status, Some(75));
    assert_eq!(shell(folder, "FAIL=log.write:5=kill hpo refit study --seeds 3").status, Some(137));
    let found = rows(folder, "hpo refit study --seeds 3");
    // Of the values 3, 1.51, 1.42 and 2.03, the third is the best; seeds 4, 5 and 6 follow those of the search.
    let expected = [("validation", "loss"), ("test", "error")];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (row, (on, metric)) in found.iter().zip(expected) {
        assert_eq!(
            (&row["on"], &row["metric"], &row["seeds"]),
            (&on.into(), &metric.into(), &3.into())
        );
        let number = |name: &str| row[name].as_f64().unwrap();
        for (name, value) in [("mean", 1.45), ("std", 0.01), ("min", 1.44), ("max", 1.46)] {
            assert!((number(name) - value).abs() < 1e-12, "{name}: {row}");
        }
    }
    // Once for each seed, however often it is called.
    assert_eq!(rows(folder, "hpo refit study --seeds 3"), found);
    assert_eq!(fs::read_to_string(folder.join("tests")).unwrap().lines().count(), 3);
    let report = fs::read_to_string(folder.join("study/refit/report.md")).unwrap();
    assert!(
        report.contains("| validation | loss   | 1.4500 | 0.0100 | 1.4400 | 1.4600 |     3 |"),
        "{report}"
    );
    // Two standard deviations are 0.02: nothing is that close. Ten seeds have more than 0.03 / 2.
    assert!(report.contains("No other complete trials of the round"), "{report}");
    refused(folder, "hpo refit study --seeds 4", 73, "it is another study");
    done(folder, "hpo refit study --seeds 20 -o wide");
    let report = fs::read_to_string(folder.join("wide/report.md")).unwrap();
    assert!(report.contains("|     1 | 1.510000 | 1.5 |"), "{report}");
    assert!(!report.contains("|     3 | 2.030000 |"), "{report}");
    let page = fs::read_to_string(folder.join("wide/report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Configurations within noise"));
    // Parameters may be overridden.
    let changed = rows(folder, "hpo refit study --seeds 1 -s x=7 -o changed");
    assert_eq!((changed[0]["min"].as_f64(), changed[0]["std"].as_f64()), (Some(7.04), None));
}

#[test]
fn a_failed_seed_and_a_failed_test_are_reported() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    fs::write(folder.join("study.yaml"), STUDY).unwrap();
    done(folder, "hpo new study -c study.yaml -s 'test=[sh, -c, \"echo {run}; test -e good\"]'");
    done(folder, "hpo worker study");
    refused(folder, "hpo refit study", 1, "failed: exit status: 1");
    refused(
        folder,
        "touch good; hpo refit study",
        65,
        "the last line of the test's output is not a JSON object",
    );
    // A seed that fails is named; after `hpo retry` the same command goes on.
    let command = "test -e good && hpo tell $HPO_STUDY $HPO_TRIAL {x}";
    fs::write(folder.join("other.yaml"), format!(
        "command: [sh, -c, {command:?}]\nmetric: loss\ntrials: 1\nspace: {{x: {{kind: fixed, value: 1}}}}\n"
    )).unwrap();
    done(folder, "hpo new other -c other.yaml; hpo worker other; rm good");
    refused(folder, "hpo refit other --seeds 2", 1, "run `hpo retry");
    done(folder, "touch good; hpo retry other/refit; hpo refit other --seeds 2");
    let report = fs::read_to_string(folder.join("other/refit/report.md")).unwrap();
    assert!(report.contains("No test was run: study.yaml has no test command."), "{report}");
}

/// Noise cannot be predicted, but learned by heart: only a model that has seen the validation split knows its targets.
#[test]
fn a_refit_on_train_and_validation_trains_on_both_and_tests_the_newest_checkpoint() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let noise = |seed: u64| -> Vec<f32> {
        let hash = |i: u64| blake3::hash(&[seed, i].map(u64::to_le_bytes).concat());
        (0..160).map(|i| f32::from(hash(i).as_bytes()[0]) / 128.0 - 1.0).collect()
    };
    npy(&folder.join("x.npy"), &[20, 8, 1], &noise(3));
    npy(&folder.join("y.npy"), &[20, 8, 1], &noise(7));
    let config = "data: {split: split.json, stats: stats.json}
model: {backbone: {kind: pdet_stack, hidden: 64, depth: 3, kernel_size: 7}, padding_mode: zeros}
loss: {kind: mse}
training: {updates: 250, batch_size: 6, validate_every: 50}
optimizer: {method: {kind: adamw}, learning_rate: 4e-3}
";
    let study = "command: [train-stage, regression, -c, config.yaml]
metric: nrmse
trials: 1
space: {training.updates: {kind: fixed, value: 100}}
";
    fs::write(folder.join("config.yaml"), config).unwrap();
    fs::write(folder.join("study.yaml"), study).unwrap();
    let found = rows(
        folder,
        "ds-prep import x.npy --axes nxc --target y.npy --target-axes nxc -o pairs > /dev/null
         ds-prep split pairs --train 6 --validation 6 --test 8 --seed 2 -o split.json > /dev/null
         ds-prep stats split.json > /dev/null
         hpo new study -c study.yaml > /dev/null
         hpo worker study > /dev/null
         hpo refit study --seeds 1 -s training.updates=250 > /dev/null
         hpo refit study --seeds 1 -s training.updates=250 --on train+validation -o both",
    );
    assert!(found.iter().all(|row| row["on"] == "test"), "{found:?}");
    let last = |run: &str| {
        let log = fs::read_to_string(folder.join(run).join("trials/00000/log.jsonl")).unwrap();
        let line = log.lines().rfind(|line| line.contains("\"kind\":\"validation\"")).unwrap();
        serde_json::from_str::<Value>(line).unwrap()["nrmse"].as_f64().unwrap()
    };
    let (alone, both) = (last("study/refit"), last("both"));
    assert!(alone > 0.9 && both < 0.5, "{alone} {both}");
    let metrics = fs::read_to_string(folder.join("both/test/00000/metrics.json")).unwrap();
    assert!(metrics.contains("ckpt/latest"), "{metrics}");
    assert!(!fs::read_to_string(folder.join("both/report.md")).unwrap().contains("| validation |"));
}
