//! Reads one safetensors file of a checkpoint, treating its contents as untrusted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensor::Tensor;
use tensor::safetensors::{Entry, Header};

use super::PIECE;
use super::manifest::{FileEntry, TensorEntry};
use super::problem::{Problem, metadata};

/// An open file with the expected size and a valid header.
pub(super) struct TensorFile {
    name: String,
    file: File,
    /// The parsed header.
    pub header: Header,
}

impl TensorFile {
    /// Opens the file `entry` of the checkpoint in `folder` and checks that its header matches the tensors in the
    /// manifest.
    pub fn open(folder: &Path, entry: &FileEntry) -> Result<Self, Problem> {
        let damaged = |what: &str| Problem::Damaged(format!("{}: {what}", entry.name));
        let file = open_sized(folder, entry)?;
        let header = Header::read(&file).map_err(|what| damaged(&what))?;
        if !same(&header.entries, &entry.tensors) {
            return Err(damaged("its header describes other tensors than the manifest"));
        }
        Ok(Self { name: entry.name.clone(), file, header })
    }

    /// Reads the tensor `name` and passes its raw bytes to `see` chunk by chunk.
    pub fn tensor(&self, name: &str, mut see: impl FnMut(&[u8])) -> Result<Tensor, Problem> {
        let damaged = |what: String| Problem::Damaged(format!("{}: {what}", self.name));
        let entry = self.header.get(name).ok_or_else(|| damaged(format!("no tensor {name}")))?;
        let dtype = entry.dtype.dtype().ok_or_else(|| {
            damaged(format!("tensor {name} has dtype {}, which is not supported", entry.dtype))
        })?;
        // The header has been checked: shape and byte range agree, and the range lies within the file.
        let (mut tensor, mut at) = (Tensor::empty(&entry.shape, dtype), entry.start);
        for piece in tensor.as_bytes_mut().chunks_mut(PIECE) {
            self.file.read_exact_at(piece, at).map_err(|cause| damaged(cause.to_string()))?;
            at += piece.len() as u64;
            see(piece);
        }
        Ok(tensor)
    }
}

/// Opens a regular file and checks its size.
pub(super) fn open_sized(folder: &Path, entry: &FileEntry) -> Result<File, Problem> {
    let path = folder.join(&entry.name);
    check_size(folder, entry)?;
    File::open(&path).map_err(|cause| Problem::Damaged(format!("{}: {cause}", entry.name)))
}

/// Quick check: the file exists, is a regular file and has the expected size.
pub(super) fn check_size(folder: &Path, entry: &FileEntry) -> Result<(), Problem> {
    let name = &entry.name;
    let found = metadata(folder, name)?;
    if !found.is_file() {
        return Err(Problem::Damaged(format!("{name} is not a regular file")));
    }
    if found.len() != entry.bytes {
        return Err(Problem::Damaged(format!(
            "{name} has {} bytes, but was written with {}",
            found.len(),
            entry.bytes
        )));
    }
    Ok(())
}

/// Whether header and manifest list the same tensors with the same layout.
fn same(entries: &[Entry], listed: &[TensorEntry]) -> bool {
    let mut sorted: Vec<&TensorEntry> = listed.iter().collect();
    sorted.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    entries.len() == sorted.len()
        && entries.iter().zip(sorted).all(|(entry, listed)| {
            (&entry.name, &entry.shape, entry.start, entry.end)
                == (&listed.name, &listed.shape, listed.start, listed.end)
                && entry.dtype.to_string() == listed.dtype
        })
}
