//! Planted violations: each is found by one command, which names the file and the position.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{data_set, run};
use data::fields::field::{Field, Shape};
use data::fields::write::{Header, write_field};
use tensor::random::{Philox, Purpose};

const SHAPE: [usize; 3] = [4, 6, 16];
const LEN: usize = 6 * 16;

/// A file with 4 trajectories of noise; `planted` replaces trajectory 2, if given.
fn noise(path: &Path, key: u64, planted: Option<Vec<f32>>) {
    let [trajectories, frames, points] = SHAPE;
    let shape = Shape { trajectories, frames, grid: vec![points], channels: 1 };
    let [x, t] = [points, frames].map(|n| (0..n as u32).map(f64::from).collect());
    let attributes = vec![("Nu".into(), 0.1.into())];
    let header = Header { attributes, ..Header::tensor(shape, vec![x], t) };
    let random = Philox::new(key, Purpose::Test);
    write_field(path, &header, |writer| {
        (0..trajectories).try_for_each(|n| {
            let values = (0..LEN as u64).map(|i| random.uniform(n as u64, i) - 0.5).collect();
            writer.write(n, &planted.clone().filter(|_| n == 2).unwrap_or(values))
        })
    })
    .unwrap();
}

fn first_of(path: &Path) -> Vec<f32> {
    let mut values = vec![0.0; LEN];
    Field::open(path).unwrap().read(1, &mut values).unwrap();
    values
}

fn golden(folder: &Path, name: &str) -> PathBuf {
    let from =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden/layouts").join(name);
    let done = std::process::Command::new("cp").arg("-r").args([&from, folder]).status().unwrap();
    assert!(done.success());
    folder.join(name)
}

/// Removes the last byte of a file.
fn cut(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
}

/// Plants part of `a.hdf5` (training) into `b.hdf5` (test); an audit must name it.
fn leak(folder: &Path, planted: impl Fn(Vec<f32>) -> Vec<f32>) -> Vec<&'static str> {
    let [a, b] = ["a.hdf5", "b.hdf5"].map(|name| folder.join(name));
    noise(&a, 1, None);
    noise(&b, 2, Some(planted(first_of(&a))));
    let split = ["split", "a.hdf5", "b.hdf5", "--by", "file", "--validation", "0", "--seed", "1"];
    let split = run(folder, "", &[&split[..], &["--train", "1", "--test", "1"]].concat());
    assert_eq!(split.status, Some(0), "{}", split.stderr);
    vec!["audit", "split.json"]
}

type Plant = fn(&Path) -> Vec<&'static str>;

