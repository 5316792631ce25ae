//! What files and manifests hold, as records for people and programs.

use crate::field::Field;
use crate::split::{Split, SplitName};
use crate::stats::Statistics;
use hdf5::types::{FixedAscii, FixedUnicode, TypeDescriptor, VarLenAscii, VarLenUnicode};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileRecord {
    /// Where it is.
    pub file: PathBuf,
    /// Regime, e.g. `nu=0.001`.
    pub parameter: Option<String>,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Frames of a trajectory.
    pub frames: usize,
    /// Points of the grid, e.g. `1024` or `128x128`.
    pub grid: String,
    /// Numbers at each point.
    pub channels: usize,
    /// `direct` when reads go past the HDF5 library, else `hdf5`.
    pub reads: &'static str,
    /// Size of the file.
    pub bytes: u64,
}

impl FileRecord {
    /// Opens a file and tells what is in it.
    pub fn of(path: &Path) -> Result<Self> {
        let field = Field::open(path)?;
        let shape = field.shape();
        let grid: Vec<String> = shape.grid.iter().map(ToString::to_string).collect();
        Ok(Self {
            file: path.to_path_buf(),
            parameter: field.parameter().map(ToString::to_string),
            trajectories: shape.trajectories,
            frames: shape.frames,
            grid: grid.join("x"),
            channels: shape.channels,
            reads: if field.is_direct() { "direct" } else { "hdf5" },
            bytes: std::fs::metadata(path).map_err(|cause| Error::open(path, cause))?.len(),
        })
    }
}

/// The trajectories of one file in one split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartRecord {
    /// The split.
    pub split: SplitName,
    /// Regime, e.g. `nu=0.001`.
    pub parameter: String,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Where the file is.
    pub file: PathBuf,
}

/// The parts of a manifest.
pub fn parts(split: &Split, manifest: &Path) -> Vec<PartRecord> {
    let of_split = |name: SplitName| {
        split.parts(name).iter().map(move |part| PartRecord {
            split: name,
            parameter: split.files[part.file].parameter.to_string(),
            trajectories: part.samples.len(),
            file: split.file_path(part.file, manifest),
        })
    };
    SplitName::ALL.into_iter().flat_map(of_split).collect()
}

/// One frame of a trajectory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrameRecord {
    /// Number of the frame.
    pub frame: usize,
    /// Its time, where the file has times.
    pub t: Option<f64>,
    /// Over the frame.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// All frames of a trajectory. Errors (2) when the file has no such trajectory.
pub fn frames(field: &Field, trajectory: usize) -> Result<Vec<FrameRecord>> {
    if trajectory >= field.trajectories() {
        return Err(Error::usage(format!(
            "{}: no trajectory {trajectory}, there are {} (from 0)",
            field.path().display(),
            field.trajectories()
        )));
    }
    let mut values = vec![0.0; field.shape().trajectory_len()];
    field.read(trajectory, &mut values)?;
    let of_frame = |(frame, values): (usize, &[f32])| {
        let t = field.t().get(frame).copied();
        Some(FrameRecord { frame, t, statistics: Statistics::of(values)? })
    };
    Ok(values.chunks_exact(field.shape().frame_len()).enumerate().filter_map(of_frame).collect())
}

/// A file in full: its record, parameter, attributes and the ends of its coordinates.
pub fn describe(path: &Path) -> Result<Value> {
    let field = Field::open(path)?;
    let ends = |values: &[f64]| match (values.first(), values.last()) {
        (Some(first), Some(last)) => serde_json::json!([first, last]),
        _ => Value::Null,
    };
    let mut record = serde_json::to_value(FileRecord::of(path)?).map_err(Error::bug)?;
    if let Value::Object(fields) = &mut record {
        fields.insert("x".into(), ends(field.x()));
        let times = field.t().get(..field.shape().frames).unwrap_or(field.t());
        fields.insert("t".into(), ends(times));
        fields.insert("attributes".into(), Value::Object(attributes(path)?));
    }
    Ok(record)
}

/// The root's attributes; arrays and other types are told by their type alone.
fn attributes(path: &Path) -> Result<Map<String, Value>> {
    let bad = |cause: hdf5::Error| Error::data(format!("{}: {cause}", path.display()));
    let file = crate::field::open_file(path)?;
    let mut all = Map::new();
    for name in file.attr_names().map_err(bad)? {
        let attribute = file.attr(&name).map_err(bad)?;
        let value = value_of(&attribute).unwrap_or_else(|_| Value::String("(not readable)".into()));
        all.insert(name, value);
    }
    Ok(all)
}

fn value_of(attribute: &hdf5::Attribute) -> hdf5::Result<Value> {
    let kind = attribute.dtype()?.to_descriptor()?;
    if attribute.size() != 1 {
        return Ok(Value::String(format!("{kind} {:?}", attribute.shape())));
    }
    let first = |values: Vec<String>| Value::String(values.into_iter().next().unwrap_or_default());
    Ok(match kind {
        TypeDescriptor::Float(_) => attribute.read_raw::<f64>()?[0].into(),
        TypeDescriptor::Integer(_) => attribute.read_raw::<i64>()?[0].into(),
        TypeDescriptor::Unsigned(_) => attribute.read_raw::<u64>()?[0].into(),
        TypeDescriptor::VarLenUnicode => {
            first(attribute.read_raw::<VarLenUnicode>()?.iter().map(ToString::to_string).collect())
        }
        TypeDescriptor::VarLenAscii => {
            first(attribute.read_raw::<VarLenAscii>()?.iter().map(ToString::to_string).collect())
        }
        // Shorter texts convert to longer ones.
        TypeDescriptor::FixedUnicode(length) if length <= 1024 => first(
            attribute.read_raw::<FixedUnicode<1024>>()?.iter().map(ToString::to_string).collect(),
        ),
        TypeDescriptor::FixedAscii(length) if length <= 1024 => first(
            attribute.read_raw::<FixedAscii<1024>>()?.iter().map(ToString::to_string).collect(),
        ),
        other => Value::String(other.to_string()),
    })
}
