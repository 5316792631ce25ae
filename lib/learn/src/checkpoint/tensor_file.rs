//! Reading one safetensors file of a checkpoint, without believing it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensor::Tensor;
use tensor::safetensors::{Entry, Header};

use super::PIECE;
use super::manifest::{FileEntry, TensorEntry};
use super::problem::Problem;

/// A file whose size is right and whose header makes sense.
pub(super) struct TensorFile {
    name: String,
    file: File,
    /// What the file holds.
    pub header: Header,
}

impl TensorFile {
    /// Opens the file `entry` of the checkpoint in `folder`; its header must describe the tensors of the
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

    /// Reads the tensor of this name; `see` is shown its bytes on the way.
    pub fn tensor(&self, name: &str, mut see: impl FnMut(&[u8])) -> Result<Tensor, Problem> {
        let damaged = |what: String| Problem::Damaged(format!("{}: {what}", self.name));
        let entry = self.header.get(name).ok_or_else(|| damaged(format!("no tensor {name}")))?;
        let dtype = entry.dtype.dtype().ok_or_else(|| {
            damaged(format!("tensor {name} is {}, which this version cannot hold", entry.dtype))
        })?;
        // The header was checked: shape and bytes agree, and the bytes are in the file.
        let (mut tensor, mut at) = (Tensor::arbitrary(&entry.shape, dtype), entry.start);
        for piece in tensor.as_bytes_mut().chunks_mut(PIECE) {
            self.file.read_exact_at(piece, at).map_err(|cause| damaged(cause.to_string()))?;
            at += piece.len() as u64;
            see(piece);
        }
        Ok(tensor)
    }
}

/// Opens a regular file that has the size it should have.
pub(super) fn open_sized(folder: &Path, entry: &FileEntry) -> Result<File, Problem> {
    let path = folder.join(&entry.name);
    check_size(folder, entry)?;
    File::open(&path).map_err(|cause| Problem::Damaged(format!("{}: {cause}", entry.name)))
}

/// The cheap check: is it there, a file, and of the right size?
pub(super) fn check_size(folder: &Path, entry: &FileEntry) -> Result<(), Problem> {
    let name = &entry.name;
    let found = match std::fs::symlink_metadata(folder.join(name)) {
        Ok(found) => found,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(Problem::Missing(format!("{name} is missing")));
        }
        Err(cause) => return Err(Problem::Damaged(format!("{name}: {cause}"))),
    };
    if !found.is_file() {
        return Err(Problem::Damaged(format!("{name} is no regular file")));
    }
    if found.len() != entry.bytes {
        return Err(Problem::Damaged(format!(
            "{name} has {} bytes, it was written with {}",
            found.len(),
            entry.bytes
        )));
    }
    Ok(())
}

/// Whether header and manifest name the same tensors at the same places.
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
