//! The scripts of `slurm/` with a fake `srun` that only prints its arguments. With a real SLURM: tests/slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Captured, script, see};

pub fn slurm(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm").join(name)
}

/// A folder with an `srun` that prints its arguments, one per line, and the variable MADE.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("srun"), "printf '%s\\n' \"$@\"; echo \"made=${MADE-}\"");
    folder
}

/// Runs a script with arguments in `folder`, with `bash` as SLURM does, or by its shebang line.
pub fn run(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Captured {
    let programs = Path::new(env!("CARGO_BIN_EXE_timekeep")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{}:{path}", folder.display(), programs.display());
    let mut command = Command::new(words[0]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLURM_") {
            command.env_remove(name);
        }
    }
    command.args(&words[1..]).current_dir(folder).env("PATH", path);
    see(command.envs(variables.iter().copied()))
}

#[test]
fn a_setup_file_may_be_careless() {
    let folder = place();
    let setup = folder.path().join("setup.sh");
    // An unset variable, a bash builtin, positional parameters of the caller, and a final status of no significance.
    fs::write(&setup, "source /dev/null; echo \"$UNSET$#\"; export MADE=here; false\n").unwrap();
    fs::write(folder.path().join("list"), "none\nevaluate --data a*b\n").unwrap();
    let setup = setup.to_str().unwrap();
    let (train, array) = (slurm("train.sbatch"), slurm("array.sbatch"));
    let words = ["bash", train.to_str().unwrap(), "ckpt", "a b"];
    let output = run(folder.path(), &words, &[("LONGHAUL_SETUP", setup)]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert_eq!(output.stdout, "0\n--kill-on-bad-exit=1\n--mpi=none\nckpt\na b\nmade=here\n");
    assert!(output.stderr.contains("ended with 1; continuing"), "{}", output.stderr);
    let variables =
        [("LONGHAUL_SETUP", setup), ("SLURM_ARRAY_TASK_ID", "2"), ("SLURM_NTASKS", "4")];
    let output = run(folder.path(), &["bash", array.to_str().unwrap(), "list"], &variables);
    let expected = "0\n--kill-on-bad-exit=1\n--mpi=pmix\nevaluate\n--data\na*b\nmade=here\n";
    assert_eq!(output.stdout, expected, "{}", output.stderr);
    for setup in ["setup.sh", "/no/such/setup.sh"] {
        let output = run(folder.path(), &words, &[("LONGHAUL_SETUP", setup)]);
        assert_eq!((output.status, output.stdout.as_str()), (Some(66), ""));
        assert!(output.stderr.contains(setup), "{}", output.stderr);
    }
}

#[test]
fn both_templates_end_alike() {
    let end = |name: &str| {
        let text = fs::read_to_string(slurm(name)).unwrap();
        text.split_once("# ---- the same in").unwrap().1.to_string()
    };
    assert_eq!(end("train.sbatch"), end("array.sbatch"));
}

#[test]
fn every_script_can_be_run() {
    let files = fs::read_dir(slurm("")).unwrap().map(|file| file.unwrap().path());
    let scripts: Vec<PathBuf> =
        files.filter(|f| f.extension().is_some_and(|e| e == "sh")).collect();
    assert!(scripts.len() >= 4, "{scripts:?}");
    for file in scripts {
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{} is no program", file.display());
    }
}
