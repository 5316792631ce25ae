//! A run that is killed or stopped and then restarted ends with the same bits as an uninterrupted one: weights,
//! average, optimizer, and everything its log records of updates and validations.

use crate::common::run::{newest_update, records, send};
use crate::common::{Captured, shell};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use test_support::{Random, logged, seed};

const OPERATOR: &str = "seed: 3
data: {train: latents/train, validation: latents/validation, strides: [1, 2], random_shift: true, noise: 0.01, start_bias: 1.5}
model:
  backbone: {kind: pdet_stack, hidden: 24, depth: 2, kernel_size: 3, attention: {kind: multi_head, heads: 2}}
loss: {horizons: [1, 2], validation_steps: 3, spectral_energy: 0.01}
training: {updates: 240, batch_size: 4, accumulation: 2, clip_grad_norm: 0.5, ema: 0.95, validate_every: 16,
  validation_samples: 8, log_every: 1, attempts_without_progress: 20}
# Muon for matrices, AdamW for all other parameters.
optimizer: {method: {kind: muon, betas: [0.9, 0.95]}, learning_rate: 3e-3, weight_decay: 0.01}
schedule:
  - {kind: linear, updates: 20, start_factor: 0.1, end_factor: 1}
  - {kind: cosine, end_factor: 0.1}
checkpoint: {every: 7, keep_last: 3}
";

/// Fields, a codec and latents in a separate folder.
fn prepare(folder: &Path) {
    std::fs::write(folder.join("operator.yaml"), OPERATOR).unwrap();
    let output = shell(
        folder,
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 64 --frames 21 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json
         cat > codec.yaml <<'END'
         data: {split: split.json, stats: stats.json, random_shift: true, random_reflection: true}
         model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}
         loss: {reencoding: 0.1}
         training: {updates: 60, batch_size: 8, log_every: 1, validate_every: 20, ema: 0.9}
         optimizer: {method: {kind: sgd, momentum: 0.9}, learning_rate: 1e-2}
         checkpoint: {every: 10}
END
         train-stage codec -c codec.yaml --run codec
         latent-cache make codec --data split.json -o latents",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
}

fn train(folder: &Path, run: &str, more: &str) -> Captured {
    shell(folder, &format!("{more} train-stage operator -c operator.yaml --run {run}"))
}

/// What must be equal: hashes of the tensors of the last checkpoint, and the log.
#[derive(Debug, PartialEq)]
struct Outcome {
    tensors: BTreeMap<String, String>,
    log: Vec<String>,
}

fn outcome(folder: &Path, run: &str) -> Outcome {
    let last = folder.join(run).join("ckpt/step-00000240");
    let mut tensors = BTreeMap::new();
    for entry in std::fs::read_dir(&last).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            tensors.insert(name, unix::publish::hash_file(&path).unwrap());
        }
    }
    assert_eq!(tensors.len(), 4, "model, average, optimizer, constants: {tensors:?}");
    let log = logged(&folder.join(run));
    assert_eq!(log.len(), 240 + 15);
    Outcome { tensors, log }
}

fn start(folder: &Path, run: &str) -> Child {
    start_with(folder, run, &[])
}

