//! Mutated files for the readers of formats other than HDF5: NumPy, CSV tables, Zarr (Blosc is C code on untrusted
//! bytes), safetensors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use data::fields::check::check_files;
use data::fields::field::Shape;
use data::fields::list::describe;
use data::fields::write::{Header, write_field};

use super::mutate::Mutator;
use super::targets::{document, new_archive, new_header, with};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden/layouts").join(name)
}

/// Everything that reads a field: its metadata and all its values.
fn look(path: &Path) {
    let _ = describe(path);
    let _ = check_files(&[path.to_path_buf()], 1e10);
}

/// A NumPy file with another header of the right length, or with changed bytes.
fn new_npy(chaos: &mut Mutator, good: &[u8]) -> Vec<u8> {
    if chaos.below(3) == 0 {
        return chaos.bytes(good);
    }
    let end = 10 + usize::from(u16::from_le_bytes([good[8], good[9]]));
    let text = chaos.text(&String::from_utf8_lossy(&good[10..end]));
    let length = (text.len() as u16).to_le_bytes();
    [&good[..8], &length, &text, &good[end..]].concat()
}

pub fn npy(folder: &Path, chaos: &mut Mutator) {
    let name = ["nu0.3.npy", "fortran.npy"][chaos.below(2)];
    let bytes = new_npy(chaos, &fs::read(golden(name)).unwrap());
    with(&folder.join("fuzzed_nu0.3.npy"), &bytes, look);
}

/// An archive with changed bytes, or an uncompressed one with one changed array.
pub fn npz(folder: &Path, chaos: &mut Mutator) {
    let packed = chaos.below(2) == 0;
    let good = fs::read(golden(if packed { "packed.npz" } else { "stored.npz" })).unwrap();
    let changed = ["tensor.npy", "nu.npy", "x-coordinate.npy"][chaos.below(3)];
    let bytes = match packed {
        true => chaos.bytes(&good),
        false => new_archive(&good, changed, |content| new_npy(chaos, content)),
    };
    with(&folder.join("fuzzed.npz"), &bytes, look);
}

pub fn table(folder: &Path, chaos: &mut Mutator) {
    let good = fs::read_to_string(golden("table.csv")).unwrap();
    with(&folder.join("fuzzed.csv"), &chaos.text(&good), look);
}

/// A folder with one changed file: metadata, attributes, or a chunk and its header.
pub fn zarr(folder: &Path, chaos: &mut Mutator) {
    let name = ["none.zarr", "zlib.zarr", "zstd.zarr", "blosc.zarr", "blosc.zarr"][chaos.below(5)];
    let copy = folder.join(name);
    if !copy.exists() {
        let done = Command::new("cp").arg("-r").args([&golden(name), &copy]).status();
        assert!(done.unwrap().success());
    }
    let array = copy.join(["tensor", "tensor", "x-coordinate"][chaos.below(3)]);
    if chaos.below(2) == 0 {
        let description = array.join(".zarray");
        let text = chaos.json(&document(&description)).to_string();
        return with(&description, text.as_bytes(), |_| look(&copy));
    }
    let mut chunks: Vec<PathBuf> =
        fs::read_dir(&array).unwrap().map(|e| e.unwrap().path()).collect();
    chunks.retain(|path| !path.ends_with(".zarray"));
    chunks.sort();
    let chunk = &chunks[chaos.below(chunks.len())];
    let mut bytes = chaos.bytes(&fs::read(chunk).unwrap());
    // Blosc stops when the size in its header is not that of the file.
    if name == "blosc.zarr" && bytes.len() >= 16 && chaos.below(4) > 0 {
        let size = (bytes.len() as u32).to_le_bytes();
        bytes[12..16].copy_from_slice(&size);
    }
    with(chunk, &bytes, |_| look(&copy));
}

pub fn safetensors(folder: &Path, chaos: &mut Mutator) {
    let path = folder.join("field_nu0.1.safetensors");
    if !path.exists() {
        let shape = Shape { trajectories: 2, frames: 3, grid: vec![4], channels: 1 };
        let header = Header::tensor(shape, vec![vec![0.0, 1.0, 2.0, 3.0]], vec![0.0, 1.0, 2.0]);
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        write_field(&path, &header, |to| (0..2).try_for_each(|n| to.write(n, &values))).unwrap();
    }
    let good = fs::read(&path).unwrap();
    let bytes = if chaos.below(4) == 0 { chaos.bytes(&good) } else { new_header(chaos, &good) };
    with(&path, &bytes, look);
}
