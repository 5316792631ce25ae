//! A run on several data sets in given proportions: stopped or on several ranks it reads the same samples, and
//! incompatible data sets are refused.

use crate::common::run::{newest_update, start};
use crate::common::shell;
use std::collections::BTreeMap;
use std::path::Path;
use test_support::{Random, seed};

const CODEC: &str = "seed: 3
data:
  split: a.json
  stats: a.stats.json
  additional: [{split: b.json, stats: b.stats.json, weight: 3}]
model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 300, batch_size: 8, log_every: 1, validate_every: 100, deterministic: true}
optimizer: {method: {kind: sgd, momentum: 0.9}, learning_rate: 1e-2}
checkpoint: {every: 10}
";

const OPERATOR: &str = "seed: 3
data:
  train: latents-a/train
  validation: latents-a/validation
  additional: [{train: latents-b/train, validation: latents-b/validation}]
model: {backbone: {kind: pdet_stack, hidden: 16, depth: 1, kernel_size: 3}}
loss: {validation_steps: 2}
training: {updates: 6, batch_size: 4}
optimizer: {method: {kind: adamw}, learning_rate: 3e-3}
";

/// Two data sets with different lengths and numbers of frames, a third on another grid, and a run on the first two.
fn prepare(folder: &Path) {
    std::fs::write(folder.join("codec.yaml"), CODEC).unwrap();
    std::fs::write(folder.join("operator.yaml"), OPERATOR).unwrap();
    let output = shell(
        folder,
        "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 21 --seed 5 -o a
         ds-prep gen burgers --parameter 0.1 --samples 20 --grid 64 --frames 11 --seed 6 -o b
         ds-prep gen burgers --parameter 0.1 --samples 10 --grid 32 --frames 11 --seed 7 -o c
         for set in a b c; do
           ds-prep split $set/*.hdf5 --seed 5 -o $set.json
           ds-prep stats $set.json -o $set.stats.json
         done
         train-stage codec -c codec.yaml --run whole",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
}

/// Hashes of the last checkpoint's tensors.
fn outcome(folder: &Path, run: &str) -> BTreeMap<String, String> {
    let last = folder.join(run).join("ckpt/step-00000300");
    let files = std::fs::read_dir(last).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, unix::publish::hash_file(&path).unwrap())
        })
        .collect()
}

#[test]
fn several_data_sets_are_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let expected = outcome(folder, "whole");

    // Stopped repeatedly: if the machine delays this test, over several runs.
    let (seed, mut stops, mut runs) = (seed(), 0, 0);
    let mut random = Random(seed);
    while stops < 3 {
        let name = format!("stopped-{runs}");
        runs += 1;
        assert!(runs < 20, "seed {seed}: only {stops} stops, each run was over too soon");
        loop {
            let mut child = start(folder, &name, &[]);
            let run = folder.join(&name);
            let until = newest_update(&run) + 1 + random.below(80) as u64;
            child.wait_for_update(&run, until);
            child.signal("TERM");
            match child.end() {
                (Some(0), _) => break,
                (Some(75), _) => stops += 1,
                (other, stderr) => panic!("seed {seed}: {other:?} {stderr}"),
            }
        }
        assert_eq!(outcome(folder, &name), expected, "seed {seed}, after {stops} stops");
    }

    // Weights matter, and so does a set with weight 0, although its statistics do not.
    for (run, more, same) in [
        ("equal", "-s 'data.additional=[{split: b.json, stats: b.stats.json}]'", false),
        ("alone", "-s data.additional=[]", false),
        (
            "scaled",
            "-s data.weight=0.5 -s 'data.additional=[{split: b.json, stats: b.stats.json, weight: 1.5}]'",
            true,
        ),
    ] {
        let script = format!("train-stage codec -c codec.yaml {more} --run {run}");
        assert_eq!(shell(folder, &script).status, Some(0));
        assert_eq!(outcome(folder, run) == expected, same, "{run}");
    }

    // Two ranks read what a single one would.
    if test_support::require_program("mpirun", &["--version"]) {
        let output = shell(
            folder,
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
             mpirun --bind-to none --oversubscribe -n 2 train-stage codec -c codec.yaml --run ranks",
        );
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert_eq!(outcome(folder, "ranks"), expected);
    }

    // The training data of every set are recorded.
    let output = shell(
        folder,
        "for set in a b; do
           latent-cache make whole --data $set.json -o latents-$set
         done
         train-stage operator -c operator.yaml --run operator
         evaluate score operator --data b.json --split validation --steps 2 -o report",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(!output.stderr.contains("another split"), "{}", output.stderr);
    let output = shell(folder, "evaluate score whole --data c.json --split validation -o other");
    assert_ne!(output.status, Some(0), "a set of another grid");
}

#[test]
fn incompatible_data_sets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    for (others, status, words) in [
        ("[{split: c.json, stats: c.stats.json}]", 65, "all data sets must have the same"),
        ("[{split: b.json, stats: a.stats.json}]", 65, "a.stats.json"),
        ("[{split: d.json, stats: a.stats.json}]", 66, "d.json"),
        ("[{split: b.json, stats: b.stats.json, weight: -1}]", 78, "data.additional[0].weight"),
    ] {
        let script = format!(
            "train-stage codec -c codec.yaml -s 'data.additional={others}' --run x --check"
        );
        let output = shell(folder, &script);
        assert_eq!(output.status, Some(status), "{others}: {}", output.stderr);
        assert!(output.stderr.contains(words), "{others}: {}", output.stderr);
        assert!(!folder.join("x").exists());
    }
    // A run continues only with the same data.
    let output = shell(folder, "train-stage codec -c codec.yaml -s data.weight=2 --run whole");
    assert_eq!(output.status, Some(78), "{}", output.stderr);
}
