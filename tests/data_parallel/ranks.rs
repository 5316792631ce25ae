//! Runs on several ranks: starting them, finding their processes, and comparing outcomes.

use crate::common::run::{self, CONFIG, Run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether several ranks can be started on this machine.
pub fn can_start() -> bool {
    test_support::require_program("mpirun", &["--version"])
}

/// A folder with data; its runs have the same bits on 1, 2, 4 and 8 ranks.
pub fn prepare(change: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = run::prepare();
    let mut config = CONFIG.replace("training: {", "training: {deterministic: true, ");
    for (from, to) in change {
        assert!(config.contains(from), "{from}");
        config = config.replace(from, to);
    }
    fs::write(folder.path().join("codec.yaml"), config).unwrap();
    folder
}

/// Starts a run on `ranks` ranks.
pub fn start(folder: &Path, ranks: usize, run: &str, more: &[&str]) -> Run {
    start_each(folder, &vec!["RANK=any"; ranks], run, more)
}

/// Starts a run with one rank per setting, which is added to the environment of that rank: `FAIL=...`.
pub fn start_each(folder: &Path, settings: &[&str], run: &str, more: &[&str]) -> Run {
    start_by(Command::new("mpirun"), folder, settings, run, more)
}

/// The same with a command that is mpirun, or ends with it.
pub fn start_by(
    mut mpirun: Command,
    folder: &Path,
    settings: &[&str],
    run: &str,
    more: &[&str],
) -> Run {
    let train = run::command(folder, run, more);
    mpirun.args(["--bind-to", "none"]);
    for (rank, setting) in settings.iter().enumerate() {
        mpirun.args(if rank == 0 { &[][..] } else { &[":"] });
        mpirun.args(["-n", "1", "env", setting]).arg(train.get_program()).args(train.get_args());
    }
    mpirun.current_dir(folder).env_remove("LONGHAUL_END_TIME");
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    mpirun.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("RAYON_NUM_THREADS", "1");
    run::spawn(folder, mpirun)
}

/// The processes of a run, by rank.
pub fn processes(folder: &Path, run: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let words = |name: &str| {
            let text = String::from_utf8_lossy(&read(name)).into_owned();
            text.split('\0').map(str::to_string).collect::<Vec<_>>()
        };
        let command = words("cmdline");
        let is_rank = command.first().is_some_and(|program| program.ends_with("train-stage"));
        let here = fs::read_link(entry.path().join("cwd"))
            .is_ok_and(|cwd| cwd == folder.canonicalize().unwrap());
        if is_rank && here && command.iter().any(|word| word == run) {
            let rank = words("environ")
                .iter()
                .find_map(|v| v.strip_prefix("OMPI_COMM_WORLD_RANK=")?.parse::<usize>().ok());
            found.push((rank, pid));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, pid)| pid).collect()
}

/// What must be equal after this many updates, whatever the number of ranks and of files.
pub fn outcome(run: &Path, updates: u64) -> Vec<String> {
    let last = run.join(format!("ckpt/step-{updates:08}"));
    let loaded = learn::checkpoint::load(&last).unwrap();
    let bits = |(name, tensor): (String, tensor::Tensor)| {
        format!("{name} {}", blake3::hash(tensor.as_bytes()).to_hex())
    };
    let mut all: Vec<String> = Vec::new();
    for stem in ["model", "ema", "buffers"] {
        all.extend(loaded.tensors(stem).unwrap().into_iter().map(bits));
    }
    all.extend(loaded.optimizer().unwrap().into_iter().map(bits));
    all.extend(test_support::logged(run));
    all
}

pub fn same(a: &[String], b: &[String], what: &str) {
    let differ = a.iter().zip(b).find(|(a, b)| a != b);
    assert!(a.len() == b.len() && differ.is_none(), "{what}: {differ:?}, {} {}", a.len(), b.len());
}
