//! Fields in safetensors files: the same names as in HDF5, attributes as metadata.

use super::array::{Array, Place};
use super::axes::Axes;
use super::element::Element;
use super::mapped::MappedFile;
use super::source::{Source, bad, contents};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unix::{Error, Result};

/// Largest header, in bytes; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// Memory for each byte of a header when it is parsed.
const PARSED: u64 = 16;

/// An open file.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    file: Arc<MappedFile>,
    /// First byte of the tensors.
    begin: u64,
    header: Metadata,
}

impl SafetensorsFile {
    /// Errors: 66 when it cannot be opened, 65 when it is no safetensors file or is truncated.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let size = file.size();
        let bad = |cause: String| {
            Error::data(format!("{}: not a whole safetensors file: {cause}", path.display()))
        };
        if size < 8 {
            return Err(bad(format!("{size} bytes")));
        }
        let length = file.bytes(0, 8)?;
        let length = u64::from_le_bytes(std::array::from_fn(|i| length[i]));
        if length > MAX_HEADER || 8 + length > size {
            return Err(bad(format!("a header of {length} bytes in a file of {size}")));
        }
        let what = format_args!("{}: the header of {length} bytes", path.display());
        unix::memory::ensure(&what, length.checked_mul(PARSED))?;
        let header = file.bytes(8, length as usize)?;
        let header: Metadata =
            serde_json::from_slice(header).map_err(|cause| bad(cause.to_string()))?;
        Ok(Self { path: path.to_path_buf(), file: Arc::new(file), begin: 8 + length, header })
    }

    /// A tensor of numbers. Errors (65): it is not there, of another type, or contradicts itself.
    fn info(&self, name: &str) -> Result<(&TensorInfo, Element)> {
        let missing = || bad(self, format!("no `{name}`; found {}", contents(self)));
        let info = self.header.info(name).ok_or_else(missing)?;
        let what = || bad(self, format!("`{name}` is {}, which is not read", info.dtype));
        let element = element(info.dtype).ok_or_else(what)?;
        let size = info.shape.iter().try_fold(element.size(), |size, n| size.checked_mul(*n));
        let (first, end) = info.data_offsets;
        if end.checked_sub(first) == size && size.is_some() {
            return Ok((info, element));
        }
        Err(bad(
            self,
            format!("`{name}` {:?} does not fill its bytes {first} to {end}", info.shape),
        ))
    }

    fn metadata(&self) -> impl Iterator<Item = (&String, &String)> {
        self.header.metadata().iter().flatten()
    }
}

impl Source for SafetensorsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort();
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.header.info(name)?.shape.clone())
    }

    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let (info, element) = self.info(name)?;
        let (first, end) = info.data_offsets;
        let at = self.begin + first as u64;
        if at.checked_add((end - first) as u64).is_none_or(|end| end > self.file.size()) {
            return Err(bad(self, format!("`{name}` is truncated")));
        }
        let bytes = self.file.bytes(at as usize, end - first)?;
        Ok(bytes.chunks_exact(element.size()).map(|one| element.read(one)).collect())
    }

    fn array(&self, name: &str, axes: &Axes) -> Result<Array> {
        let (info, element) = self.info(name)?;
        let offset = self.begin + info.data_offsets.0 as u64;
        let place = Place::File { file: self.file.clone(), offset, element, fortran: false };
        Array::new(self, name, info.shape.clone(), axes, place)
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        let mut all: Vec<_> = self.metadata().filter(|_| place.is_none()).collect();
        all.sort();
        all.into_iter().map(|(name, text)| (name.clone(), text.clone().into())).collect()
    }

    fn text(&self, place: Option<&str>, name: &str) -> Option<String> {
        let found = self.metadata().find(|(other, _)| *other == name);
        found.filter(|_| place.is_none()).map(|(_, text)| text.clone())
    }
}

fn element(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        Dtype::I8 => Element::I8,
        Dtype::I16 => Element::I16,
        Dtype::I32 => Element::I32,
        Dtype::I64 => Element::I64,
        Dtype::U8 => Element::U8,
        Dtype::U16 => Element::U16,
        Dtype::U32 => Element::U32,
        Dtype::U64 => Element::U64,
        _ => return None,
    })
}
