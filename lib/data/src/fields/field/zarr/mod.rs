//! Zarr version 2: a folder (`.zarr`) of arrays, each a folder of chunks with metadata in JSON.
//!
//! Chunks may be uncompressed, or compressed with zlib, gzip, Zstandard or Blosc (with BloscLZ or LZ4, Zarr's default);
//! other compressors and all filters are refused by name. In this format, a missing chunk holds the fill value. A lost
//! chunk looks the same, so the user must confirm that missing chunks were never written.

mod chunks;
mod compressor;

use super::element::{from_numpy, integer_bytes};
use super::hdf5_file::MAX_CHUNK;
use super::packing::Packing;
use super::source::{ArrayStorage, Source};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use unix::space::human_bytes;
use unix::text::quote;
use unix::{Error, Result, small};

use chunks::Chunks;
use compressor::Compressor;

/// Maximum size of a metadata file in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The folder of a group of arrays, or of a single array.
#[derive(Debug)]
pub(super) struct ZarrGroup {
    path: PathBuf,
    /// Whether missing chunks hold the fill value.
    fill_missing: bool,
}

/// The file `.zarray`.
#[derive(Debug, Deserialize)]
struct Description {
    zarr_format: u32,
    shape: Vec<usize>,
    chunks: Vec<usize>,
    dtype: String,
    compressor: Option<Codec>,
    fill_value: Value,
    order: String,
    #[serde(default, deserialize_with = "list")]
    filters: Vec<Codec>,
    dimension_separator: Option<String>,
}

/// Parses a list; null counts as an empty list.
fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Codec>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A compressor or a filter of chunks.
#[derive(Debug, Deserialize)]
struct Codec {
    id: String,
    #[serde(default)]
    cname: String,
}

impl ZarrGroup {
    /// Errors: 66 when the folder does not exist, 65 when it is neither a group nor an array of version 2.
    pub fn open(path: &Path, fill_missing: bool) -> Result<Self> {
        fs::read_dir(path).map_err(|cause| Error::open(path, cause))?;
        let is_there = |name| path.join(name).exists();
        if !is_there(".zgroup") && !is_there(".zarray") {
            return Err(Error::data(format!(
                "{}: not Zarr version 2: {}",
                path.display(),
                if is_there("zarr.json") {
                    "it is version 3; save it with zarr_format=2"
                } else {
                    "neither .zgroup nor .zarray is in it"
                }
            )));
        }
        Ok(Self { path: path.to_path_buf(), fill_missing })
    }

    fn folder(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.path.clone() } else { self.path.join(name) }
    }

    fn description(&self, name: &str) -> Result<Description> {
        let path = self.folder(name).join(".zarray");
        let bytes = small::read(&path, MAX_BYTES)?;
        let data_error = |what: String| Error::data(format!("{}: {what}", path.display()));
        let found: Description =
            serde_json::from_slice(&bytes).map_err(|cause| data_error(cause.to_string()))?;
        let rank = found.shape.len();
        if found.zarr_format != 2 || found.chunks.len() != rank || found.chunks.contains(&0) {
            return Err(data_error("no metadata of a version 2 array".into()));
        }
        Ok(found)
    }

    fn chunks(&self, name: &str) -> Result<(Vec<usize>, Chunks)> {
        let data_error = |what: String| self.invalid(format!("`{name}`: {what}"));
        let found = self.description(name)?;
        if !found.filters.is_empty() {
            let filters: Vec<&str> = found.filters.iter().map(|codec| codec.id.as_str()).collect();
            let filters = quote(&filters.join(", "));
            let what = format!("filter {filters} is not supported; save it without filters");
            return Err(data_error(what));
        }
        let separator = found.dimension_separator.unwrap_or_else(|| ".".into());
        if !matches!(separator.as_str(), "." | "/") {
            return Err(data_error(format!(
                "dimension separator `{}` is not supported; save it with `.` or `/`",
                quote(&separator)
            )));
        }
        let dtype = from_numpy(&found.dtype)
            .ok_or_else(|| data_error(format!("dtype {} is not supported", quote(&found.dtype))))?;
        let compressor = match &found.compressor {
            None => Compressor::None,
            Some(codec) => Compressor::of(&codec.id, &codec.cname).ok_or_else(|| {
                data_error(format!(
                    "compressor {} is not supported; save it with blosc-lz4, zstd, zlib, gzip or none",
                    quote(format!("{} {}", codec.id, codec.cname).trim_end())
                ))
            })?,
        };
        let numbers = found.chunks.iter().try_fold(dtype.bytes(), |n, dim| n.checked_mul(*dim));
        if numbers.is_none_or(|bytes| bytes > MAX_CHUNK) {
            return Err(data_error(format!(
                "chunks of {:?} {} are larger than {}, the largest supported; save it in smaller chunks",
                found.chunks,
                found.dtype,
                human_bytes(MAX_CHUNK as u64)
            )));
        }
        if !matches!(found.order.as_str(), "C" | "F") {
            return Err(data_error(format!("order {} is neither C nor F", quote(&found.order))));
        }
        let attributes = self.attributes_of(name);
        let fill = match &found.fill_value {
            Value::Null => None,
            Value::Number(number) => number.as_f64(),
            Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        // xarray, which names the dimensions, marks missing values with the fill value. Other writers may have kept the
        // default of 0, which marks nothing.
        let is_marker = |fill: &f64| {
            !self.fill_missing && (*fill != 0.0 || attributes.contains_key("_ARRAY_DIMENSIONS"))
        };
        let packing = Packing::of(&attributes, fill.filter(is_marker), integer_bytes(dtype))
            .map_err(data_error)?;
        let chunks = Chunks {
            folder: self.folder(name),
            shape: found.shape.clone(),
            chunk: found.chunks,
            dtype,
            compressor,
            fill: match &found.fill_value {
                Value::Null => 0.0,
                _ => fill.unwrap_or(f64::NAN),
            },
            packing,
            fortran: found.order == "F",
            separator,
            fill_missing: self.fill_missing,
        };
        chunks.require_all().map_err(data_error)?;
        Ok((found.shape, chunks))
    }

    fn attributes_of(&self, name: &str) -> Map<String, Value> {
        let bytes = small::read(&self.folder(name).join(".zattrs"), MAX_BYTES);
        bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }
}

impl Source for ZarrGroup {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        if self.path.join(".zarray").exists() {
            return Vec::new();
        }
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let members = entries.filter(|entry| entry.path().is_dir());
        let mut names: Vec<String> =
            members.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }

    fn kind(&self, name: &str) -> String {
        let has = |file| self.folder(name).join(file).exists();
        match (has(".zarray"), has(".zgroup")) {
            (true, _) => "array with a damaged .zarray".into(),
            (false, true) => "group".into(),
            (false, false) => "folder without .zarray".into(),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.description(name).ok()?.shape)
    }

    fn place(&self, name: &str) -> Result<(Vec<usize>, ArrayStorage)> {
        let (shape, chunks) = self.chunks(name)?;
        Ok((shape, ArrayStorage::Parts(Box::new(chunks))))
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        self.attributes_of(place.unwrap_or(""))
    }

    fn only_array(&self) -> Option<String> {
        self.path.join(".zarray").exists().then(String::new)
    }
}
