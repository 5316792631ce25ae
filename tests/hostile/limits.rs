//! Excessive sizes on command lines, pipes instead of files, and an HDF5 library that crashes.

use std::fs;

use super::targets::archive;
use super::*;
use crate::common::run;

#[test]
fn sizes_that_do_not_fit_into_memory_are_refused_before_allocation() {
    let copy = copy();
    for (command, words) in [
        (
            "ds-prep gen burgers --parameter 1 --samples 1 --frames 2 --grid 99999999999 -o out",
            "memory",
        ),
        ("ds-prep gen darcy --parameter 1 --samples 1 --grid 700000 -o out", "memory"),
        ("ds-prep import raw/1D_Burgers_Sols_Nu0.1.hdf5 --grid 99999999999 -o out", "memory"),
        (
            "ds-prep import raw/1D_Burgers_Sols_Nu0.1.hdf5 --grid 18446744073709551615 -o out",
            "memory",
        ),
        ("ds-prep gen burgers --parameter 1 --samples 1 --threads 100000 -o out", "from 1 to 1024"),
        ("latent-cache make run --data split.json --threads 1025 -o out", "from 1 to 1024"),
        ("evaluate score run --data split.json --threads 0 -o out", "from 1 to 1024"),
    ] {
        let output = run_checked(copy.path(), command);
        assert_eq!(output.status, Some(2), "{command}: {}", output.stderr);
        assert!(output.stderr.contains(words), "{command}: {}", output.stderr);
    }
    let output = run_checked(
        copy.path(),
        "train-stage codec -c codec.yaml --run new -s training.threads=5000",
    );
    assert_eq!(output.status, Some(78), "{}", output.stderr);
    assert!(
        output.stderr.contains("training.threads") && output.stderr.contains("1024"),
        "{}",
        output.stderr
    );
}

/// A NumPy header of format 2.0 with this length, and the text that follows.
fn npy(length: u32, text: &str) -> Vec<u8> {
    [b"\x93NUMPY\x02\x00", &length.to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn members_and_headers_of_an_archive_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let one = |text: String| npy(text.len() as u32, &text);
    let small = |n: usize| (format!("a{n}.npy").into_bytes(), one(text("(0,)")));
    let tensor = |content: Vec<u8>| (b"tensor.npy".to_vec(), content);
    for (name, members, words) in [
        ("many.npz", (0..10_001).map(small).collect(), "more than 10000 members"),
        ("long.npz", vec![tensor(npy(1 << 21, &" ".repeat(1 << 21)))], "no NumPy header"),
        ("untrue.npz", vec![tensor(npy(u32::MAX, ""))], "no NumPy header"),
        ("claims.npz", vec![tensor(one(text("(1099511627776, 2, 8)")))], "tensor"),
    ] {
        fs::write(folder.path().join(name), archive(&members)).unwrap();
        let output = run_checked(folder.path(), &format!("ds-prep check {name}"));
        assert_eq!(output.status, Some(65), "{name}: {}", output.stderr);
        assert!(output.stdout.contains(words), "{name}: {}{}", output.stdout, output.stderr);
    }
}

#[test]
fn a_run_on_many_threads_stops_on_request() {
    let copy = copy();
    let more = ["-s", "training.threads=1024", "-s", "training.updates=1000000"];
    let mut job = run::start(copy.path(), "new", &more);
    job.wait_for_update(&copy.path().join("new"), 1);
    job.signal("TERM");
    let (status, stderr) = job.end();
    assert_eq!(status, Some(75), "{stderr}");
}

#[test]
fn a_pipe_in_place_of_a_file_does_not_block() {
    let copy = copy();
    for (name, command) in [
        ("a.hdf5", "ds-prep ls a.hdf5"),
        ("a.npy", "ds-prep check a.npy"),
        ("a.csv", "ds-prep ls a.csv"),
        ("a.safetensors", "ds-prep ls a.safetensors"),
        ("a.json", "ds-prep ls a.json"),
        ("b.yaml", "train-stage codec -c b.yaml --run new"),
        ("b.pt", "ckpt import b.pt --like run -o made"),
    ] {
        assert_eq!(shell(copy.path(), &format!("mkfifo {name}")).status, Some(0));
        let output = run_checked(copy.path(), command);
        let expected = format!("{}{}", output.stdout, output.stderr);
        assert!(
            matches!(output.status, Some(65 | 66)) && expected.contains(name),
            "{command}: {expected}"
        );
    }
    // Nor is one that an HDF5 file links to.
    let links = Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden/links");
    fs::copy(links.join("tensor.h5"), copy.path().join("tensor.h5")).unwrap();
    assert_eq!(shell(copy.path(), "mkfifo other.h5").status, Some(0));
    let output = run_checked(copy.path(), "ds-prep ls tensor.h5");
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    assert!(output.stderr.contains("external link"), "{}", output.stderr);
    // A pipe that is written to is a valid configuration.
    let script = "mkfifo c.yaml; cat codec.yaml > c.yaml & train-stage codec -c c.yaml --run new";
    let output = run_checked(copy.path(), &format!("sh -c '{script}'"));
    assert!(matches!(output.status, Some(0 | 66)), "{}", output.stderr);
}

/// HDF5 1.10.8 crashes on this file when its values are read; other versions report that it is damaged.
#[test]
fn a_crash_of_the_hdf5_library_is_an_error_about_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let golden = "lib/data/tests/golden/layouts/2D_rdb_NA_NA.h5";
    let good = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(golden)).unwrap();
    let mut bytes = good.clone();
    bytes[2048] ^= 1 << 3;
    fs::write(folder.path().join("damaged.h5"), bytes).unwrap();
    fs::write(folder.path().join("good.h5"), good).unwrap();
    let output = run_checked(folder.path(), "ds-prep check --json damaged.h5 good.h5");
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    let faults: Vec<&str> = output.stdout.lines().collect();
    let of = |name: &str| faults.iter().filter(|fault| fault.contains(name)).count();
    // Both lack a parameter; only one cannot be read.
    assert_eq!((of("damaged.h5") > 1, of("good.h5")), (true, 1), "{}", output.stdout);
}
