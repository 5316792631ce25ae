//! An HDF5 file: what the library says of it (see [`helper`]), and a map for what needs no conversion.

mod helper;
mod library;
mod message;

pub use helper::serve_if_asked;
pub(super) use message::Dataset;

use super::array::{Array, Place};
use super::axes::Axes;
use super::mapped::MappedFile;
use super::source::{Source, bad, contents};
use bytemuck::Pod;
use helper::{Failure, ask};
use message::{Ask, Reply, Request};
use serde_json::{Map, Value};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use unix::{Error, Exit, Result};

/// An open file.
#[derive(Debug)]
pub(super) struct Hdf5File {
    handle: Arc<Handle>,
    /// The same file past the library.
    mapped: Arc<MappedFile>,
}

/// The file as the library has it open.
#[derive(Debug)]
struct Handle {
    number: u64,
    path: PathBuf,
    /// What the library died of, which it is not asked again.
    died: OnceLock<(Exit, String)>,
}

impl Handle {
    fn ask<T: Pod>(&self, ask_for: Ask) -> Result<(Reply, Vec<T>), Failure> {
        if let Some((_, text)) = self.died.get() {
            return Err(Failure::Refused(text.clone()));
        }
        let path = self.path.as_os_str().as_bytes().to_vec();
        let answer = ask(&Request { file: self.number, path, ask: ask_for });
        if let Err(cause @ Failure::Died(..)) = &answer {
            // Of two threads the first is right.
            let _ = self.died.set((cause.exit(), cause.to_string()));
        }
        answer
    }

    /// An answer without numbers.
    fn told(&self, ask_for: Ask) -> Result<Reply, Failure> {
        self.ask::<u8>(ask_for).map(|(reply, _)| reply)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.told(Ask::Close); // with its helper the file is closed as well
    }
}

/// A dataset that is read through the library.
#[derive(Debug)]
pub(super) struct Stored {
    handle: Arc<Handle>,
    name: String,
    /// How it is stored.
    pub form: Dataset,
}

impl Stored {
    /// The numbers at `ranges`, the last dimension fastest; `beyond` becomes one that f32 cannot hold.
    /// Errors: 65 when the library dies of the file, 74 when it cannot read it.
    pub fn read(&self, ranges: &[Range<usize>], beyond: &mut Option<f64>) -> Result<Vec<f32>> {
        let path = &self.handle.path;
        match self.handle.ask(Ask::Part(self.name.clone(), ranges.to_vec())) {
            Ok((Reply::Part { beyond: found }, values)) => {
                *beyond = beyond.or(found.map(f64::from_bits));
                Ok(values)
            }
            Ok(_) => Err(Error::bug(format!("{}: not the answer", path.display()))),
            Err(cause @ Failure::Refused(_)) => Err(Error::io(path, cause)),
            Err(cause) => Err(cause.about(format_args!("{}: `{}`", path.display(), self.name))),
        }
    }
}

impl Hdf5File {
    /// Errors: 66 when it cannot be opened, 65 when it is no HDF5 file or is truncated.
    pub fn open(path: &Path) -> Result<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        // The library has poor words for missing files and folders.
        let mapped = MappedFile::open(path)?;
        let (number, path) = (OPENED.fetch_add(1, Relaxed), path.to_path_buf());
        let handle = Handle { number, path, died: OnceLock::new() };
        let path = &handle.path;
        let not_whole = format!("{}: not a whole HDF5 file", path.display());
        handle.told(Ask::Open).map_err(|cause| cause.about(not_whole))?;
        Ok(Self { handle: Arc::new(handle), mapped: Arc::new(mapped) })
    }
}

impl Hdf5File {
    fn failed(&self, name: &str, cause: Failure) -> Error {
        cause.about(format_args!("{}: `{name}`", self.path().display()))
    }
}

impl Source for Hdf5File {
    fn path(&self) -> &Path {
        &self.handle.path
    }

    fn check(&self) -> Result<()> {
        match self.handle.died.get() {
            None => Ok(()),
            Some((exit, text)) => {
                Err(Error::new(*exit, format_args!("{}: {text}", self.path().display())))
            }
        }
    }

    fn names(&self) -> Vec<String> {
        match self.handle.told(Ask::Names) {
            Ok(Reply::Names(names)) => names,
            _ => Vec::new(),
        }
    }

    fn kind(&self, name: &str) -> String {
        match self.handle.told(Ask::Kind(name.into())) {
            Ok(Reply::Kind(kind)) => kind,
            _ => "unreadable".into(),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self.handle.told(Ask::Shape(name.into())) {
            Ok(Reply::Shape(shape)) => shape,
            _ => None,
        }
    }

    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let numbers = self.handle.ask(Ask::Numbers(name.into()));
        let (_, values) = numbers.map_err(|cause| self.failed(name, cause))?;
        Ok(values)
    }

    fn array(&self, name: &str, axes: &Axes) -> Result<Array> {
        if self.shape(name).is_none() {
            return Err(bad(self, format!("no `{name}`; found {}", contents(self))));
        }
        let form = match self.handle.told(Ask::Dataset(name.into())) {
            Ok(Reply::Dataset(form)) => form,
            Ok(_) => return Err(Error::bug(format!("{}: not the answer", self.path().display()))),
            Err(cause) => return Err(self.failed(name, cause)),
        };
        let shape = form.shape.clone();
        let place = match form.mapped {
            Some((offset, element)) => {
                Place::File { file: self.mapped.clone(), offset, element, fortran: false }
            }
            None => {
                let (handle, name) = (self.handle.clone(), name.into());
                Place::Library(Stored { handle, name, form })
            }
        };
        Array::new(self, name, shape, axes, place)
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        match self.handle.told(Ask::Attributes(place.map(Into::into))) {
            Ok(Reply::Attributes(all)) => all,
            _ => Map::new(),
        }
    }

    fn text(&self, place: Option<&str>, name: &str) -> Option<String> {
        match self.handle.told(Ask::Text(place.map(Into::into), name.into())) {
            Ok(Reply::Text(text)) => text,
            _ => None,
        }
    }

    fn groups(&self) -> Vec<String> {
        match self.handle.told(Ask::Groups) {
            Ok(Reply::Names(names)) => names,
            _ => Vec::new(),
        }
    }
}
