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

/// Attribute of the root that names the periodic spatial axes, e.g. `x,y`; empty when there are none.
pub const PERIODIC: &str = "periodic";

/// Maximum number of values of an array that is read completely: coordinates, parameters.
pub(super) const MAX_SMALL: usize = 1 << 24;

/// Where an array is stored.
#[derive(Debug)]
pub(super) enum ArrayStorage {
    /// Contiguous in a file, in C order or in Fortran order (`fortran`).
    File { file: Arc<MappedFile>, offset: u64, dtype: FileDtype, fortran: bool, packing: Packing },
    /// Read in parts by its format.
    Parts(Box<dyn Parts>),
}

/// An array that its format reads in parts, and unpacks.
pub(super) trait Parts: fmt::Debug + Send + Sync {
    /// Reads the values at `ranges` in C order. A value too large for f32 is stored in `beyond`.
    fn read(&self, ranges: &[Range<usize>], beyond: &mut Option<f64>) -> Result<Vec<f32>>;
    /// Reads all values in C order.
    fn numbers(&self) -> Result<Vec<f64>>;
    /// How its numbers are packed.
    fn packing(&self) -> &Packing;
    /// The shape of its chunks, if it is chunked. A chunk is always read completely.
    fn chunk(&self) -> Option<&[usize]>;
    /// Whether chunks are compressed.
    fn is_compressed(&self) -> bool;
    /// Size in bytes of a stored value.
    fn number_bytes(&self) -> usize;
}

/// A file (or folder) of named arrays.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// Its path.
    fn path(&self) -> &Path;

    /// The error (65) for invalid data in it.
    fn invalid(&self, what: String) -> Error {
        Error::data(format!("{}: {what}", self.path().display()))
    }

    /// Whether its answers so far can be trusted. Errors (65): reading it failed altogether.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Describes what `name` at the root is, when it is not an array.
    fn kind(&self, _name: &str) -> String {
        "group".into()
    }

    /// Names at the root, in order: arrays, and groups where the format has them.
    fn names(&self) -> Vec<String>;

    /// Shape of the array of this name, if there is one.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// Shape and place of an array. Errors (65): it does not exist, or is not an array of numbers.
    fn place(&self, name: &str) -> Result<(Vec<usize>, ArrayStorage)>;

    /// The values of an array with at most [`MAX_SMALL`], unpacked; see [`numbers`]. Errors (65): they cannot be read.
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

    /// The attributes of the root or of `place`, a group or an array. A value that is not finite is null.
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

    /// The meaning of the dimensions of its array `tensor`, if the format defines it.
    fn axes(&self) -> Option<Axes> {
        None
    }

    /// The name of its array if it has exactly one, which is then the field.
    fn only_array(&self) -> Option<String> {
        None
    }
}

/// The value of a text attribute.
fn text(attributes: &Map<String, Value>, name: &str) -> Option<String> {
    Some(attributes.get(name)?.as_str()?.into())
}

/// The values of a small array, none if it does not exist. Errors (65): it has more than [`MAX_SMALL`], or cannot be
/// read.
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

/// Describes what the root holds.
pub(super) fn contents(source: &dyn Source) -> String {
    let describe = |name: &String| match source.shape(name) {
        Some(shape) => format!("{name} {shape:?}"),
        None => format!("{name} ({})", source.kind(name)),
    };
    let found: Vec<String> = source.names().iter().take(8).map(describe).collect();
    if found.is_empty() { "nothing".into() } else { found.join(", ") }
}

/// Which spatial axes are periodic; see [`Field::periodic`](super::Field::periodic).
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

/// The parameters: from attributes of the root or of `places`, or from lines of their attribute `config`, else from the
/// file name. Errors: see [`parameter_at`].
pub(super) fn parameter(source: &dyn Source, places: &[String]) -> Result<Option<Parameter>> {
    let all = std::iter::once(None).chain(places.iter().map(|place| Some(place.as_str())));
    let all: Vec<Option<&str>> = all.collect();
    Ok(parameter_at(source, &all)?.or_else(|| parameter_of_name(source)))
}

/// The parameters of the first of `places` that states any: by the attribute [`PARAMETERS`], by attributes whose name
/// is in [`NAMES`](crate::fields::parameter::NAMES), or by lines of its attribute `config`. The root is `None`.
///
/// Errors (65): an attribute with the name of a parameter has several values.
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

/// The attribute in which imported files list their parameters, whatever their names: `nu=0.1,depth=2`.
pub(crate) const PARAMETERS: &str = "longhaul_parameters";

fn listed(attributes: &Map<String, Value>) -> Option<Parameter> {
    text(attributes, PARAMETERS)?.parse().ok()
}

/// Every name with a numeric value at the root or a place: by its attribute [`PARAMETERS`] alone, else by other
/// attributes, then by lines of its attribute `config`.
///
/// Errors (65): an attribute with the name of a parameter has several values.
pub(super) fn stated(source: &dyn Source, place: Option<&str>) -> Result<Vec<(String, f64)>> {
    let attributes = source.attributes(place);
    match listed(&attributes) {
        Some(parameter) => Ok(parameter.iter().map(|(name, value)| (name.into(), value)).collect()),
        None => numbers_of(source, place, &attributes),
    }
}

/// The numeric attributes, then the numeric lines of the attribute `config`.
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

/// The parameters in the file name.
pub(super) fn parameter_of_name(source: &dyn Source) -> Option<Parameter> {
    Parameter::from_file_name(&source.path().file_name()?.to_string_lossy())
}
