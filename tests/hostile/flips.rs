//! Random bit flips in the headers of every format, under a memory limit of 1 GiB: each program exits with one of its
//! documented statuses.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mutate::Mutator;
use super::*;

/// A file, the number of bytes from its start that may be flipped, and a command that reads it (FILE).
type Case = (&'static str, usize, &'static str);

const ALL: usize = usize::MAX;
/// Golden files are in `golden`, and `small` is an import into safetensors.
const CASES: [Case; 25] = [
    ("raw/1D_Burgers_Sols_Nu0.1.hdf5", 4096, "ds-prep check FILE"),
    ("golden/2D_rdb_NA_NA.h5", ALL, "ds-prep check FILE"),
    ("golden/1D_diff-sorp_NA_NA.h5", 4096, "ds-prep check FILE"),
    ("golden/ns_incom_inhom_2d_512-0.h5", 4096, "ds-prep show FILE"),
    ("golden/2D_diff-react_NA_NA.h5", ALL, "ds-prep check FILE"),
    ("golden/merged.hdf5", 4096, "ds-prep import FILE -o made"),
    ("golden/nu0.3.npy", 128, "ds-prep check FILE"),
    ("golden/stored.npz", ALL, "ds-prep check FILE"),
    ("golden/packed.npz", ALL, "ds-prep check FILE"),
    ("golden/none.zarr/tensor/.zarray", ALL, "ds-prep check golden/none.zarr"),
    ("golden/blosc.zarr/tensor/0.0.0.0.0", 16, "ds-prep check golden/blosc.zarr"),
    ("golden/zstd.zarr/tensor/.zarray", ALL, "ds-prep check golden/zstd.zarr"),
    ("golden/zlib.zarr/x-coordinate/.zarray", ALL, "ds-prep check golden/zlib.zarr"),
    ("golden/table.csv", ALL, "ds-prep check FILE"),
    ("small/1D_Burgers_Sols_Nu0.1.safetensors", 512, "ds-prep check FILE"),
    ("split.json", ALL, "ds-prep check FILE"),
    ("stats.json", ALL, "train-stage codec -c codec.yaml --run new --check"),
    ("codec.yaml", ALL, "train-stage codec --run new --check -c FILE"),
    ("latents/train/index.json", ALL, "latent-cache verify latents/train"),
    ("latents/train/shard-00000.safetensors", 320, "latent-cache verify latents/train"),
    ("run/ckpt/step-00000006/manifest.json", ALL, "ckpt verify run"),
    ("run/ckpt/step-00000006/model.safetensors", 512, "ckpt show run"),
    ("weights.safetensors", 512, "ckpt import FILE --like run -o made"),
    ("state_dict.pt", ALL, "ckpt import FILE --like run -o made"),
    ("nested.pt", ALL, "ckpt import FILE --like run -o made"),
];
/// Number of rounds over all cases: normally, and with TORTURE set.
const ROUNDS: [u64; 2] = [2, 2000];
/// Otherwise the memory of a program depends on the number of processors.
const LIMITS: &str = "ulimit -v 1048576; export RAYON_NUM_THREADS=2 MALLOC_ARENA_MAX=2";

#[test]
fn flipped_bits_in_headers_of_every_format_end_in_a_known_status() {
    let seed = test_support::seed();
    let rounds = ROUNDS[usize::from(test_support::torture())];
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) {
            scope.spawn(|| {
                let folder = prepared();
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= rounds * CASES.len() as u64 {
                        break;
                    }
                    let case = CASES[number as usize % CASES.len()];
                    flip(folder.path(), case, &mut Mutator::new(seed, number), (seed, number));
                }
            });
        }
    });
}

/// A copy of the fixture with files of every format.
fn prepared() -> TempDir {
    let folder = copy();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).display();
    let script = format!(
        "cp -r {root}/lib/data/tests/golden/layouts golden
        cp {root}/tests/golden/torch/*.pt .
        ds-prep import raw/* --format safetensors -o small"
    );
    let output = shell(folder.path(), &script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    folder
}

fn flip(folder: &Path, (name, header, command): Case, chaos: &mut Mutator, case: (u64, u64)) {
    let path = folder.join(name);
    let good = fs::read(&path).unwrap();
    let mut bytes = good.clone();
    for _ in 0..[1, 1, 1, 2, 4][chaos.below(5)] {
        let at = chaos.below(header.min(bytes.len()));
        bytes[at] ^= 1 << chaos.below(8);
    }
    fs::write(&path, bytes).unwrap();
    let command = command.replace("FILE", name);
    let output = shell(folder, &format!("{LIMITS}; exec timeout -s KILL 300 {command}"));
    let known = matches!(output.status, Some(0 | 1 | 2 | 65 | 66 | 73 | 74 | 78));
    // An allocation that fails in Rust ends in an abort; the HDF5 library reports its own.
    let silent = !["panicked", "internal error"].iter().any(|word| output.stderr.contains(word));
    assert!(known && silent, "{case:?}: {command}: {:?}: {}", output.status, output.stderr);
    fs::write(&path, good).unwrap();
    for made in ["made", "new"].map(|made| folder.join(made)) {
        let _ = fs::remove_dir_all(made); // only some commands make one
    }
}
