//! Exports one file of a checkpoint as a safetensors file for other programs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use unix::publish;
use unix::{Error, Result, space};

use super::PIECE;
use super::find::manifest_of;
use super::problem::Problem;
use super::tensor_file::{TensorFile, open_sized};

/// Copies the file with the stem `what` (`model`, `ema`, `buffers`, …) of a checkpoint to `out`, which must not exist,
/// and verifies its hash while copying. Returns the file size in bytes.
///
/// Errors: 66 when the checkpoint or the file is missing (the message lists the files that exist); 65 when the file is
/// damaged; 73 when `out` cannot be created; 74 when copying fails.
pub fn export(checkpoint: &Path, what: &str, out: &Path) -> Result<u64> {
    let manifest = manifest_of(checkpoint)?;
    let error_of = |problem: Problem| problem.error(checkpoint);
    let Some(entry) = manifest.files.iter().find(|file| file.stem() == what) else {
        let stems: Vec<&str> = manifest.files.iter().map(|file| file.stem()).collect();
        let there = stems.join(", ");
        return Err(Error::open(checkpoint, format!("it has no {what}; it has {there}")));
    };
    TensorFile::open(checkpoint, entry).map_err(error_of)?;
    let mut from = open_sized(checkpoint, entry).map_err(error_of)?;
    space::ensure_space(out, entry.bytes)?;
    publish::REAL.new_file(out, |temporary| {
        let mut to = File::create_new(temporary).map_err(|cause| Error::create(out, cause))?;
        let hash = copy(&mut from, &mut to, entry.bytes).map_err(|cause| Error::io(out, cause))?;
        if hash.to_hex().as_str() != entry.blake3 {
            return Err(error_of(Problem::changed(&entry.name)));
        }
        Ok(entry.bytes)
    })
}

fn copy(from: &mut File, to: &mut File, mut left: u64) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE as u64) as usize];
        from.read_exact(piece)?;
        hasher.update(piece);
        to.write_all(piece)?;
        left -= piece.len() as u64;
    }
    Ok(hasher.finalize())
}
