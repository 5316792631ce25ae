//! Fields in safetensors files: the same array names as in HDF5, with attributes as metadata.

use super::mapped::MappedFile;
use super::packing::Packing;
use super::source::{ArrayStorage, Source, contents};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::safetensors::Header;
use unix::{Error, Result};

/// An open file.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    file: Arc<MappedFile>,
    header: Header,
}

impl SafetensorsFile {
    /// Errors: 66 when it cannot be opened, 65 when it is not a safetensors file or is truncated.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let header = Header::read(file.file()).map_err(|what| {
            Error::data(format!("{}: not a complete safetensors file: {what}", path.display()))
        })?;
        Ok(Self { path: path.to_path_buf(), file: Arc::new(file), header })
    }
}

impl Source for SafetensorsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.header.entries.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.header.get(name)?.shape.clone())
    }

    fn place(&self, name: &str) -> Result<(Vec<usize>, ArrayStorage)> {
        let missing = || self.invalid(format!("no `{name}`; found {}", contents(self)));
        let entry = self.header.get(name).ok_or_else(missing)?;
        let (file, dtype) = (self.file.clone(), entry.dtype);
        let (offset, packing) = (entry.start, Packing::default());
        let place = ArrayStorage::File { file, offset, dtype, fortran: false, packing };
        Ok((entry.shape.clone(), place))
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        let all = self.header.metadata.iter().filter(|_| place.is_none());
        all.map(|(name, text)| (name.clone(), text.clone().into())).collect()
    }
}
