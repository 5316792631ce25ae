//! End-to-end tests of `ckpt`.

mod change;
mod diff;
mod exchange;
mod look;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use learn::checkpoint::{KeepRules, Saver, State};
use serde_json::{Value, json};
use tensor::Tensor;

struct Captured {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Captured {
    fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn command(words: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt"));
    command.args(words).args(paths).stdin(Stdio::null());
    command
}

fn ckpt(words: &[&str], paths: &[&Path]) -> Captured {
    let Output { status, stdout, stderr } = command(words, paths).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Captured { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

fn state(update: u64) -> State {
    let weight = Tensor::from_slice(&[1.0_f32, -2.0, f32::NAN, 4.0, 5.0, -6.0], &[2, 3]);
    let model = vec![
        ("core.weight".to_string(), weight),
        ("core.bias".to_string(), Tensor::from_slice(&[0.5_f64], &[1])),
        ("none".to_string(), Tensor::from_slice(&[0.0_f32; 0], &[0, 4])),
    ];
    let optim = vec![("core.weight.m".to_string(), Tensor::from_slice(&[0.0_f32; 6], &[2, 3]))];
    State {
        tensors: [("model".to_string(), model), ("optim-0-of-1".to_string(), optim)].into(),
        update,
        progress: json!({"samples": update * 16}),
        metrics: json!({"nrmse": (update as f64 - 20.0).abs() / 100.0}),
        seed: 17,
        task: "codec".into(),
        config_hash: "c0ffee".into(),
        ..State::default()
    }
}

/// A run with checkpoints of the updates 10, 20 and 30, of which 20 is the best.
fn run() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let rules =
        KeepRules { last: 3, best: 1, every: 0, metric: "nrmse".into(), ..KeepRules::default() };
    let mut saver = Saver::new(&run.join("ckpt"), rules, 1).unwrap();
    for update in [10, 20, 30] {
        saver.save(state(update)).unwrap();
    }
    saver.finish().unwrap();
    (folder, run)
}

fn flip(path: &Path, from_end: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() - 1 - from_end;
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}
