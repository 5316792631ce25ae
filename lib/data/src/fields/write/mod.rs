//! Writes fields in PDEBench's layouts, and predictions of records, as HDF5, safetensors or NumPy files.
//!
//! The file is first created with everything except the field; the trajectories are then written with `pwrite` to their
//! reserved offsets, from any thread and in any order. The file gets its final name once it is complete.

mod hdf5_file;
mod narrow;
mod numpy_file;
mod partial;
mod safetensors_file;

pub use numpy_file::npy_header;
pub(crate) use partial::remove_leftovers;
pub use partial::{PartialFile, PartialFileState};

use crate::fields::field::{Axes, FieldLayout, LayoutDataset, PREDICTIONS, Shape};
use narrow::encode_as;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tensor::Dtype;
use unix::{Error, Result};

/// The shape, coordinates and metadata of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Shape of the field.
    pub shape: Shape,
    /// Layout of the file.
    pub layout: FieldLayout,
    /// Names of the channels, inputs first.
    pub channels: Vec<String>,
    /// Number of input channels: 1 for a steady problem, 0 or one per spatial axis for an incompressible flow,
    /// otherwise 0.
    pub inputs: usize,
    /// Coordinates along each spatial axis; an empty list for an axis without coordinates.
    pub coordinates: Vec<Vec<f64>>,
    /// Times of the frames.
    pub t: Vec<f64>,
    /// Attributes of the root, in order. Null stands for a non-finite number; values that the file format does not
    /// support are stored as JSON text.
    pub attributes: Vec<(String, Value)>,
    /// The stored dtype of the field: f32, f16, or (only in safetensors files) bf16.
    pub dtype: Dtype,
    /// Whether the file holds records: one dataset `target` [n, x.., c] without frames, instead of the datasets of the
    /// layout. The grid may then be empty.
    pub is_records: bool,
}

impl Header {
    /// Describes a file with one dataset `tensor`, channels `u` or `u0`, `u1`, …, and no attributes.
    pub fn tensor(shape: Shape, coordinates: Vec<Vec<f64>>, t: Vec<f64>) -> Self {
        let channels = default_channel_names(shape.channels);
        let (layout, inputs, attributes, dtype) = (FieldLayout::Tensor, 0, Vec::new(), Dtype::F32);
        let is_records = false;
        Self { shape, layout, channels, inputs, coordinates, t, attributes, dtype, is_records }
    }

    /// Describes a file with one dataset `target` for `records` records on `grid`.
    pub fn records(
        records: usize,
        grid: &[usize],
        channels: usize,
        coordinates: Vec<Vec<f64>>,
    ) -> Self {
        let shape = Shape { trajectories: records, frames: 1, grid: grid.to_vec(), channels };
        Self { is_records: true, ..Self::tensor(shape, coordinates, Vec::new()) }
    }

    /// The datasets of the file.
    fn parts(&self) -> Vec<LayoutDataset> {
        let Self { layout, shape, channels, inputs, .. } = self;
        if self.is_records {
            let axes = Axes::ordered(true, false, shape.grid.len(), true);
            return vec![LayoutDataset {
                name: PREDICTIONS.into(),
                axes,
                channels: 0..channels.len(),
            }];
        }
        layout.datasets(shape, channels, *inputs)
    }

    /// Size of the field in bytes.
    fn bytes(&self) -> u64 {
        (self.dtype.bytes() * self.shape.trajectories * self.shape.trajectory_len()) as u64
    }

    /// Attributes written in addition to the given ones: the channel names if they differ from the default, and the
    /// axes if the file holds records or lacks coordinates that define them.
    fn own_attributes(&self) -> Vec<(&'static str, String)> {
        let Self { layout, channels, coordinates, .. } = self;
        let mut all = Vec::new();
        let named = matches!(layout, FieldLayout::Tensor | FieldLayout::Groups);
        if named && *channels != default_channel_names(channels.len()) {
            all.push(("channels", channels.join(",")));
        }
        let complete = !self.is_records && !coordinates.iter().any(Vec::is_empty);
        if *layout == FieldLayout::Tensor && !complete {
            all.extend(self.parts().first().map(|part| ("axes", part.axes.to_string())));
        }
        all
    }

    /// Checks that the layout can represent the field. The error describes the mismatch.
    pub(crate) fn require_layout(&self) -> Result<(), String> {
        let Shape { frames, channels, ref grid, .. } = self.shape;
        let (inputs, space) = (self.inputs, grid.len());
        let fits = match self.layout {
            FieldLayout::Tensor | FieldLayout::Groups => inputs == 0,
            FieldLayout::Variables => false,
            FieldLayout::Steady => (frames, channels, inputs) == (1, 2, 1),
            FieldLayout::Incompressible => {
                (inputs == 0 || inputs == space) && channels >= inputs + space
            }
        };
        let counted = self.channels.len() == channels && self.coordinates.len() == space;
        let least = usize::from(!self.is_records);
        if fits && counted && (least..=3).contains(&space) && self.shape.bytes().is_some() {
            return Ok(());
        }
        Err(format!(
            "layout {} ({}) cannot hold {}, {inputs} of them inputs; choose another layout",
            self.layout,
            self.layout.describe(),
            self.shape,
        ))
    }
}

