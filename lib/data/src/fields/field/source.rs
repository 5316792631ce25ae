//! The interface between file formats and layouts: layouts are recognised through [`Source`] alone.

use super::axes::{Axes, Axis};
use super::mapped::MappedFile;
use super::packing::Packing;
use crate::fields::parameter::{Parameter, is_known};
use serde_json::{Map, Value};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tensor::FileDtype;
use unix::{Error, Result};

/// Root attribute that names the periodic spatial axes, e.g. `x,y`; empty when there are none.
pub const PERIODIC: &str = "periodic";

/// Maximum number of values in an array that is read as a whole, such as coordinates and parameters.
pub(super) const MAX_SMALL: usize = 1 << 24;

/// Storage of an array.
#[derive(Debug)]
pub(super) enum ArrayStorage {
    /// Contiguous in a file, in C order or in Fortran order (`fortran`).
    File { file: Arc<MappedFile>, offset: u64, dtype: FileDtype, fortran: bool, packing: Packing },
    /// Read in parts by the file format.
    Parts(Box<dyn Parts>),
}

/// An array that the file format reads in parts and unpacks.
pub(super) trait Parts: fmt::Debug + Send + Sync {
    /// Reads the values at `ranges` in C order. A value too large for f32 is stored in `beyond`.
    fn read(&self, ranges: &[Range<usize>], beyond: &mut Option<f64>) -> Result<Vec<f32>>;
    /// Reads all values in C order.
    fn numbers(&self) -> Result<Vec<f64>>;
    /// Packing of the stored numbers.
    fn packing(&self) -> &Packing;
    /// Shape of the chunks, if the array is chunked. A chunk is always read completely.
    fn chunk(&self) -> Option<&[usize]>;
    /// Whether chunks are compressed.
    fn is_compressed(&self) -> bool;
    /// Size in bytes of a stored value.
    fn item_size(&self) -> usize;
}

/// A file (or folder) of named arrays.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// Path of the file.
    fn path(&self) -> &Path;

    /// Creates the error (65) for invalid data in the file.
    fn invalid(&self, what: String) -> Error {
        Error::data(format!("{}: {what}", self.path().display()))
    }

    /// Checks that the answers so far can be trusted. Errors: 65 or 74 if reading the file failed altogether.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Describes the root entry `name` if it is not an array.
    fn kind(&self, _name: &str) -> String {
        "group".into()
    }

    /// Names at the root, in order: arrays, and groups where the format has them.
    fn names(&self) -> Vec<String>;

    /// Shape of the array `name`, if there is one.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// Returns the shape and storage of an array. Errors: 65 if it does not exist or is not an array of numbers.
    fn place(&self, name: &str) -> Result<(Vec<usize>, ArrayStorage)>;

    /// Reads the unpacked values of an array with at most [`MAX_SMALL`] values; see [`numbers`]. Errors: 65 if they
    /// cannot be read.
    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let (shape, place) = self.place(name)?;
        match place {
            ArrayStorage::File { file, offset, dtype, packing, .. } => {
                let size = shape.iter().product::<usize>() * dtype.bytes();
                if offset.checked_add(size as u64).is_none_or(|end| end > file.size()) {
                    return Err(self.invalid(format!("`{name}` is truncated")));
                }
                let bytes = file.bytes(offset as usize, size)?;
                let unpack = |one| packing.unpack(dtype.read(one));
                Ok(bytes.chunks_exact(dtype.bytes()).map(unpack).collect())
            }
            ArrayStorage::Parts(parts) => parts.numbers(),
        }
    }

    /// The attributes of the root or of `place`, a group or an array. Non-finite values are null.
    fn attributes(&self, place: Option<&str>) -> Map<String, Value>;

    /// The value of a text attribute of the root.
    fn text(&self, name: &str) -> Option<String> {
        text(&self.attributes(None), name)
    }

    /// Names of the groups at the root that hold an array `data`.
    fn groups(&self) -> Vec<String> {
        let has_data = |name: &String| self.shape(&format!("{name}/data")).is_some();
        self.names().into_iter().filter(has_data).collect()
    }

    /// Meaning of the dimensions of the array `tensor`, if the format defines it.
    fn axes(&self) -> Option<Axes> {
        None
    }

    /// Name of the only array, which is then the field; `None` if there may be several arrays.
    fn only_array(&self) -> Option<String> {
        None
    }
}

/// Returns the value of a text attribute.
fn text(attributes: &Map<String, Value>, name: &str) -> Option<String> {
    Some(attributes.get(name)?.as_str()?.into())
}

/// Reads the values of a small array; empty if it does not exist. Errors: 65 if it has more than [`MAX_SMALL`] values
/// or cannot be read.
pub(super) fn numbers(source: &dyn Source, name: &str) -> Result<Vec<f64>> {
    let Some(shape) = source.shape(name) else { return Ok(Vec::new()) };
    let count = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
    if count.is_none_or(|count| count > MAX_SMALL) {
        let what =
            format!("`{name}` has shape {shape:?}; at most {MAX_SMALL} coordinates are supported");
        return Err(source.invalid(what));
    }
    source.numbers(name)
}

