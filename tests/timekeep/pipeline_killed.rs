//! The pipeline of slurm/pipeline.yaml on small data, killed at random moments and run again: its results equal those
//! of an undisturbed one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use test_support::{Random, seed};

use super::pipeline::summary;
use super::templates::slurm;
use crate::common::run::{Hold, records, wait_until};
use crate::common::shell;

const CODEC: &str = "seed: 3
data: {split: elsewhere.json, stats: elsewhere.json, random_shift: true}
model: {patch: 8, latent: 2, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {reencoding: 0.1}
training: {updates: 20, batch_size: 8, log_every: 1, validate_every: 9, validation_samples: 8, ema: 0.9, threads: 1,
  attempts_without_progress: 1000}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 4}
";
const OPERATOR: &str = "seed: 4
data: {train: elsewhere/train, validation: elsewhere/validation}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {horizons: [1, 2], validation_steps: 4}
training: {updates: 30, batch_size: 8, log_every: 1, validate_every: 9, validation_samples: 8, threads: 1,
  attempts_without_progress: 1000}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 4}
";

/// A folder with data, and folders `killed` and `undisturbed` with links to them.
fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = shell(
        folder.path(),
        "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 21 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json
         mkdir configs",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    fs::write(folder.path().join("configs/burgers-codec.yaml"), CODEC).unwrap();
    fs::write(folder.path().join("configs/burgers-operator.yaml"), OPERATOR).unwrap();
    fs::copy(slurm("pipeline.yaml"), folder.path().join("pipeline.yaml")).unwrap();
    for copy in ["killed", "undisturbed"] {
        fs::create_dir(folder.path().join(copy)).unwrap();
        for file in ["data", "split.json", "stats.json", "configs", "pipeline.yaml"] {
            symlink(folder.path().join(file), folder.path().join(copy).join(file)).unwrap();
        }
    }
    folder
}

/// Starts the pipeline in a session of its own.
fn start(folder: &Path, fail: &str) -> Child {
    let programs = Path::new(env!("CARGO_BIN_EXE_timekeep")).parent().unwrap();
    let log = fs::File::options().append(true).create(true).open(folder.join("stderr")).unwrap();
    let mut command = Command::new("setsid");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLURM_") || name == "LONGHAUL_END_TIME" {
            command.env_remove(name);
        }
    }
    command.arg(slurm("pipeline.sh")).args(["--local", "pipeline.yaml"]).current_dir(folder);
    command.env("PATH", super::path_with(programs)).env("LONGHAUL_PAUSE", "1").env("FAIL", fail);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// The processes of a session that have not ended.
fn processes(session: u32) -> Vec<Pid> {
    let of_session = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        let is_alive = !["Z", "X"].contains(&fields[0]);
        let id = entry.file_name().to_str()?.parse().ok()?;
        (is_alive && fields[3] == session.to_string()).then(|| Pid::from_raw(id)).flatten()
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of_session(entry.unwrap())).collect()
}

/// Number of records in the logs of both trainings.
fn logged(folder: &Path) -> usize {
    ["codec", "operator"]
        .map(|run| records(&folder.join("runs/burgers").join(run)).len())
        .iter()
        .sum()
}

/// The summary without its times.
fn results(folder: &Path) -> Value {
    let mut found = summary(&folder.join("runs/burgers"));
    assert!(found.as_object_mut().unwrap().remove("times").is_some());
    found
}

#[test]
fn a_killed_pipeline_has_the_same_results() {
    let place = prepare();
    let seed = seed();
    let mut random = Random(seed);
    let folder = place.path().join("killed");
    let said = || fs::read_to_string(folder.join("stderr")).unwrap();
    for kill in 0..5 {
        // The last kill hits the evaluations, the others a random record of a log. The program waits there, or is slow.
        let (n, with_command) = (3 + random.below(9), kill == 4 || random.below(2) == 0);
        let fail = match (kill, with_command) {
            (4, _) => String::new(),
            (_, true) => format!("log.write:{n}=hold"),
            (_, false) => format!("log.write:{n}+=sleep"),
        };
        let hold = Hold::new(&folder);
        let before = logged(&folder);
        let mut child = start(&folder, &fail);
        let is_there = |folder: &Path| match kill {
            4 => folder.join("runs/burgers/small/status.json").exists(),
            _ => logged(folder) + 1 >= before + n,
        };
        wait_until(|| is_there(&folder) || child.try_wait().unwrap().is_some());
        let is_over = child.try_wait().unwrap().is_some();
        assert!(!is_over || kill == 4, "seed {seed}: ended before kill {kill}: {}", said());
        std::thread::sleep(std::time::Duration::from_millis(random.below(100) as u64));
        let session = Pid::from_raw(child.id() as i32).unwrap();
        if with_command {
            wait_until(|| {
                let left = processes(child.id());
                // Those that ended meanwhile need no signal.
                left.iter().for_each(|id| _ = kill_process(*id, Signal::KILL));
                left.is_empty()
            });
        } else {
            // The script and timekeep; the guard stops the command, which may run beside the next attempt.
            kill_process_group(session, Signal::KILL).unwrap();
        }
        drop(hold);
        child.wait().unwrap();
    }
    assert_eq!(start(&folder, "").wait().unwrap().code(), Some(0), "seed {seed}: {}", said());
    let undisturbed = place.path().join("undisturbed");
    assert_eq!(start(&undisturbed, "").wait().unwrap().code(), Some(0));
    let expected = results(&undisturbed);
    assert_eq!(expected["state"], "done", "{expected}");
    assert_eq!(expected["results"]["full"]["steps"], 16, "{expected}");
    assert_eq!(expected["results"]["full-gate"]["passed"], true, "{expected}");
    assert_eq!(results(&folder), expected, "seed {seed}");
    // Nothing runs again.
    let before = said().len();
    assert_eq!(start(&folder, "").wait().unwrap().code(), Some(0));
    assert!(!said()[before..].contains("child ended"), "{}", &said()[before..]);
}