/// Returns the default channel names.
fn default_channel_names(count: usize) -> Vec<String> {
    match count {
        1 => vec!["u".into()],
        _ => (0..count).map(|i| format!("u{i}")).collect(),
    }
}

/// Writes the trajectories of an unfinished file. Can be shared between threads.
pub struct FieldWriter {
    file: fs::File,
    path: PathBuf,
    header: Header,
    datasets: Vec<Dataset>,
}

/// Location of some of the channels in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Dataset {
    channels: Range<usize>,
    /// Whether the values are the same in all frames, so that only one frame is written.
    is_static: bool,
    place: TrajectoryOffsets,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum TrajectoryOffsets {
    /// All trajectories are contiguous, starting at this offset.
    One(u64),
    /// The offset of each trajectory.
    Each(Vec<u64>),
}

impl FieldWriter {
    /// Opens the file `from`, which was laid out and will be renamed to `path`.
    fn open(from: &Path, path: &Path, header: &Header, datasets: Vec<Dataset>) -> Result<Self> {
        let file = fs::OpenOptions::new().write(true).open(from);
        let file = file.map_err(|cause| Error::create(path, cause))?;
        Ok(Self { file, path: path.to_path_buf(), header: header.clone(), datasets })
    }

    /// Syncs this process's writes to disk. Errors: 74.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|cause| Error::io(&self.path, cause))
    }

    /// Writes one trajectory, [frames, grid…, channels]. Errors: see [`write_frames`](Self::write_frames).
    pub fn write(&self, trajectory: usize, values: &[f32]) -> Result<()> {
        self.write_frames(trajectory, 0..self.header.shape.frames, values)
    }

    /// Writes frames of a trajectory, [frames.len(), grid…, channels]. Errors: 65 for a value that is too large for the
    /// dtype of the file, 74 for I/O errors.
    pub fn write_frames(
        &self,
        trajectory: usize,
        frames: Range<usize>,
        values: &[f32],
    ) -> Result<()> {
        let Header { shape, channels, dtype, .. } = &self.header;
        let (trajectories, all) = (shape.trajectories, shape.frames);
        if trajectory >= trajectories
            || frames.end > all
            || values.len() != frames.len() * shape.frame_len()
        {
            return Err(Error::bug(format!(
                "{}: frames {frames:?} of trajectory {trajectory} with {} numbers into {}",
                self.path.display(),
                values.len(),
                shape
            )));
        }
        let (mut buffer, mut narrow, size) = (Vec::new(), Vec::new(), dtype.bytes());
        for dataset in &self.datasets {
            let width = dataset.channels.len();
            let whole = width == shape.channels;
            if dataset.is_static && frames.start > 0 {
                continue;
            }
            let stored = if dataset.is_static { 1 } else { frames.len() };
            let rows = values.chunks_exact(shape.channels).take(stored * shape.points());
            let mine = if whole {
                values
            } else {
                buffer.clear();
                rows.for_each(|row| buffer.extend_from_slice(&row[dataset.channels.clone()]));
                &buffer
            };
            let frame_len = shape.points() * width;
            let length = if dataset.is_static { 1 } else { all };
            let begin = match &dataset.place {
                TrajectoryOffsets::One(offset) => {
                    offset + (size * trajectory * length * frame_len) as u64
                }
                TrajectoryOffsets::Each(offsets) => offsets[trajectory],
            };
            let bytes = encode_as(mine, *dtype, &mut narrow).map_err(|at| {
                Error::data(format!(
                    "{}: {:e} in frame {} of trajectory {trajectory}, channel {}, is too large for {}",
                    self.path.display(),
                    mine[at],
                    frames.start + at / frame_len,
                    channels[dataset.channels.start + at % width],
                    dtype
                ))
            })?;
            self.file
                .write_all_at(bytes, begin + (size * frames.start * frame_len) as u64)
                .map_err(|cause| Error::io(&self.path, cause))?;
        }
        Ok(())
    }
}

/// Writes the file `path`, which must not exist; `fill` writes every trajectory. The extension selects safetensors or
/// NumPy; any other selects HDF5.
///
/// Errors: 73 when it cannot be created or there is no space for it, 74 when writing fails, and those of `fill`; in
/// each case, no file is left behind.
pub fn write_field<T>(
    path: &Path,
    header: &Header,
    fill: impl FnOnce(&FieldWriter) -> Result<T>,
) -> Result<T> {
    header.require_layout().map_err(Error::bug)?;
    unix::space::ensure_space(path, header.bytes())?;
    unix::publish::REAL.new_file(path, |temporary| fill(&lay_out(temporary, path, header)?))
}

/// The extensions of files that can be written.
pub const EXTENSIONS: [&str; 4] = ["h5", "hdf5", "npy", "safetensors"];

/// Creates the file `at`, which will be renamed to `path`, with everything except the field values.
fn lay_out(at: &Path, path: &Path, header: &Header) -> Result<FieldWriter> {
    let create = |cause| Error::create(path, cause);
    let datasets = match path.extension().and_then(|ending| ending.to_str()) {
        Some("safetensors") => safetensors_file::lay_out(at, header).map_err(create)?,
        Some("npy") => numpy_file::lay_out(at, header).map_err(create)?,
        _ => hdf5_file::lay_out(at, header).map_err(|cause| Error::create(path, cause))?,
    };
    FieldWriter::open(at, path, header, datasets)
}
