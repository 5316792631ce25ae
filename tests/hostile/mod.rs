//! Files that are damaged, strange or malicious, given to the programs as users run them.

mod arrays;
mod checkpoints;
mod flips;
mod fuzz;
mod inputs;
mod limits;
mod mutate;
mod planted;
mod resources;
mod secrets;
mod targets;
mod text;

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use crate::common::{Captured, shell};
use tempfile::TempDir;

/// A codec, a data set, latents and an operator, all tiny.
static FIXTURE: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let codec = "\
data: {split: split.json, stats: stats.json}
model: {patch: 8, latent: 4, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {floor: 0.1}
training: {updates: 6, batch_size: 4, validation_samples: 4, ema: 0.5}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 2, keep_last: 9}
";
    let operator = "\
data: {train: latents/train, validation: latents/validation}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {validation_steps: 2}
training: {updates: 2, batch_size: 4}
optimizer: {method: {kind: sgd}, learning_rate: 1e-3}
";
    std::fs::write(folder.path().join("codec.yaml"), codec).unwrap();
    std::fs::write(folder.path().join("operator.yaml"), operator).unwrap();
    let script =
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 64 --frames 9 --seed 1 -o raw
        ds-prep split raw/* --seed 1 -o split.json
        ds-prep stats split.json -o stats.json
        train-stage codec -c codec.yaml --run run
        latent-cache make run --data split.json -o latents
        ckpt export run -o weights.safetensors
        evaluate score run --data split.json --steps 2 --starts 1 -o scored
        evaluate leaderboard add scored --board board.jsonl --label a";
    let output = shell(folder.path(), script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    folder
});

/// A copy of the fixture that a test may damage.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = FIXTURE.path().join(".");
    let done = Command::new("cp").arg("-a").args([&from, folder.path()]).status().unwrap();
    assert!(done.success());
    folder
}

/// Runs a command within two minutes (the machine may have other load) and 3 GiB of address space; it must exit by
/// itself, with a message and no panic.
fn run_checked(folder: &Path, command: &str) -> Captured {
    let output = shell(folder, &format!("ulimit -v 3145728; exec timeout -s KILL 120 {command}"));
    assert!(
        output.status.is_some_and(|status| status != 124 && status != 137),
        "{command}: no end"
    );
    for word in ["panicked", "internal error", "memory allocation"] {
        assert!(!output.stderr.contains(word), "{command}: {}", output.stderr);
    }
    output
}
