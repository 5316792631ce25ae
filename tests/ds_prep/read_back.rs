//! Reads the files that we write with h5py and NumPy by PDEBench's documented keys (tests/peers/read_back.py): of every
//! generator, and of imports into every layout and format. Skipped if Python has no h5py; PYTHON selects another
//! interpreter.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;
use data::fields::field::Field;
use data::fields::parameter::Parameter;
use serde_json::Value;

/// Equations with their parameters, and options that keep them small.
const EQUATIONS: [&str; 6] = [
    "burgers --parameter 0.01 --grid 32 --frames 5",
    "advection --parameter 0.4 --grid 32 --frames 5",
    "diffusion-reaction --parameter 0.5 --grid 32 --frames 5",
    "diffusion-reaction-2d --parameter 0.001 --grid 16 --frames 5 --end 0.2",
    "darcy --parameter 1 --grid 16",
    "navier-stokes --parameter 0.01 --grid 16 --frames 4 --end 0.3",
];

/// Golden files written by h5py, and the layouts and formats they are converted to.
const IMPORTS: [(&str, &str); 11] = [
    ("ReacDiff_Nu0.5_Rho1.0.hdf5", "--format hdf5"),
    ("tensor2d_channels.hdf5", "--format safetensors"),
    ("2D_diff-react_NA_NA.h5", "--format hdf5"),
    ("1D_diff-sorp_NA_NA.h5", "--format safetensors"),
    ("1D_CFD_Rand_Eta0.1_Zeta0.1_periodic_Train.hdf5", "--format hdf5"),
    ("2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5", "--format hdf5"),
    ("3D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_Train.hdf5", "--format hdf5"),
    ("2D_DarcyFlow_beta10.0_Train.hdf5", "--format hdf5"),
    ("2D_DarcyFlow_beta10.0_Train.hdf5", "--format safetensors"),
    ("ns_incom_inhom_2d_512-0.h5", "--format hdf5"),
    ("ns_incom_inhom_2d_512-0.h5", "--format safetensors"),
];

/// Python's description of files; `None` if it has no h5py.
fn told_by_python(files: &[PathBuf]) -> Option<Vec<Value>> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let asked = Command::new(&python).args(["-c", "import h5py, numpy"]).output();
    if !asked.is_ok_and(|output| output.status.success()) {
        test_support::skip(&format!("{python} has no h5py and numpy (PYTHON=... names another)"));
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/read_back.py");
    let output = Command::new(python).arg(script).args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// CRC-32 of all values as we read them, [n, t, x.., c].
fn checksum(path: &Path) -> u32 {
    let field = Field::open(path).unwrap();
    let mut hasher = crc32fast::Hasher::new();
    let mut values = vec![0.0f32; field.shape().trajectory_len()];
    for n in 0..field.trajectories() {
        field.read(n, &mut values).unwrap();
        values.iter().for_each(|value| hasher.update(&value.to_le_bytes()));
    }
    hasher.finalize()
}

/// Compares ds-prep's description of a file with Python's.
fn compare(path: &Path, python: &Value) {
    let folder = path.parent().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let shown = run(folder, "", &["show", name, "--json"]).records().remove(0);
    for key in ["layout", "trajectories", "frames", "grid"] {
        assert_eq!(shown[key], python[key], "{name}: {key}");
    }
    let channels = shown["channels"].as_str().unwrap().replace('|', ",");
    assert_eq!(channels, python["channels"], "{name}");
    for (letter, ends) in python["ends"].as_object().unwrap() {
        assert_eq!(&shown[letter], ends, "{name}: {letter}");
    }
    let parameter: Parameter = shown["parameter"].as_str().unwrap().parse().unwrap();
    for (of, value) in parameter.iter() {
        assert_eq!(python["numbers"][of].as_f64(), Some(value), "{name}: {of}");
    }
    let last = (shown["trajectories"].as_u64().unwrap() - 1).to_string();
    let frames = run(folder, "", &["show", name, "--sample", &last, "--json"]).records();
    let expected = python["last"].as_array().unwrap();
    assert_eq!(frames.len(), expected.len(), "{name}");
    for (ours, theirs) in frames.iter().zip(expected) {
        for key in ["min", "max", "mean", "rms"] {
            let [a, b] = [ours, theirs].map(|frame| frame[key].as_f64().unwrap());
            assert!((a - b).abs() <= 1e-12 * a.abs().max(1.0), "{name}: {key} {a}, h5py {b}");
        }
    }
    assert_eq!(u64::from(checksum(path)), python["crc32"], "{name}: values");
}

#[test]
fn our_files_are_read_by_h5py_with_pdebenchs_keys() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut made = Vec::new();
    for equation in EQUATIONS {
        let words: Vec<&str> = equation.split(' ').collect();
        let words = [&["gen"][..], &words, &["--samples", "3", "-o", "raw", "--json"]].concat();
        let output = run(folder, "", &words);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        made.extend(output.records().iter().map(|r| folder.join(r["file"].as_str().unwrap())));
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden/layouts");
    let mut sources = Vec::new();
    for (number, (name, how)) in IMPORTS.into_iter().enumerate() {
        let (source, to) = (golden.join(name), format!("in{number}"));
        let words: Vec<&str> = how.split(' ').collect();
        let from = ["import", source.to_str().unwrap(), "-o", &to, "--json"];
        let output = run(folder, "", &[&from[..], &words].concat());
        assert_eq!(output.status, Some(0), "{name} {how}: {}", output.stderr);
        made.push(folder.join(output.records()[0]["file"].as_str().unwrap()));
        sources.push(source);
    }
    let Some(expected) = told_by_python(&made) else { return };
    assert_eq!(expected.len(), made.len());
    made.iter().zip(&expected).for_each(|(path, python)| compare(path, python));
    // h5py also sees the same values in its own files and in the converted ones.
    let of_sources = told_by_python(&sources).unwrap();
    for ((source, python), (_, how)) in
        of_sources.iter().zip(&expected[EQUATIONS.len()..]).zip(IMPORTS)
    {
        assert_eq!(source["crc32"], python["crc32"], "{} {how}", source["file"]);
    }
}
