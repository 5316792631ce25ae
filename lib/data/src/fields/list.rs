//! Describes file contents as records, for people and programs.

use crate::fields::field::{Axis, Field, attributes_of, describe_regimes};
use crate::fields::stats::{Moments, Statistics};
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// Summary of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary {
    /// Path of the file.
    pub file: PathBuf,
    /// The regime, e.g. `nu=0.001`, or all regimes of the file.
    pub parameter: Option<String>,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Frames per trajectory.
    pub frames: usize,
    /// Grid size, e.g. `1024` or `128x128`.
    pub grid: String,
    /// Names of the channels: inputs, then `|`, then states.
    pub channels: String,
    /// The layout of the file.
    pub layout: String,
    /// `direct` when values are read without conversion, else `converted`, `chunks` or `packed chunks`, followed by the
    /// bytes read per byte returned if this exceeds 1.
    pub reads: String,
    /// Size in bytes of the file, or of all files of a folder.
    pub bytes: u64,
}

impl FileSummary {
    /// Opens a file and describes its content.
    pub fn of(path: &Path) -> Result<Self> {
        let field = Field::open(path)?;
        let shape = field.shape();
        let parameter = match field.regimes()?.as_slice() {
            [regime] => regime.parameter.as_ref().map(ToString::to_string),
            several => Some(describe_regimes(several)),
        };
        Ok(Self {
            file: path.to_path_buf(),
            parameter,
            trajectories: shape.trajectories,
            frames: shape.frames,
            grid: shape.grid_text(),
            channels: channels(&field),
            layout: field.layout().to_string(),
            reads: match field.read_cost() {
                cost if cost > 1.0 => format!("{} x{cost:.1}", field.read_mode()),
                _ => field.read_mode().into(),
            },
            bytes: size(path).map_err(|cause| Error::open(path, cause))?,
        })
    }
}

fn size(path: &Path) -> std::io::Result<u64> {
    let found = std::fs::metadata(path)?;
    if !found.is_dir() {
        return Ok(found.len());
    }
    std::fs::read_dir(path)?.try_fold(0, |sum, entry| {
        let entry = entry?;
        // A symbolic link to a folder may form a loop.
        let is_link = entry.file_type()?.is_symlink() && entry.path().is_dir();
        Ok(if is_link { sum } else { sum + size(&entry.path())? })
    })
}

fn channels(field: &Field) -> String {
    let (inputs, states) = field.channels().split_at(field.inputs());
    match inputs {
        [] => states.join(","),
        _ => format!("{}|{}", inputs.join(","), states.join(",")),
    }
}

/// Summary of one frame of a trajectory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrameRecord {
    /// Index of the frame.
    pub frame: usize,
    /// Time of the frame, if the file has times.
    pub t: Option<f64>,
    /// Statistics of the frame.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// Returns a record for each frame of a trajectory. Errors: 2 if `trajectory` is out of range.
pub fn frames(field: &Field, trajectory: usize) -> Result<Vec<FrameRecord>> {
    if trajectory >= field.trajectories() {
        return Err(Error::usage(format!(
            "{}: no trajectory {trajectory}; the file has {}, numbered from 0",
            field.path().display(),
            field.trajectories()
        )));
    }
    let times = field.t_of(trajectory)?;
    let mut values = vec![0.0; field.shape().frame_len()];
    (0..field.shape().frames)
        .map(|frame| {
            field.read_frames(trajectory, frame..frame + 1, &mut values)?;
            let t = times.get(frame).copied();
            let statistics = Moments::of(values.iter().copied()).statistics();
            Ok(FrameRecord { frame, t, statistics })
        })
        .collect()
}

/// Returns a complete description of a file: its record, its attributes, and the first and last value of each
/// coordinate axis and of the times.
pub fn describe(path: &Path) -> Result<Value> {
    let field = Field::open(path)?;
    let ends = |values: &[f64]| match (values.first(), values.last()) {
        (Some(first), Some(last)) => serde_json::json!([first, last]),
        _ => Value::Null,
    };
    let mut record = serde_json::to_value(FileSummary::of(path)?).map_err(Error::bug)?;
    if let Value::Object(fields) = &mut record {
        for (axis, values) in Axis::SPACE.into_iter().zip(field.coordinates()) {
            fields.insert(axis.letter().into(), ends(values));
        }
        let times = field.t().get(..field.shape().frames).unwrap_or(field.t());
        fields.insert("t".into(), ends(times));
        fields.insert("attributes".into(), Value::Object(attributes_of(path)?));
    }
    Ok(record)
}
