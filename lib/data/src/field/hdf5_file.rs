//! An HDF5 file, opened through the library, and mapped for what the library need not convert.

use super::array::{Array, Place};
use super::axes::Axes;
use super::element::Element;
use super::mapped::MappedFile;
use super::source::{Source, bad, contents};
use hdf5::datatype::ByteOrder;
use hdf5::types::{FixedAscii, FixedUnicode, TypeDescriptor, VarLenAscii, VarLenUnicode};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unix::{Error, Result};

/// Bytes of unpacked chunks that are kept of an open dataset, so that neighbouring trajectories in the same
/// chunks are unpacked once; and slots to find them, a prime.
const CACHE: usize = 32 << 20;
const SLOTS: usize = 10_007;

/// Most values of an attribute that are read.
const MAX_LIST: usize = 1 << 20;

/// An open file. Locking is off: many ranks read the same file, and network file systems often cannot
/// lock.
#[derive(Debug)]
pub(super) struct Hdf5File {
    path: PathBuf,
    file: hdf5::File,
    /// The same file past the library.
    mapped: Arc<MappedFile>,
}

impl Hdf5File {
    /// Errors: 66 when it cannot be opened, 65 when it is no HDF5 file or is truncated.
    pub fn open(path: &Path) -> Result<Self> {
        // The library has poor words for missing files and folders.
        let mapped = MappedFile::open(path)?;
        let opened = hdf5::File::with_options()
            .with_fapl(|access| access.file_locking(false).chunk_cache(SLOTS, CACHE, 0.75))
            .open(path);
        let file = opened.map_err(|cause| {
            Error::data(format!("{}: not a whole HDF5 file: {cause}", path.display()))
        })?;
        Ok(Self { path: path.to_path_buf(), file, mapped: Arc::new(mapped) })
    }

    /// Calls `look` with the root, or with the group or dataset `place`.
    fn at<T>(&self, place: Option<&str>, look: impl FnOnce(&hdf5::Location) -> T) -> Option<T> {
        let Some(place) = place else { return Some(look(&self.file)) };
        match self.file.group(place) {
            Ok(group) => Some(look(&group)),
            Err(_) => self.file.dataset(place).ok().map(|dataset| look(&dataset)),
        }
    }
}

impl Source for Hdf5File {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.file.member_names().unwrap_or_default();
        names.sort();
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.file.dataset(name).ok()?.shape())
    }

    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let dataset = self.file.dataset(name);
        let values = dataset.and_then(|dataset| dataset.read_raw::<f64>());
        values.map_err(|cause| bad(self, format!("`{name}`: {cause}")))
    }

    fn array(&self, name: &str, axes: &Axes) -> Result<Array> {
        let dataset = self
            .file
            .dataset(name)
            .map_err(|_| bad(self, format!("no `{name}`; found {}", contents(self))))?;
        let dtype = dataset.dtype().map_err(|cause| bad(self, format!("`{name}`: {cause}")))?;
        if !dtype.is::<f32>() && dtype.conv_to::<f32>().is_none() {
            return Err(bad(self, format!("`{name}` holds no numbers")));
        }
        let little = dtype.byte_order() == ByteOrder::LittleEndian;
        let element = if dtype.is::<f32>() {
            Some(Element::F32)
        } else if dtype.is::<f64>() {
            Some(Element::F64)
        } else if dtype.is::<half::f16>() {
            Some(Element::F16)
        } else {
            None
        };
        let place = match dataset.offset() {
            Some(offset) if element.is_some() && little && self.file.userblock() == 0 => {
                let element = element.unwrap_or(Element::F32);
                Place::File { file: self.mapped.clone(), offset, element, fortran: false }
            }
            _ => Place::Library { dataset: dataset.clone() },
        };
        Array::new(self, name, dataset.shape(), axes, place)
    }

    /// Values of other types are told by their type alone.
    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        let all = |place: &hdf5::Location| {
            let value = |name: String| {
                let attribute = place.attr(&name).ok()?;
                let unreadable = |_| Value::String("(not readable)".into());
                Some((name, value_of(&attribute).unwrap_or_else(unreadable)))
            };
            place.attr_names().unwrap_or_default().into_iter().filter_map(value).collect()
        };
        self.at(place, all).unwrap_or_default()
    }

    fn text(&self, place: Option<&str>, name: &str) -> Option<String> {
        self.at(place, |place| text_of(&place.attr(name).ok()?))?
    }

    fn groups(&self) -> Vec<String> {
        // Links are enough to look at: there may be thousands.
        let has_data = |name: &String| self.file.group(name).is_ok_and(|g| g.link_exists("data"));
        self.names().into_iter().filter(has_data).collect()
    }
}

/// One value, or the list of all.
fn value_of(attribute: &hdf5::Attribute) -> hdf5::Result<Value> {
    fn list<T: Into<Value>>(values: Vec<T>) -> Value {
        let mut all: Vec<Value> = values.into_iter().map(Into::into).collect();
        if all.len() == 1 { all.remove(0) } else { all.into() }
    }
    let kind = attribute.dtype()?.to_descriptor()?;
    let described = || Value::String(format!("{kind} {:?}", attribute.shape()));
    Ok(match kind {
        _ if attribute.size() > MAX_LIST => described(),
        TypeDescriptor::Float(_) => list(attribute.read_raw::<f64>()?),
        TypeDescriptor::Integer(_) => list(attribute.read_raw::<i64>()?),
        TypeDescriptor::Unsigned(_) => list(attribute.read_raw::<u64>()?),
        TypeDescriptor::Boolean => list(attribute.read_raw::<bool>()?),
        _ if attribute.size() == 1 => text_of(attribute).map_or_else(described, Value::String),
        _ => described(),
    })
}

/// An attribute that is one text.
fn text_of(attribute: &hdf5::Attribute) -> Option<String> {
    fn first<T: ToString>(values: hdf5::Result<Vec<T>>) -> Option<String> {
        values.ok()?.first().map(ToString::to_string)
    }
    match attribute.dtype().ok()?.to_descriptor().ok()? {
        TypeDescriptor::VarLenUnicode => first(attribute.read_raw::<VarLenUnicode>()),
        TypeDescriptor::VarLenAscii => first(attribute.read_raw::<VarLenAscii>()),
        // Shorter texts convert to longer ones.
        TypeDescriptor::FixedUnicode(length) if length <= 1024 => {
            first(attribute.read_raw::<FixedUnicode<1024>>())
        }
        TypeDescriptor::FixedAscii(length) if length <= 1024 => {
            first(attribute.read_raw::<FixedAscii<1024>>())
        }
        _ => None,
    }
}