/// Like `start`, with more configuration.
fn start_with(folder: &Path, run: &str, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_train-stage"))
        .args(["operator", "-c", "operator.yaml", "--run", run])
        .args(more)
        .current_dir(folder)
        .env_remove("LONGHAUL_END_TIME")
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the log contains `update`, or the run has ended.
fn wait_for_update(folder: &Path, run: &str, update: u64, child: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(300);
    let run = folder.join(run);
    while newest_update(&run) < update && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "no update {update} of {}", run.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_ten_times_and_restarted_it_ends_with_the_same_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let output = train(folder, "whole", "");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let whole = outcome(folder, "whole");

    let seed = seed();
    let mut random = Random(seed);
    let (mut killed, mut runs) = (0, 0);
    // One run suffices, unless this test is delayed and attempts finish before they are killed.
    while killed < 8 {
        runs += 1;
        assert!(runs <= 10, "seed {seed}: only {killed} starts of {runs} runs could be killed");
        let name = format!("killed-{runs}");
        let mut target = 0;
        for _ in 0..10 {
            // A random moment after a random update: during an update, a validation or a save; or, with nothing to wait
            // for, while the program starts.
            target += (23.0 * random.uniform()) as u64;
            let mut child = start(folder, &name);
            wait_for_update(folder, &name, target, &mut child);
            std::thread::sleep(Duration::from_secs_f64(0.02 * random.uniform()));
            killed += usize::from(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let output = train(folder, &name, "");
        assert_eq!(output.status, Some(0), "seed {seed}: {}", output.stderr);
        let after = outcome(folder, &name);
        assert!(after == whole, "seed {seed}: a killed run ended differently");
    }

    // A finished run stays finished: another start changes nothing and ends at once.
    let output = train(folder, "killed-1", "");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("nothing to do"), "{}", output.stderr);

    threads_change_nothing(folder, &whole);
    warned_by_timekeep_it_stops_and_resumes(folder, &whole);
    rewinds_are_exact_too(folder);
}

/// Batches of four and a changing horizon cause real spikes, here more than ten.
fn rewinds_are_exact_too(folder: &Path) {
    std::fs::write(
        folder.join("spikes.yaml"),
        "training: {on_spike: rewind, spike: {window: 32, skip: 3, rewinds: 1000}}",
    )
    .unwrap();
    let script =
        |run: &str| format!("train-stage operator -c operator.yaml -c spikes.yaml --run {run}");
    let output = shell(folder, &script("around"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let whole = outcome(folder, "around");
    let log = records(&folder.join("around"));
    let rewinds = log.iter().filter(|record| record["kind"] == "rewind").count();
    assert!(rewinds > 3, "{rewinds} rewinds");

    let seed = seed();
    let mut random = Random(seed);
    for part in 0..6 {
        let target = 40 * part + (40.0 * random.uniform()) as u64;
        let mut child = start_with(folder, "around-killed", &["-c", "spikes.yaml"]);
        wait_for_update(folder, "around-killed", target, &mut child);
        std::thread::sleep(Duration::from_secs_f64(0.02 * random.uniform()));
        // Half of them stop, and leave checkpoints at updates that no rewind may use.
        send(child.id(), if random.uniform() < 0.5 { "TERM" } else { "KILL" });
        child.wait().unwrap();
    }
    let output = shell(folder, &script("around-killed"));
    assert_eq!(output.status, Some(0), "seed {seed}: {}", output.stderr);
    let after = outcome(folder, "around-killed");
    assert!(after == whole, "seed {seed}: a killed run with rewinds ended differently");
}

fn threads_change_nothing(folder: &Path, whole: &Outcome) {
    for threads in [1, 3] {
        let run = format!("threads-{threads}");
        let script = format!(
            "train-stage operator -c operator.yaml -s training.threads={threads} \
             -s training.workers={threads} --run {run}"
        );
        let output = shell(folder, &script);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert!(outcome(folder, &run) == *whole, "{threads} threads ended differently");
    }
}

/// TERM to timekeep reaches the run, which saves and exits with 75.
fn warned_by_timekeep_it_stops_and_resumes(folder: &Path, whole: &Outcome) {
    let seed = seed();
    let mut random = Random(seed);
    let (mut stopped, mut runs) = (0, 0);
    // One run suffices, unless this test is delayed and an attempt finishes before the signal.
    while stopped < 3 {
        runs += 1;
        assert!(runs <= 10, "seed {seed}: only {stopped} starts of {runs} runs could be stopped");
        let name = format!("stopped-{runs}");
        for part in 0..3 {
            let target = 60 * part + 1 + (50.0 * random.uniform()) as u64;
            let mut child = Command::new(env!("CARGO_BIN_EXE_timekeep"))
                .args(["run", "--", env!("CARGO_BIN_EXE_train-stage"), "operator"])
                .args(["-c", "operator.yaml", "--run", &name])
                .current_dir(folder)
                .env_remove("LONGHAUL_END_TIME")
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            wait_for_update(folder, &name, target, &mut child);
            send(child.id(), "TERM");
            let status = child.wait().unwrap().code();
            let is_over = newest_update(&folder.join(&name)) == 240;
            assert!(
                status == Some(75) || status == Some(0) && is_over,
                "{status:?} at update {target}, seed {seed}"
            );
            stopped += usize::from(status == Some(75));
        }
        let output = train(folder, &name, "timekeep run --limit 1h -- ");
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert!(outcome(folder, &name) == *whole, "seed {seed}: a stopped run ended differently");
    }
}
