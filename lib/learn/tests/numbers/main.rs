//! Bad numbers: values that are not finite, far too large, or computed wrongly by the hardware. The training loop and
//! its files are the real ones; the task is small and injects faults on request.

mod fine_tune;
mod machine;
mod non_finite;
mod overlap;
mod parts;
mod ranks;
mod spike;
mod stage;
mod variants;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use data::loader::Order;
use dist::{Collective, Solo};
use learn::checkpoint;
use learn::task::ConfiguredTask;
use learn::train::{TrainJob, train};
use report::evaluation::MetricsFile;
use serde_json::{Value, json};
use stage::{Mean, MeanConfig};
use tensor::random::{Philox, Purpose};
use test_support::{logged, seed};
use unix::status::{State, Status};

const BATCH: u64 = 2;

/// A run in a separate folder.
struct Run {
    folder: PathBuf,
    config: Value,
}

/// `keys` updated with those of `more`.
fn with(mut keys: Value, more: Value) -> Value {
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    keys
}

impl Run {
    /// A run of 60 updates with these faults and training keys. With losses of a few samples and a window of 8 to 16,
    /// spikes would occur by chance; with these settings only a sample that is wrong by orders of magnitude is a spike.
    fn new(folder: &Path, name: &str, seed: u64, faults: Value, training: Value) -> Self {
        let keys = json!({
            "updates": 60, "batch_size": BATCH, "accumulation": 2, "ema": 0.9, "validate_every": 5,
            "log_every": 1, "spike": {"window": 16, "skip": 4, "factor": 1000},
        });
        let keys = with(keys, training);
        let config = json!({
            "seed": seed, "data": faults, "model": {}, "loss": {}, "training": keys,
            "optimizer": {"method": {"kind": "adamw"}, "learning_rate": 0.05},
            "checkpoint": {"every": 7, "keep_last": 1},
        });
        Self { folder: folder.join(name), config }
    }

    /// Runs one attempt in this process; returns its exit status.
    fn start(&self) -> u8 {
        self.start_on(&Solo)
    }

    /// Runs this rank's part of an attempt.
    fn start_on(&self, ranks: &dyn Collective) -> u8 {
        let device = match std::env::var("NUMBERS_DEVICE").as_deref() {
            Ok("emu") => tensor::Device::Emu,
            _ => tensor::Device::Cpu,
        };
        self.start_in(device, ranks)
    }

    /// [`Run::start_on`] on a device.
    fn start_in(&self, device: tensor::Device, ranks: &dyn Collective) -> u8 {
        let config: MeanConfig = serde_json::from_value(self.config.clone()).unwrap();
        let task = ConfiguredTask::new::<Mean>(config).unwrap();
        let job = TrainJob::new(task, self.folder.clone(), device, ranks);
        match train(job) {
            Ok(exit) => {
                ranks.close().unwrap();
                exit as u8
            }
            Err(error) => {
                println!("{error}");
                error.exit as u8
            }
        }
    }

    /// Runs an attempt in a process that sends itself a signal: `kill:N` or `term:N` at its N-th computation, `none:0`
    /// for never. Returns its exit status; `None` when it was killed.
    fn start_and_die(&self, how: &str) -> Option<u8> {
        let text = self.start_child(how, "cpu");
        text.lines().find_map(|line| line.split_once("ended with ")?.1.parse().ok())
    }

