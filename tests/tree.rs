//! Rules for the source tree as a whole.

use std::fs;
use std::path::{Path, PathBuf};

const CODE: [&str; 8] = ["rs", "cu", "cuh", "c", "cpp", "h", "py", "sh"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file below bins, lib, slurm and tests, with its text.
fn code() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = ["bins", "lib", "slurm", "tests"].map(|name| root().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
            if path.is_dir() {
                folders.push(path);
            } else if CODE.contains(&extension) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 100, "only {} files of code found", found.len());
    found
}

#[test]
fn no_file_is_longer_than_400_lines() {
    let long = |(path, text): &(PathBuf, String)| {
        let lines = text.lines().count();
        (lines > 400).then(|| format!("{}: {lines} lines", path.display()))
    };
    let long: Vec<String> = code().iter().filter_map(long).collect();
    assert!(long.is_empty(), "what second thing do they hold?\n{}", long.join("\n"));
}

#[test]
fn no_unfinished_code_is_left() {
    // Split in two, so that this file does not match.
    let marks = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("TO", "DO")];
    for (path, text) in code() {
        for (number, line) in text.lines().enumerate() {
            let mark = marks.iter().find(|mark| line.contains(*mark));
            assert!(mark.is_none(), "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

#[test]
fn shell_scripts_have_no_faults() {
    let entries = |folder| fs::read_dir(root().join(folder)).unwrap();
    let mut scripts: Vec<PathBuf> = entries("slurm")
        .chain(entries("tests/gpu"))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "sh" || e == "sbatch"))
        .collect();
    scripts.extend(["tests/amx.sh", "tests/slurm/cluster.sh"].map(|path| root().join(path)));
    assert!(scripts.len() >= 4, "{scripts:?}");
    if test_support::require_program("shellcheck", &["--version"]) {
        let output = std::process::Command::new("shellcheck").args(&scripts).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The crates from the bottom to the top; a crate may only depend on lower levels.
const LEVELS: [&[&str]; 5] =
    [&["unix", "fft"], &["tensor", "report"], &["data", "dist", "study"], &["learn"], &["tasks"]];

/// Dependencies that only one crate may have. NCCL comes with `cudarc`.
const WALLS: [(&str, &[&str]); 10] = [
    ("cudarc", &["tensor", "dist"]),
    ("gemm-common", &["tensor"]),
    ("gemm-f32", &["tensor"]),
    ("gemm-f64", &["tensor"]),
    ("hdf5", &["data"]),
    ("mpi", &["dist"]),
    ("plotters", &["report"]),
    ("rustfft", &["fft"]),
    ("tokenizers", &["data"]),
    ("ureq", &["report"]),
];

/// Names under `[dependencies]` of a crate.
fn dependencies(name: &str) -> Vec<String> {
    let path = root().join("lib").join(name).join("Cargo.toml");
    let text = fs::read_to_string(path).unwrap();
    let table = text.split("\n[").find_map(|table| table.strip_prefix("dependencies]\n")).unwrap();
    let name_of = |line: &str| line.split(['.', '=', ' ']).next().unwrap_or("").to_string();
    table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(name_of).collect()
}

#[test]
fn crates_depend_on_lower_levels_only() {
    let level = |name: &str| LEVELS.iter().position(|level| level.contains(&name));
    let mut crates = 0;
    for entry in fs::read_dir(root().join("lib")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let own = level(&name).unwrap_or_else(|| panic!("{name} is on no level"));
        for dependency in dependencies(&name) {
            let below = level(&dependency).is_none_or(|other| other < own);
            assert!(below, "{name} must not depend on {dependency}");
            let wall = WALLS.iter().find(|(inside, _)| *inside == dependency);
            assert!(
                wall.is_none_or(|(_, owners)| owners.contains(&name.as_str())),
                "{name} depends on {dependency}"
            );
        }
        crates += 1;
    }
    assert_eq!(crates, LEVELS.concat().len());
}

/// timekeep and hpo can be built on a login node without HDF5, MPI and NVRTC.
#[test]
fn timekeep_and_hpo_build_without_hdf5_and_mpi() {
    let cargo = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO"));
        let output = command.args(words).arg("--locked").current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/timekeep");
    let programs = ["--bin", "timekeep", "--bin", "hpo"];
    cargo(&[&["check", "--no-default-features", "--target-dir", folder][..], &programs].concat());
    let built: Vec<String> = fs::read_dir(Path::new(folder).join("debug/deps"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let foreign = ["hdf5", "mpi", "cudarc", "gemm", "learn", "tensor"];
    let found = built.iter().find(|name| foreign.iter().any(|crate_| name.contains(crate_)));
    assert!(built.len() > 10 && found.is_none(), "{found:?} of {}", built.len());
    let tree = cargo(&["tree", "-p", "learn", "-e", "normal"]);
    assert!(tree.contains("tensor") && !tree.contains("hdf5"), "{tree}");
}
