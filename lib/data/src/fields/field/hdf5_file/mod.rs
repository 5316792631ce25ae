//! An HDF5 file: metadata from the library (see [`helper`]), and a memory map for data that needs no conversion.

mod helper;
mod library;
mod message;

pub use helper::run_helper_if_requested;
pub(super) use library::ONLY_DIMENSION;

use super::mapped::MappedFile;
use super::packing::Packing;
use super::source::{ArrayStorage, Parts, Source, contents};
use bytemuck::Pod;
use helper::{Failure, ask};
use message::{Ask, Dataset, HelperRequest, Unwritten};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use unix::space::human_bytes;
use unix::{Error, Exit, Result};

/// Upper bound on the number of values per stored byte, for any HDF5 filters.
const MAX_PACKED: u64 = 50_000;
/// Maximum chunk size in bytes, both compressed and decompressed: chunks are read completely.
pub(super) const MAX_CHUNK: usize = 256 << 20;

/// An open file.
#[derive(Debug)]
pub(super) struct Hdf5File {
    handle: Arc<Handle>,
    /// Memory map of the same file, for reads without the library.
    mapped: Arc<MappedFile>,
    /// Whether chunks that were never written are read as the fill value, which then counts as data.
    fill_missing: bool,
}

/// The file as opened by the library.
#[derive(Debug)]
struct Handle {
    number: u64,
    path: PathBuf,
    /// The error of a request that killed the helper; no more requests are sent for this file.
    died: OnceLock<(Exit, String)>,
}

impl Handle {
    fn ask<T: DeserializeOwned, N: Pod>(&self, ask_for: Ask) -> Result<(T, Vec<N>), Failure> {
        if let Some((_, text)) = self.died.get() {
            return Err(Failure::Refused(text.clone()));
        }
        let path = self.path.as_os_str().as_bytes().to_vec();
        let answer = ask(&HelperRequest { file: self.number, path, ask: ask_for });
        if let Err(cause @ Failure::Died(..)) = &answer {
            // If two threads get here, the first error is kept.
            let _ = self.died.set((cause.exit(), cause.to_string()));
        }
        answer
    }

    /// Sends a request whose answer has no numbers.
    fn query<T: DeserializeOwned>(&self, ask_for: Ask) -> Result<T, Failure> {
        self.ask::<T, u8>(ask_for).map(|(reply, _)| reply)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.query::<()>(Ask::Close); // if the helper died, the file is already closed
    }
}

/// A dataset that is read through the library.
#[derive(Debug)]
struct Stored {
    handle: Arc<Handle>,
    name: String,
    /// Storage of the dataset.
    form: Dataset,
    packing: Packing,
}

impl Stored {
    fn failed(&self, cause: Failure) -> Error {
        let path = &self.handle.path;
        match cause {
            Failure::Refused(_) => Error::io(path, cause),
            cause => cause.about(format_args!("{}: `{}`", path.display(), self.name)),
        }
    }
}

impl Parts for Stored {
    /// Errors: 65 when the file makes the library crash, 74 when the library cannot read it.
    fn read(&self, ranges: &[Range<usize>], beyond: &mut Option<f64>) -> Result<Vec<f32>> {
        let part = Ask::Part(self.name.clone(), ranges.to_vec(), self.packing.clone());
        let answer = self.handle.ask(part);
        let (found, values): (Option<u64>, _) = answer.map_err(|cause| self.failed(cause))?;
        *beyond = beyond.or(found.map(f64::from_bits));
        Ok(values)
    }

    fn numbers(&self) -> Result<Vec<f64>> {
        let numbers = Ask::Numbers(self.name.clone(), self.packing.clone());
        let answer = self.handle.ask::<(), f64>(numbers);
        answer.map(|((), values)| values).map_err(|cause| self.failed(cause))
    }

    fn packing(&self) -> &Packing {
        &self.packing
    }

    fn chunk(&self) -> Option<&[usize]> {
        self.form.chunk.as_deref()
    }

    fn is_compressed(&self) -> bool {
        self.form.is_compressed
    }

    fn item_size(&self) -> usize {
        self.form.size
    }
}

