//! The scripts of `slurm/` with a fake `srun` that only prints its arguments. With a real SLURM: tests/slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Captured, script, see};

fn slurm(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("slurm").join(name)
}

/// A folder with an `srun` that prints its arguments, one per line, and the variable MADE.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("srun"), "printf '%s\\n' \"$@\"; echo \"made=${MADE-}\"");
    folder
}

/// Runs a script with arguments in `folder`, with `bash` as SLURM does, or by its shebang line.
fn run(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Captured {
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

#[test]
fn a_chain_gives_the_operator_its_own_latents() {
    let folder = place();
    for file in ["c.yaml", "o.yaml", "split.json"] {
        fs::write(folder.path().join(file), "").unwrap();
    }
    script(&folder.path().join("squeue"), "");
    script(
        &folder.path().join("sbatch"),
        "echo \"$@\" >> submitted; echo $((100 + $(wc -l < submitted)))",
    );
    for checked in ["train-stage", "evaluate"] {
        script(&folder.path().join(checked), &format!("echo {checked} \"$@\" >> checked"));
    }
    let chain = slurm("chain.sh");
    let chain_with = |to: &str, options: &[&str], variables: &[(&str, &str)]| {
        let words = [chain.to_str().unwrap(), "c.yaml", "o.yaml", "split.json", to];
        run(folder.path(), &[&words[..], options].concat(), variables)
    };
    let chain = |to: &str| chain_with(to, &[], &[]);
    let output = chain("chains/a/");
    assert_eq!(
        (output.status, output.stdout.as_str()),
        (Some(0), "101 102 103 104\n"),
        "{}",
        output.stderr
    );
    let submitted = fs::read_to_string(folder.path().join("submitted")).unwrap();
    let operator = submitted.lines().nth(2).unwrap();
    for part in
        ["afterok:102", "data.train=chains/a/latents/train ", "validation=chains/a/latents/v"]
    {
        assert!(operator.contains(part), "{part}: {operator}");
    }
    let checked = fs::read_to_string(folder.path().join("checked")).unwrap();
    let checks: Vec<&str> = checked.lines().collect();
    assert!(checks[0].starts_with("train-stage codec -c c.yaml") && checks[0].ends_with("--check"));
    assert!(checks[1].starts_with("evaluate check --config o.yaml"), "{checked}");
    // Nothing is submitted if no step could work.
    for (options, variables) in [
        (&["--time=5"][..], &[][..]),
        (&["-t", "4:30"], &[]),
        (&[], &[("SBATCH_TIMELIMIT", "3")]),
        (&["--time=00:20:00"], &[("LONGHAUL_MARGIN", "20m")]),
    ] {
        let output = chain_with("short", options, variables);
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{options:?}");
        assert!(output.stderr.contains("time limit"), "{}", output.stderr);
    }
    // sbatch treats zero as no limit.
    for (options, variables) in [
        (&["--time=0"][..], &[][..]),
        (&["-t", " 0:00 "], &[]),
        (&["--time=INFINITE"], &[]),
        (&[], &[("SBATCH_TIMELIMIT", "0")]),
        (&["--time= 60 "], &[("LONGHAUL_MARGIN", " 20m\t")]),
    ] {
        let output = chain_with("long", options, variables);
        assert_eq!(output.status, Some(0), "{options:?} {variables:?}: {}", output.stderr);
        fs::remove_dir_all(folder.path().join("long")).unwrap();
    }
    for checked in ["train-stage", "evaluate"] {
        script(&folder.path().join(checked), "echo too few frames >&2; exit 2");
        let output = chain("wrong");
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{}", output.stderr);
        script(&folder.path().join(checked), "");
    }
    assert!(!folder.path().join("short").exists() && !folder.path().join("wrong").exists());
    let output = chain("chain%j");
    assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{}", output.stderr);
    assert!(!folder.path().join("chain%j").exists());
    // The message of sbatch is shown completely.
    script(
        &folder.path().join("sbatch"),
        "echo 'no such option: x' >&2; echo 'Try --help' >&2; exit 1",
    );
    let output = chain("b");
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("no such option: x; Try --help"), "{}", output.stderr);
}