    /// Like [`Run::start_and_die`], on a device; returns what the process printed.
    fn start_child(&self, how: &str, device: &str) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_trains", "--exact", "--ignored", "--nocapture"])
            .env("NUMBERS_FOLDER", &self.folder)
            .env("NUMBERS_CONFIG", self.config.to_string())
            .env("NUMBERS_DEVICE", device)
            .env(stage::DIE, how)
            .stderr(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn status(&self) -> Status {
        unix::status::read(&self.folder.join("status.json")).unwrap().unwrap()
    }

    /// Records of a kind: without superseded ones, or all that were ever written.
    fn records(&self, kind: &str, all: bool) -> Vec<Value> {
        let path = self.folder.join("log.jsonl");
        let mut records = Vec::new();
        match all {
            true => drop(unix::log::each(&path, |record| records.push(record)).unwrap()),
            false => records = unix::log::read(&path).unwrap().records,
        }
        let of_kind = records.into_iter().filter(|record| record["kind"] == kind);
        of_kind.map(Value::Object).collect()
    }

    fn checkpoints(&self) -> Vec<u64> {
        let list = checkpoint::list(&self.folder.join("ckpt")).unwrap();
        list.iter().map(|entry| entry.step).collect()
    }

    /// What must be equal however often a run was interrupted.
    fn outcome(&self) -> Outcome {
        let newest = checkpoint::load_newest(&self.folder.join("ckpt")).unwrap().unwrap();
        let files = newest.manifest.files.iter();
        let tensors = files.map(|file| (file.name.clone(), file.blake3.clone())).collect();
        let mut progress = newest.manifest.progress.clone();
        for key in ["seconds", "device_seconds"] {
            progress.as_object_mut().unwrap().remove(key);
        }
        Outcome { tensors, progress, log: logged(&self.folder) }
    }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    tensors: BTreeMap<String, String>,
    progress: Value,
    log: Vec<String>,
}

/// A sample that update `update` (from 1) reads when no samples were skipped.
fn sample_of(seed: u64, update: u64) -> u64 {
    let order = Order::new(seed, 1_000_000, BATCH).unwrap();
    order.sample((update - 1) * 2 * BATCH + 1)
}

/// A task outside of lib/tasks, in `examples/new_task.rs`, which `cargo test` builds along with the tests: it checks
/// itself that a run that was killed ends with the same bits as an uninterrupted one.
#[test]
fn a_task_of_ones_own_trains_resumes_and_has_a_best_checkpoint() {
    let (folder, here) = (tempfile::tempdir().unwrap(), std::env::current_exe().unwrap());
    let program = here.ancestors().nth(2).unwrap().join("examples/new_task");
    let output = Command::new(program).arg(folder.path()).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    // Larger is better: the best of six validations, which is also in the log.
    let log = unix::log::read(&folder.path().join("killed/log.jsonl")).unwrap().records;
    let all: Vec<_> = log.iter().filter(|record| record["kind"] == "validation").collect();
    let accuracy = |r: &serde_json::Map<String, Value>| r["accuracy"].as_f64().unwrap();
    let best = all.iter().map(|record| accuracy(record)).fold(0.0, f64::max);
    assert!(all.len() == 6 && best > 0.8, "{all:?}");
    // It is scored on samples of its own, of which each is predicted.
    let first = all.iter().find(|record| accuracy(record) == best).unwrap();
    let step = format!("ckpt/step-{:08}", first["update"].as_u64().unwrap());
    let scores = MetricsFile::read(&folder.path().join("scores")).unwrap();
    assert!(scores.subject.models["classes"]["checkpoint"].as_str().unwrap().ends_with(&step));
    assert!((scores.scores.metric("accuracy").unwrap().value - best).abs() < 0.1, "{told} {best}");
    assert_eq!(told.lines().filter(|line| line.starts_with("{\"class\":")).count(), 1000);
}

/// Not a test of its own: the process that other tests start, which kills itself.
#[test]
#[ignore = "run by the tests of interrupted runs"]
fn child_that_trains() {
    let Some(folder) = std::env::var_os("NUMBERS_FOLDER") else { return };
    let config = std::env::var("NUMBERS_CONFIG").unwrap();
    let run = Run { folder: folder.into(), config: serde_json::from_str(&config).unwrap() };
    let exit = run.start_on(&*dist::open(|| unix::Exit::Failure).unwrap());
    println!("\nended with {exit}");
    println!("computed {}", stage::COMPUTATIONS.load(std::sync::atomic::Ordering::SeqCst));
}
