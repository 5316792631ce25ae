//! What any file format tells about the arrays in it. Layouts are recognised through this alone.

use super::PERIODIC;
use super::array::Array;
use super::axes::{Axes, Axis};
use super::hdf5_file::Hdf5File;
use super::numpy::NumpyFile;
use super::safetensors_file::SafetensorsFile;
use super::table::Table;
use super::zarr::ZarrGroup;
use crate::parameter::Parameter;
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;
use unix::{Error, Result};

/// A file (or folder) of named arrays.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// Where it is.
    fn path(&self) -> &Path;

    /// Names at the root, in order: arrays, and groups where the format has them.
    fn names(&self) -> Vec<String>;

    /// Shape of an array, where there is one of this name.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// The numbers of a small array. Errors (65) when they cannot be read.
    fn numbers(&self, name: &str) -> Result<Vec<f64>>;

    /// An array, `axes` being the meaning of its dimensions. Errors (65): see [`Array`].
    fn array(&self, name: &str, axes: &Axes) -> Result<Array>;

    /// Numbers that are attributes of the root or of `place`, a group or an array, with their names.
    fn attributes(&self, place: Option<&str>) -> Vec<(String, f64)>;

    /// The text of an attribute of the root or of `place`.
    fn text(&self, place: Option<&str>, name: &str) -> Option<String>;

    /// Everything that the root says of itself.
    fn all_attributes(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Names of the groups of the root that hold an array `data`.
    fn groups(&self) -> Vec<String> {
        let has_data = |name: &String| self.shape(&format!("{name}/data")).is_some();
        self.names().into_iter().filter(has_data).collect()
    }

    /// What the dimensions of its array `tensor` are, where it knows.
    fn axes(&self) -> Option<Axes> {
        None
    }

    /// Its array, when it has just one: the field, of whatever name.
    fn only_array(&self) -> Option<String> {
        None
    }
}

/// Opens a file by the ending of its name: `.npy`, `.npz`, `.csv`, `.zarr`, `.safetensors`, else HDF5.
/// `fill_missing`: chunks that are not there hold the fill value.
///
/// Errors: 66 when it cannot be opened, 65 when it is not what its name says.
pub(super) fn open(path: &Path, fill_missing: bool) -> Result<Box<dyn Source>> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    Ok(match ending.to_ascii_lowercase().as_str() {
        "npy" | "npz" => Box::new(NumpyFile::open(path)?),
        "csv" => Box::new(Table::open(path)?),
        "zarr" => Box::new(ZarrGroup::open(path, fill_missing)?),
        "safetensors" => Box::new(SafetensorsFile::open(path)?),
        _ => Box::new(Hdf5File::open(path)?),
    })
}

/// Bad data in a source.
pub(super) fn bad(source: &dyn Source, what: impl fmt::Display) -> Error {
    Error::data(format!("{}: {what}", source.path().display()))
}

/// What the root holds, in words.
pub(super) fn contents(source: &dyn Source) -> String {
    let describe = |name: &String| match source.shape(name) {
        Some(shape) => format!("{name} {shape:?}"),
        None => format!("{name} (group)"),
    };
    let found: Vec<String> = source.names().iter().take(8).map(describe).collect();
    if found.is_empty() { "nothing".into() } else { found.join(", ") }
}

/// Which of the axes of space are periodic; see [`Field::periodic`](super::Field::periodic).
pub(super) fn periodic(source: &dyn Source, space: usize) -> Vec<bool> {
    let axes = Axis::SPACE[..space].iter();
    if let Some(text) = source.text(None, PERIODIC) {
        return axes.map(|axis| text.contains(axis.letter())).collect();
    }
    let name = source.path().file_name().unwrap_or_default().to_string_lossy();
    let starts =
        ["1D_Burgers", "1D_Advection", "ReacDiff"].iter().any(|begin| name.starts_with(begin));
    axes.map(|_| starts || name.contains("_periodic_")).collect()
}

/// The parameters: attributes of the root or of `places`, or lines of their attribute `config`, else
/// what the file name says.
pub(super) fn parameter(source: &dyn Source, places: &[String]) -> Option<Parameter> {
    let all = std::iter::once(None).chain(places.iter().map(|place| Some(place.as_str())));
    let all: Vec<Option<&str>> = all.collect();
    parameter_at(source, &all).or_else(|| parameter_of_name(source))
}

/// The parameters that the first of `places` tells which tells any, by attributes or by lines of its
/// attribute `config`; the root is `None`.
pub(super) fn parameter_at(source: &dyn Source, places: &[Option<&str>]) -> Option<Parameter> {
    places.iter().find_map(|place| {
        Parameter::of(&source.attributes(*place)).or_else(|| {
            let config = source.text(*place, "config")?;
            Parameter::of(&lines(&config))
        })
    })
}

/// The parameters that the file name tells.
pub(super) fn parameter_of_name(source: &dyn Source) -> Option<Parameter> {
    Parameter::from_file_name(&source.path().file_name()?.to_string_lossy())
}

/// Lines `name: number` of a configuration in YAML, as PDEBench's generators keep it.
fn lines(config: &str) -> Vec<(String, f64)> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_string(), value.trim().parse().ok()?))
    };
    config.lines().filter_map(pair).collect()
}