impl Hdf5File {
    /// Errors: 66 when it cannot be opened, 65 when it is not an HDF5 file or is truncated.
    pub fn open(path: &Path, fill_missing: bool) -> Result<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        // The library's messages for missing files and folders are unhelpful.
        let mapped = MappedFile::open(path)?;
        let (number, path) = (OPENED.fetch_add(1, Relaxed), path.to_path_buf());
        let handle = Handle { number, path, died: OnceLock::new() };
        let path = &handle.path;
        let not_whole = format!("{}: not a complete HDF5 file", path.display());
        handle.query::<()>(Ask::Open).map_err(|cause| cause.about(not_whole))?;
        Ok(Self { handle: Arc::new(handle), mapped: Arc::new(mapped), fill_missing })
    }

    fn failed(&self, name: &str, cause: Failure) -> Error {
        cause.about(format_args!("{}: `{name}`", self.path().display()))
    }
}

impl Source for Hdf5File {
    fn path(&self) -> &Path {
        &self.handle.path
    }

    fn check(&self) -> Result<()> {
        let Some((exit, text)) = self.handle.died.get() else { return Ok(()) };
        Err(Error::new(*exit, format_args!("{}: {text}", self.path().display())))
    }

    fn names(&self) -> Vec<String> {
        self.handle.query(Ask::Names).unwrap_or_default()
    }

    fn kind(&self, name: &str) -> String {
        self.handle.query(Ask::Kind(name.into())).unwrap_or_else(|_| "unreadable".into())
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.handle.query(Ask::Shape(name.into())).ok().flatten()
    }

    fn place(&self, name: &str) -> Result<(Vec<usize>, ArrayStorage)> {
        let form = self.handle.query::<Dataset>(Ask::Dataset(name.into()));
        let form = form.map_err(|cause| match &cause {
            Failure::Refused(_) if self.shape(name).is_none() => {
                self.invalid(format!("no `{name}`; found {}", contents(self)))
            }
            _ => self.failed(name, cause),
        })?;
        let shape = form.shape.clone();
        // 0, the default of h5py, does not mark missing values.
        let marker = form.fill.filter(|fill| *fill != 0.0 && !self.fill_missing);
        let integer = form.is_integer.then_some(form.size);
        let packing = Packing::of(&form.attributes, marker, integer)
            .map_err(|what| self.invalid(format!("`{name}`: {what}")))?;
        if let Some((offset, dtype)) = form.mapped {
            let file = self.mapped.clone();
            return Ok((
                shape,
                ArrayStorage::File { file, offset, dtype, fortran: false, packing },
            ));
        }
        let chunk = form.chunk.iter().flatten().try_fold(form.size, |n, dim| n.checked_mul(*dim));
        if chunk.is_none_or(|chunk| chunk > MAX_CHUNK) {
            return Err(self.invalid(format!(
                    "`{name}` has chunks of more than {}, the largest supported; store it in smaller chunks",
                    human_bytes(MAX_CHUNK as u64)
                ),
            ));
        }
        let numbers = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        let bytes = form.stored;
        if numbers.is_none_or(|n| n as u64 > bytes.saturating_mul(MAX_PACKED)) {
            let what = format!(
                "`{name}` {shape:?} was never completely written: only {bytes} bytes of it are stored"
            );
            return Err(self.invalid(what));
        }
        if let Some(unwritten) = form.unwritten.as_ref().filter(|_| !self.fill_missing) {
            let Unwritten { missing, of, first } = unwritten;
            let first = first.as_ref().map_or(String::new(), |at| format!(", the first at {at:?}"));
            return Err(self.invalid(format!(
                "`{name}` {shape:?} was never completely written: {missing} of its {of} chunks are missing{first}; \
                 if these hold the fill value, `ds-prep import --fill-missing` says so"
            )));
        }
        let (handle, name) = (self.handle.clone(), name.into());
        Ok((shape, ArrayStorage::Parts(Box::new(Stored { handle, name, form, packing }))))
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        self.handle.query(Ask::Attributes(place.map(Into::into))).unwrap_or_default()
    }

    fn groups(&self) -> Vec<String> {
        self.handle.query(Ask::Groups).unwrap_or_default()
    }
}
