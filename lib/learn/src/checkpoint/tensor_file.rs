//! Reading one safetensors file of a checkpoint, without believing it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use tensor::Tensor;

use super::bytes::{self, PIECE};
use super::damage::Fault;
use super::layout::{self, Place};
use super::manifest::{FileEntry, TensorEntry};

/// A file whose size is right and whose header makes sense.
pub(super) struct TensorFile {
    name: String,
    file: File,
    /// The header with its length in front.
    pub header: Vec<u8>,
    /// Its tensors in the order of the file.
    pub places: Vec<Place>,
}

impl TensorFile {
    /// Opens the file `entry` of the checkpoint in `folder`; its header must tell what the manifest
    /// tells.
    pub fn open(folder: &Path, entry: &FileEntry) -> Result<Self, Fault> {
        let damaged = |what: String| Fault::Damaged(format!("{}: {what}", entry.name));
        let mut file = open_sized(folder, entry)?;
        let mut header = vec![0; 8];
        let io = |cause: std::io::Error| damaged(cause.to_string());
        file.read_exact(&mut header).map_err(io)?;
        let first = header[..].first_chunk().copied().unwrap_or_default();
        let length = layout::header_length(first, entry.bytes).map_err(damaged)?;
        header.resize(8 + length as usize, 0);
        file.read_exact(&mut header[8..]).map_err(io)?;
        let places = layout::read(&header[8..], entry.bytes).map_err(damaged)?;
        if !same(&places, &entry.tensors) {
            return Err(damaged("its header tells of other tensors than the manifest".into()));
        }
        Ok(Self { name: entry.name.clone(), file, header, places })
    }

    /// Reads one tensor; `see` is shown its bytes on the way.
    pub fn tensor(&mut self, place: &Place, mut see: impl FnMut(&[u8])) -> Result<Tensor, Fault> {
        let io = |cause: std::io::Error| Fault::Damaged(format!("{}: {cause}", self.name));
        self.file.seek(SeekFrom::Start(place.start)).map_err(io)?;
        // The header was checked: shape and bytes agree, and the bytes are in the file.
        let mut tensor = Tensor::arbitrary(&place.shape, place.dtype);
        for piece in bytes::of_mut(&mut tensor).chunks_mut(PIECE) {
            self.file.read_exact(piece).map_err(io)?;
            see(piece);
        }
        Ok(tensor)
    }
}

/// Opens a regular file that has the size it should have.
pub(super) fn open_sized(folder: &Path, entry: &FileEntry) -> Result<File, Fault> {
    let path = folder.join(&entry.name);
    check_size(folder, entry)?;
    File::open(&path).map_err(|cause| Fault::Damaged(format!("{}: {cause}", entry.name)))
}

/// The cheap check: is it there, a file, and of the right size?
pub(super) fn check_size(folder: &Path, entry: &FileEntry) -> Result<(), Fault> {
    let name = &entry.name;
    let found = match std::fs::symlink_metadata(folder.join(name)) {
        Ok(found) => found,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(Fault::Missing(format!("{name} is missing")));
        }
        Err(cause) => return Err(Fault::Damaged(format!("{name}: {cause}"))),
    };
    if !found.is_file() {
        return Err(Fault::Damaged(format!("{name} is no regular file")));
    }
    if found.len() != entry.bytes {
        return Err(Fault::Damaged(format!(
            "{name} has {} bytes, it was written with {}",
            found.len(),
            entry.bytes
        )));
    }
    Ok(())
}

/// Whether header and manifest name the same tensors at the same places.
fn same(places: &[Place], entries: &[TensorEntry]) -> bool {
    let mut sorted: Vec<&TensorEntry> = entries.iter().collect();
    sorted.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    places.len() == sorted.len()
        && places.iter().zip(sorted).all(|(place, entry)| {
            place.name == entry.name
                && layout::dtype_name(place.dtype) == entry.dtype
                && place.shape == entry.shape
                && (place.start, place.end) == (entry.start, entry.end)
        })
}