/// The violation to plant, which also returns the command that finds it; the kind of the violation, and words of its
/// message.
const FAULTS: [(&str, Plant, &str, &[&str]); 14] = [
    ("duplicate", |folder| leak(folder, |u| u), "duplicate", &["trajectory 2", "trajectory 1 of"]),
    (
        "near-duplicate",
        |folder| leak(folder, |u| u.iter().map(|u| u + 1e-4).collect()),
        "near-duplicate",
        &["has a first frame within", "a.hdf5", "b.hdf5"],
    ),
    (
        "the same initial state",
        |folder| leak(folder, |u| [&u[..16], &vec![0.25; 80]].concat()),
        "same-initial-state",
        &["begins exactly as", "a.hdf5", "b.hdf5"],
    ),
    (
        "a later part of a trajectory of another file",
        |folder| leak(folder, |u| [&u[48..], &u[..48]].concat()),
        "shared-frame",
        &["frame 3 of", "a.hdf5", "b.hdf5"],
    ),
    (
        "NaN",
        |folder| {
            let values = (0..LEN).map(|i| if i == 37 { f32::NAN } else { i as f32 }).collect();
            noise(&folder.join("nan.hdf5"), 1, Some(values));
            vec!["check", "nan.hdf5"]
        },
        "not-finite",
        &["nan.hdf5", "trajectory 2, frame 2, point 5: NaN (1 in all)"],
    ),
    (
        "axes in another order",
        |folder| {
            golden(folder, "transposed.hdf5");
            vec!["check", "transposed.hdf5"]
        },
        "axis-order",
        &["transposed.hdf5", "--axes nctyx"],
    ),
    (
        "truncated HDF5",
        |folder| {
            cut(&golden(folder, "tensor2d.hdf5"));
            vec!["check", "tensor2d.hdf5"]
        },
        "unreadable",
        &["tensor2d.hdf5", "truncated"],
    ),
    (
        "truncated HDF5, packed",
        |folder| {
            cut(&golden(folder, "2D_diff-react_NA_NA.h5"));
            vec!["check", "2D_diff-react_NA_NA.h5"]
        },
        "unreadable",
        &["2D_diff-react_NA_NA.h5", "truncated"],
    ),
    (
        "truncated .npy",
        |folder| {
            cut(&golden(folder, "nu0.3.npy"));
            vec!["check", "nu0.3.npy"]
        },
        "unreadable",
        &["nu0.3.npy", "truncated"],
    ),
    (
        "truncated .npz",
        |folder| {
            cut(&golden(folder, "packed.npz"));
            vec!["check", "packed.npz"]
        },
        "unreadable",
        &["packed.npz", "not a complete NumPy file"],
    ),
    (
        "a truncated table",
        |folder| {
            let path = golden(folder, "table.csv");
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            fs::write(path, lines[..lines.len() - 1].join("\n")).unwrap();
            vec!["check", "table.csv"]
        },
        "unreadable",
        &["table.csv", "104 rows", "rows are missing"],
    ),
    (
        "a chunk of Zarr missing",
        |folder| {
            fs::remove_file(golden(folder, "blosc.zarr").join("tensor/1.0.0.1.0")).unwrap();
            vec!["check", "blosc.zarr"]
        },
        "unreadable",
        &["blosc.zarr", "chunk 1.0.0.1.0 is missing", "--fill-missing"],
    ),
    (
        "a truncated chunk of Zarr",
        |folder| {
            cut(&golden(folder, "blosc.zarr").join("tensor/1.0.0.1.0"));
            vec!["check", "blosc.zarr"]
        },
        "unreadable",
        &["blosc.zarr", "tensor/1.0.0.1.0: a damaged chunk"],
    ),
    (
        "truncated safetensors",
        |folder| {
            noise(&folder.join("a.safetensors"), 1, None);
            cut(&folder.join("a.safetensors"));
            vec!["check", "a.safetensors"]
        },
        "unreadable",
        &["a.safetensors", "truncated"],
    ),
];

#[test]
fn every_planted_fault_is_found_and_named() {
    let mut wrong = Vec::new();
    for (name, plant, kind, words) in FAULTS {
        let folder = tempfile::tempdir().unwrap();
        let command = [&plant(folder.path())[..], &["--json"]].concat();
        let output = run(folder.path(), "", &command);
        let found = output.records();
        let is_named = found.iter().any(|fault| {
            let message = fault["message"].as_str().unwrap();
            fault["kind"] == kind && words.iter().all(|word| message.contains(word))
        });
        // What an audit finds is no error.
        let status = if command[0] == "audit" { 1 } else { 65 };
        if output.status != Some(status) || !is_named {
            wrong.push(format!("{name}: {:?} {}{}", output.status, output.stdout, output.stderr));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsupported_layouts_formats_and_manifests_are_refused_with_a_reason() {
    let folder = data_set();
    let folder = folder.path();
    let burgers = "raw/1D_Burgers_Sols_Nu0.1.hdf5";
    let half = run(folder, "", &["import", burgers, "--grid", "16", "-o", "half"]);
    assert_eq!(half.status, Some(0), "{}", half.stderr);
    let cases: [(&[&str], i32, &str); 2] = [
        (&["import", burgers, "--crop", "t=3:9"], 2, "of the frames 3:9; the file has 5 frames"),
        (
            &["split", burgers, "half/1D_Burgers_Sols_Nu0.1.hdf5"],
            65,
            "5 frames on 16 points, channels u, 0 of them inputs, those of the previous files",
        ),
    ];
    for (words, status, message) in cases {
        let output = run(folder, "", &[words, &["-o", "out"]].concat());
        assert_eq!(output.status, Some(status), "{words:?}: {}", output.stderr);
        assert!(output.stderr.contains(message), "{}", output.stderr);
        assert!(!output.stderr.contains(['{', '"']), "debug output: {}", output.stderr);
    }
}
