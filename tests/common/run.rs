//! A small `train-stage` run for tests to stop, kill and restart.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Captured, shell};
use test_support::torture;

/// `updates` is the length of the whole run; it saves and validates often.
pub const CONFIG: &str = "seed: 3
data: {split: split.json, stats: stats.json, random_shift: true, random_reflection: true}
model: {patch: 8, latent: 2, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {queries: 40, reencoding: 0.1, reencoding_warmup: 50}
training: {updates: 400, batch_size: 8, log_every: 1, validate_every: 11, validation_samples: 8, ema: 0.9,
  attempts_without_progress: 1000}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 5}
";

/// A folder with data and `codec.yaml`.
pub fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("codec.yaml"), CONFIG).unwrap();
    let output = shell(
        folder.path(),
        "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    folder
}

/// The number of rounds: `short` under `make test`, `long` under `make torture`.
pub fn rounds(short: usize, long: usize) -> usize {
    if torture() { long } else { short }
}

/// A running training command.
pub struct Run {
    pub child: Child,
    stderr: PathBuf,
}

/// The complete command line of a run.
pub fn command(folder: &Path, run: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train-stage"));
    command.args(["codec", "-c", "codec.yaml", "--run", run]).args(more).current_dir(folder);
    command.env_remove("LONGHAUL_END_TIME").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Starts a run without waiting; `set` may change the command.
pub fn start_with(folder: &Path, run: &str, more: &[&str], set: impl FnOnce(&mut Command)) -> Run {
    let mut command = command(folder, run, more);
    set(&mut command);
    spawn(folder, command)
}

/// Starts a command that is a run, without waiting.
pub fn spawn(folder: &Path, mut command: Command) -> Run {
    static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let n = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let stderr = folder.join(format!("talk-{n}"));
    reset_ignored_signals();
    command.stderr(File::create(&stderr).unwrap());
    Run { child: command.spawn().unwrap(), stderr }
}

/// Under `nohup`, or in the background of a script, this process inherits ignored HUP or INT signals, which its
/// children would inherit in turn and leave ignored. A signal with a handler is reset to its default when a child is
/// executed.
fn reset_ignored_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let names = [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT];
        for signal in names.into_iter().filter(|signal| unix::signal::is_ignored(*signal)) {
            let flag = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
            signal_hook::flag::register(signal, flag).unwrap();
        }
    });
}

/// Starts a run without waiting.
pub fn start(folder: &Path, run: &str, more: &[&str]) -> Run {
    start_with(folder, run, more, |_| {})
}

/// Starts a run and suspends it after `update`. If the test itself is delayed and the run finishes first, it tries
/// again with another run. Returns the name of the run.
pub fn start_and_stop(folder: &Path, update: u64, set: impl Fn(&mut Command)) -> (String, Run) {
    let started = (0..20).find_map(|n| {
        let name = format!("run-{n}");
        let mut run = start_with(folder, &name, &[], &set);
        run.wait_for_update(&folder.join(&name), update);
        run.suspend().then_some((name, run))
    });
    started.expect("each was over before it could be stopped")
}

/// Runs it to completion.
pub fn train(folder: &Path, run: &str, more: &[&str]) -> (Option<i32>, String) {
    start(folder, run, more).end()
}

/// A test that fails leaves no process running.
impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended
        let _ = self.child.wait();
    }
}

/// While this is alive, programs that were started in the folder wait at failpoints with the action `hold`.
pub struct Hold(PathBuf);

impl Hold {
    pub fn new(folder: &Path) -> Self {
        let path = folder.join(unix::fail::HOLD);
        std::fs::write(&path, "").unwrap();
        Self(path)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // else nobody waits
    }
}

/// Sends a signal once; returns whether the process existed.
pub fn send(pid: u32, name: &str) -> bool {
    let signal = match name {
        "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        "KILL" => Signal::KILL,
        _ => panic!("no signal {name}"),
    };
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).is_ok()
}

impl Run {
    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, name: &str) {
        send(self.child.id(), name);
    }

    /// Suspends it as job control does, and waits until none of its threads runs; false if it has ended.
    pub fn suspend(&mut self) -> bool {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_still = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            text.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
        };
        wait_until(|| {
            let mut tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
            tasks.all(is_still) || !self.is_alive()
        });
        self.is_alive()
    }

    /// Waits until a pending signal was delivered, so that it can be sent again.
    pub fn wait_for_delivery(&mut self) {
        let path = format!("/proc/{}/status", self.child.id());
        let none_waits = || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let mut masks = text.lines().filter_map(|line| line.strip_prefix("ShdPnd:"));
            masks.all(|mask| mask.trim().bytes().all(|digit| digit == b'0'))
        };
        wait_until(none_waits);
    }

    /// Waits for its end; returns the exit status and stderr.
    pub fn end(mut self) -> (Option<i32>, String) {
        wait_until(|| !self.is_alive());
        let status = self.child.wait().unwrap().code();
        (status, std::fs::read_to_string(&self.stderr).unwrap())
    }

    /// Its stderr so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// Whether it is still running.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until its signal handlers are installed, or it has ended.
    pub fn wait_for_handlers(&mut self) {
        let path = format!("/proc/{}/status", self.child.id());
        let caught = || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            // HUP, INT, USR1, USR2 and TERM.
            mask.is_some_and(|mask| [1, 2, 10, 12, 15].iter().all(|n| mask & 1 << (n - 1) != 0))
        };
        wait_until(|| caught() || !self.is_alive());
    }

    /// Waits until the log of `run` contains `update`, or the process has ended.
    pub fn wait_for_update(&mut self, run: &Path, update: u64) {
        wait_until(|| newest_update(run) >= update || !self.is_alive());
    }
}

/// Flips a bit at the fraction `place` of a file; a second call restores it.
pub fn flip(path: &Path, place: f64, bit: usize) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let at = (file.metadata().unwrap().len() as f64 * place) as u64;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

/// Waits until `condition` is true, for at most five minutes: long enough for a machine under load.
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The complete records of a log, including superseded ones; empty if there is no log.
pub fn records(run: &Path) -> Vec<Value> {
    let mut records = Vec::new();
    let _ = unix::log::each(&run.join("log.jsonl"), |record| records.push(Value::Object(record)));
    records
}

/// The newest update in the log, of any attempt.
pub fn newest_update(run: &Path) -> u64 {
    records(run).iter().filter_map(|record| record["update"].as_u64()).max().unwrap_or(0)
}

/// The content of `status.json`.
pub fn status(run: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("status.json")).unwrap()).unwrap()
}

/// What must be equal for two runs: the tensors of the last checkpoint, and the records of the log that were not
/// superseded.
pub fn outcome(run: &Path) -> Vec<String> {
    let last = run.join("ckpt/step-00000400");
    let mut all = Vec::new();
    for name in ["model", "ema", "optim-0-of-1", "buffers"] {
        let file = last.join(format!("{name}.safetensors"));
        all.push(unix::publish::hash_file(&file).unwrap());
    }
    all.extend(test_support::logged(run));
    all
}

/// Asserts that every checkpoint verifies, and that no temporary files are left.
pub fn all_verify(folder: &Path, run: &str) {
    let output: Captured = shell(folder, &format!("ckpt verify {run} >&2"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
}