/// Describes the contents of the root.
pub(super) fn contents(source: &dyn Source) -> String {
    let describe = |name: &String| match source.shape(name) {
        Some(shape) => format!("{name} {shape:?}"),
        None => format!("{name} ({})", source.kind(name)),
    };
    let found: Vec<String> = source.names().iter().take(8).map(describe).collect();
    if found.is_empty() { "nothing".into() } else { found.join(", ") }
}

/// Returns whether each spatial axis is periodic; see [`Field::periodic`](super::Field::periodic).
pub(super) fn periodic(source: &dyn Source, space: usize) -> Vec<bool> {
    let axes = Axis::SPACE[..space].iter();
    if let Some(text) = source.text(PERIODIC) {
        return axes.map(|axis| text.contains(axis.letter())).collect();
    }
    let name = source.path().file_name().unwrap_or_default().to_string_lossy();
    let starts =
        ["1D_Burgers", "1D_Advection", "ReacDiff"].iter().any(|begin| name.starts_with(begin));
    axes.map(|_| starts || name.contains("_periodic_")).collect()
}

/// Reads the parameters from attributes of the root or of `places`, or from lines of their attribute `config`, else
/// from the file name. Errors: see [`parameter_at`].
pub(super) fn parameter(source: &dyn Source, places: &[String]) -> Result<Option<Parameter>> {
    let all = std::iter::once(None).chain(places.iter().map(|place| Some(place.as_str())));
    let all: Vec<Option<&str>> = all.collect();
    Ok(parameter_at(source, &all)?.or_else(|| parameter_of_name(source)))
}

/// Reads the parameters of the first of `places` that states any: in the attribute [`PARAMETERS`], in attributes whose
/// name is in [`NAMES`](crate::fields::parameter::NAMES), or in lines of the attribute `config`. `None` is the root.
///
/// Errors: 65 if an attribute with the name of a parameter has several values.
pub(super) fn parameter_at(
    source: &dyn Source,
    places: &[Option<&str>],
) -> Result<Option<Parameter>> {
    for place in places {
        let attributes = source.attributes(*place);
        let known = match listed(&attributes) {
            Some(parameter) => Some(parameter),
            None => Parameter::of(numbers_of(source, *place, &attributes)?),
        };
        if known.is_some() {
            return Ok(known);
        }
    }
    Ok(None)
}

/// Attribute in which imported files list all their parameters, regardless of their names: `nu=0.1,depth=2`.
pub(crate) const PARAMETERS: &str = "longhaul_parameters";

fn listed(attributes: &Map<String, Value>) -> Option<Parameter> {
    text(attributes, PARAMETERS)?.parse().ok()
}

/// Reads every name with a numeric value at the root or at `place`: from the attribute [`PARAMETERS`] alone if there is
/// one, else from all attributes, then from lines of the attribute `config`.
///
/// Errors: 65 if an attribute with the name of a parameter has several values.
pub(super) fn stated(source: &dyn Source, place: Option<&str>) -> Result<Vec<(String, f64)>> {
    let attributes = source.attributes(place);
    match listed(&attributes) {
        Some(parameter) => Ok(parameter.iter().map(|(name, value)| (name.into(), value)).collect()),
        None => numbers_of(source, place, &attributes),
    }
}

/// Returns the numeric attributes, then the numeric lines of the attribute `config`.
fn numbers_of(
    source: &dyn Source,
    place: Option<&str>,
    attributes: &Map<String, Value>,
) -> Result<Vec<(String, f64)>> {
    let mut all = Vec::new();
    for (name, value) in attributes {
        let number = match value {
            Value::Null => Some(f64::NAN),
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Array(values) if values.len() == 1 => values[0].as_f64(),
            Value::Array(values) if is_known(name) => {
                let of = place.map_or("the root".into(), |place| format!("`{place}`"));
                return Err(source.invalid(format!(
                        "attribute `{name}` of {of} has {} values, and a parameter is one number; store one, \
                         or a dataset `{name}` with a value for each trajectory",
                        values.len()
                    ),
                ));
            }
            _ => None,
        };
        all.extend(number.map(|number| (name.clone(), number)));
    }
    // Lines `name: number` in YAML, as PDEBench's generators store their configuration.
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_string(), value.trim().parse().ok()?))
    };
    all.extend(text(attributes, "config").unwrap_or_default().lines().filter_map(pair));
    Ok(all)
}

/// Parses the parameters in the file name.
pub(super) fn parameter_of_name(source: &dyn Source) -> Option<Parameter> {
    Parameter::from_file_name(&source.path().file_name()?.to_string_lossy())
}
