//! One operator of several equations: it is told them apart, resumes exactly, is scored on each, and refuses others.

use std::path::Path;
use std::process::Command;

use crate::common::run::{newest_update, outcome, records, spawn};
use crate::common::{Captured, shell};
use serde_json::Value;
use test_support::{Random, seed};

const CODEC: &str = "
data:
  split: nu.json
  stats: nu.stats.json
  additional: [{split: beta.json, stats: beta.stats.json}]
  random_shift: true
model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 200, batch_size: 16, ema: 0.9}
optimizer: {method: {kind: adamw}, learning_rate: 3e-3}
";

const OPERATOR: &str = "
data:
  train: nu/train
  validation: nu/validation
  weight: 2
  additional: [{train: beta/train, validation: beta/validation}]
  random_shift: true
model: {backbone: {kind: pdet_stack, hidden: 24, depth: 2, kernel_size: 5}}
loss: {horizons: [1, 2], validation_steps: 3}
training: {updates: 400, batch_size: 5, ema: 0.95, validate_every: 100, log_every: 1}
optimizer: {method: {kind: adamw}, learning_rate: 5e-3}
checkpoint: {every: 10}
";

fn done(folder: &Path, script: &str) -> Captured {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{}\n{}", output.stdout, output.stderr);
    output
}

/// Burgers' equation (nu), advection (beta) and, not for training, diffusion-reaction (nu and rho), on one grid.
fn prepare(folder: &Path) {
    std::fs::write(folder.join("codec.yaml"), CODEC).unwrap();
    std::fs::write(folder.join("operator.yaml"), OPERATOR).unwrap();
    done(
        folder,
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 12 --grid 64 --frames 9 --end 0.4 --seed 1 -o data-nu
         ds-prep gen advection --parameter 0.5 --samples 12 --grid 64 --frames 9 --end 0.4 --seed 2 -o data-beta
         ds-prep gen diffusion-reaction --parameter 0.5 --samples 12 --grid 64 --frames 9 --seed 3 -o data-rho
         for set in nu beta rho; do
           ds-prep split data-$set/*.hdf5 --seed 4 -o $set.json
           ds-prep stats $set.json -o $set.stats.json
         done
         train-stage codec -c codec.yaml --run codec
         for set in nu beta; do latent-cache make codec --data $set.json -o $set; done
         train-stage operator -c operator.yaml --run whole",
    );
}

/// Trains the operator, stopping it twice.
fn train_with_stops(folder: &Path, run: &str) {
    let mut random = Random(seed());
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_train-stage"));
        command.args(["operator", "-c", "operator.yaml", "--run", run]).current_dir(folder);
        let mut child = spawn(folder, command);
        let run = folder.join(run);
        child.wait_for_update(&run, newest_update(&run) + 1 + random.below(150) as u64);
        child.signal("TERM");
        let (status, stderr) = child.end();
        assert!(matches!(status, Some(0 | 75)), "{status:?}: {stderr}");
    }
    done(folder, &format!("train-stage operator -c operator.yaml --run {run}"));
}

#[test]
fn an_operator_of_two_equations_is_told_them_apart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let whole = folder.join("whole");
    train_with_stops(folder, "stopped");
    assert!(outcome(&folder.join("stopped")) == outcome(&whole), "it ended with other bits");

    // The log has the loss and the score of each.
    let log = records(&whole);
    let of_kind = |kind: &'static str| log.iter().filter(move |record| record["kind"] == kind);
    let mut both = 0;
    for record in of_kind("update") {
        let terms = record["loss_terms"].as_object().unwrap();
        let mut terms: Vec<f64> = terms.values().map(|term| term.as_f64().unwrap()).collect();
        terms.sort_by(f64::total_cmp);
        let loss = record["loss"].as_f64().unwrap();
        // The loss is a mean of the terms, weighted by the samples of each equation.
        let slack = 1e-6 * loss;
        assert!(terms[0] <= loss + slack && loss <= terms[terms.len() - 1] + slack, "{record}");
        both += usize::from(terms.len() == 2);
    }
    assert!(both > 200, "{both} updates with samples of both");
    for record in of_kind("validation") {
        for key in ["[beta]", "[nu]", ""] {
            assert!(record[&format!("rollout_nrmse_by_equation{key}")].is_f64(), "{record}");
        }
    }
    let show = done(folder, "ckpt show whole --json").stdout;
    assert!(show.contains("condition.beta") && show.contains("condition.nu"), "{show}");

    // On the data of each equation it is better than persistence.
    for set in ["nu", "beta"] {
        let script = format!(
            "evaluate score whole --data {set}.json --steps 4 --stride 1 --json -o report-{set}
             evaluate predict whole --inputs data-{set}/*0.[15].hdf5 --steps 4 -o {set}.hdf5"
        );
        let output = done(folder, &script);
        let rows =
            output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let row = rows.rev().find(|row| row["regime"] == "mean").unwrap();
        let [error, persistence] =
            ["operator", "persistence"].map(|key| row[key].as_f64().unwrap());
        assert!(error < 0.7 * persistence, "{set}: {row}");
    }
    for script in [
        "evaluate score whole --data rho.json --steps 4 --stride 1 -o report-rho",
        "evaluate predict whole --inputs data-rho/*.hdf5 --steps 4 -o rho.hdf5",
    ] {
        let output = shell(folder, script);
        assert_eq!(output.status, Some(65), "{}", output.stderr);
        let text = "parameters nu,rho, but the model was trained on equations with beta and nu";
        assert!(output.stderr.contains(text), "{}", output.stderr);
    }
    // A manifest of several equations has no latents: they could not be told apart.
    let output = shell(
        folder,
        "ds-prep split data-nu/*.hdf5 data-beta/*.hdf5 --seed 4 -o all.json
         latent-cache make codec --data all.json -o all",
    );
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    assert!(output.stderr.contains("make a manifest for each equation"), "{}", output.stderr);
}
