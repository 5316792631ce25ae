//! Reads fields from HDF5 files in PDEBench's layouts, and the same arrays from NumPy, Zarr, safetensors and CSV files.
//!
//! A trajectory is returned as [frames, grid…, channels], regardless of the layout: spatial axes in the order of the
//! file (x, y, z), channels last, inputs before states. See [`FieldLayout`].
//!
//! A file is opened once for its shape and attributes, and mapped into memory. Contiguous f32 data is then copied
//! straight into the caller's buffer, without HDF5 and its global lock; data that is compressed, chunked or has a
//! different dtype is converted on the way.

mod array;
mod axes;
mod coordinates;
mod element;
mod formats;
mod hdf5_file;
mod layout;
mod mapped;
mod numpy;
mod packing;
mod problems;
mod recognise;
mod regimes;
mod remainder;
mod safetensors_file;
mod shape;
mod source;
mod stated;
mod table;
mod zarr;

pub(crate) use array::Array;
pub use axes::{Axes, Axis};
pub(crate) use formats::names_of;
pub use hdf5_file::run_helper_if_requested;
pub use layout::{FieldLayout, LayoutDataset};
pub(crate) use problems::{coordinate_problem, problem_of_times};
pub(crate) use recognise::PREDICTIONS;
pub use recognise::ReadOptions;
pub(crate) use regimes::grouped;
pub use regimes::{Regime, describe as describe_regimes};
pub use shape::Shape;
pub(crate) use shape::{coordinates, grid_text, orders, orders_text};
pub(crate) use source::PARAMETERS;
pub use source::PERIODIC;
pub(crate) use stated::TRAJECTORY_ATTRIBUTES;

use crate::fields::parameter::Parameter;
use packing::refuse_outside;
use recognise::{Recognised, recognise};
use serde_json::{Map, Value};
use source::Source;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use unix::{Error, Result};

/// Maximum number of trajectories in a file.
const MAX_TRAJECTORIES: usize = 1 << 24;

/// Root attribute that contains the formula of the equation in generated files.
pub const EQUATION: &str = "equation";

/// The trajectories of one file, opened but not read. Can be shared between threads.
#[derive(Debug)]
pub struct Field {
    path: PathBuf,
    found: Recognised,
    shape: Shape,
    parameter: Option<Parameter>,
    lists: Vec<regimes::List>,
    periodic: Vec<bool>,
    formula: Option<String>,
    components: Vec<Component>,
}

/// Some channels of every frame, from one dataset or from one dataset per group.
#[derive(Debug)]
struct Component {
    channels: Range<usize>,
    /// Whether the values are the same in all frames.
    is_static: bool,
    place: FieldArrays,
}

#[derive(Debug)]
enum FieldArrays {
    One(Array),
    /// Opened on demand, as there may be thousands. Only arrays with a known offset stay open; each dataset that the
    /// library keeps open would hold its chunk cache in memory.
    Each {
        file: Arc<dyn Source>,
        first: Array,
        names: Vec<String>,
        axes: Axes,
        arrays: Vec<OnceLock<Array>>,
    },
}

/// Reads the coordinates along each spatial axis of an array: `x-coordinate`, … of its file, or an empty list if their
/// number differs from the number of points.
///
/// Errors: 65 if the coordinates cannot be read.
pub(crate) fn coordinates_beside(array: &Array) -> Result<Vec<Vec<f64>>> {
    let file = formats::open(array.path(), false)?;
    let of_axis = |(axis, points): (Axis, usize)| -> Result<Vec<f64>> {
        let found = source::numbers(&*file, &format!("{}-coordinate", axis.letter()))?;
        Ok(if found.len() == points { found } else { Vec::new() })
    };
    Axis::SPACE.into_iter().zip(array.grid()).map(of_axis).collect()
}

/// Opens the array `name` of a file, or its only array. `fill_missing` is as in [`ReadOptions`]; `axes` returns the
/// meaning of the dimensions for a shape.
///
/// Errors: 66 when the file cannot be opened; 65 when it has no array `name`; 2 when `name` is needed but not given,
/// and for errors of `axes`.
pub(crate) fn open_array(
    path: &Path,
    name: Option<&str>,
    fill_missing: bool,
    axes: impl FnOnce(&[usize]) -> Result<Axes, String>,
) -> Result<Array> {
    let file = formats::open(path, fill_missing)?;
    let name = match name.map(String::from).or_else(|| file.only_array()) {
        Some(name) => name,
        None => match file.names().as_slice() {
            [only] => only.clone(),
            _ => {
                let found = source::contents(&*file);
                return Err(Error::usage(format!(
                    "{}: which of its arrays? name it as FILE:NAME; found {found}",
                    path.display()
                )));
            }
        },
    };
    let Some(shape) = file.shape(&name) else {
        file.check()?;
        return Err(file.invalid(format!("no array `{name}`; found {}", source::contents(&*file))));
    };
    let wrong = |why| Error::usage(format!("{}: `{name}` {why}", path.display()));
    let axes = axes(&shape).map_err(wrong)?;
    refuse_outside(&file.attributes(None), "the root").map_err(|what| file.invalid(what))?;
    let array = Array::of(&*file, &name, &axes)?;
    file.check()?;
    Ok(array)
}

/// Reads all root attributes of a file. Errors: see [`Field::open`].
pub(crate) fn attributes_of(path: &Path) -> Result<Map<String, Value>> {
    let file = formats::open(path, true)?;
    let all = file.attributes(None);
    file.check()?;
    Ok(all)
}

impl Field {
    /// Opens a file and reads everything except the values of the field.
    ///
    /// Errors: 66 when it cannot be opened, 65 when it is not a file of its format, is truncated, or has an unknown
    /// layout.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, &ReadOptions::default())
    }

    /// Like [`open`](Self::open), with information from the user that the file lacks.
    pub fn open_as(path: &Path, reading: &ReadOptions) -> Result<Self> {
        let file: Arc<dyn Source> = formats::open(path, reading.fill_missing)?.into();
        let field = Self::of(path, &file, reading);
        file.check()?;
        field
    }

    fn of(path: &Path, file: &Arc<dyn Source>, reading: &ReadOptions) -> Result<Self> {
        let mut found = recognise(&**file, reading)?;
        let group = found.groups.first().cloned();
        let dataset = found.parts.last().map(|part| part.name.clone());
        for place in std::iter::once(None).chain(group.as_deref().map(Some)) {
            let of = place.map_or("the root".into(), |group| format!("group `{group}`"));
            let refused = refuse_outside(&file.attributes(place), &of);
            refused.map_err(|what| file.invalid(what))?;
        }
        let places: Vec<String> = group.into_iter().chain(dataset).collect();
        let parameter = source::parameter(&**file, &places)?;
        let fields: Vec<String> = found.parts.iter().map(|part| part.name.clone()).collect();
        let mut components = Vec::with_capacity(found.parts.len());
        for LayoutDataset { name, axes, channels } in std::mem::take(&mut found.parts) {
            let is_static = axes.place(Axis::Time).is_none();
            let place = match found.groups.as_slice() {
                [] => FieldArrays::One(Array::of(&**file, &name, &axes)?),
                groups => {
                    let names: Vec<String> = groups.iter().map(|g| format!("{g}/{name}")).collect();
                    let first = Array::of(&**file, &names[0], &axes)?;
                    let arrays = names.iter().map(|_| OnceLock::new()).collect();
                    let file = file.clone();
                    FieldArrays::Each { file, first, names, axes, arrays }
                }
            };
            components.push(Component { channels, is_static, place });
        }
        let shape = shape_of(&**file, &components, found.channels.len())?;
        let lists = regimes::lists(&**file, shape.trajectories, &fields)?;
        let parameter = regimes::with_lists(&lists, 0, parameter);
        let periodic = source::periodic(&**file, shape.grid.len());
        let formula = file.text(EQUATION);
        let path = path.to_path_buf();
        Ok(Self { path, found, shape, parameter, lists, periodic, formula, components })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Layout in which the file stores its field.
    pub fn layout(&self) -> FieldLayout {
        self.found.layout
    }

    /// Shape of the field.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of trajectories.
    pub fn trajectories(&self) -> usize {
        self.shape.trajectories
    }

    /// Names of the channels; inputs first.
    pub fn channels(&self) -> &[String] {
        &self.found.channels
    }

    /// Number of input channels, which are given, not predicted, and constant over all frames.
    pub fn inputs(&self) -> usize {
        self.found.inputs
    }

    /// The parameter of the first trajectory: from an attribute of the root, its group or the dataset, or from a list;
    /// else from the file name. See [`regimes`](Self::regimes) for the other trajectories.
    pub fn parameter(&self) -> Option<&Parameter> {
        self.parameter.as_ref()
    }

    /// Coordinates along each spatial axis, as stored in the file; an empty list for an axis without coordinates.
    pub fn coordinates(&self) -> &[Vec<f64>] {
        &self.found.coordinates
    }

    /// Times of the frames; empty if the file has none. Some PDEBench files have one more time than frames.
    pub fn t(&self) -> &[f64] {
        &self.found.t
    }

    /// Whether each spatial axis is periodic, according to the attribute [`PERIODIC`] or else a PDEBench file name.
    pub fn periodic(&self) -> &[bool] {
        &self.periodic
    }

    /// Formula of the equation that `ds-prep gen` solved; imports preserve it.
    pub fn formula(&self) -> Option<&str> {
        self.formula.as_deref()
    }

    /// Whether reads bypass the HDF5 library.
    pub fn is_direct(&self) -> bool {
        self.arrays().all(Array::is_direct)
    }

    /// Cost of reading a trajectory, in bytes read per byte returned: 1 for contiguous data, more when chunks are
    /// larger than a trajectory or numerous.
    pub fn read_cost(&self) -> f64 {
        self.arrays().map(Array::read_cost).fold(1.0, f64::max)
    }

    /// Read mode of the most expensive dataset: `direct`, `converted`, `chunks` or `packed chunks`.
    pub fn read_mode(&self) -> &'static str {
        let ways = ["packed chunks", "chunks", "converted"];
        let has = |read_mode: &&str| self.arrays().any(|array| array.read_mode() == *read_mode);
        ways.into_iter().find(has).unwrap_or("direct")
    }

    /// Declares that the field will be read repeatedly, in any order, and that cached data may stay in memory, up to
    /// the size of the file. Without this call, reads leave nothing in memory.
    pub fn read_often(&self) {
        self.arrays().for_each(Array::read_often);
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.components.iter().map(|component| match &component.place {
            FieldArrays::One(array) | FieldArrays::Each { first: array, .. } => array,
        })
    }

    /// Reads a trajectory, [frames, grid…, channels].
    pub fn read(&self, trajectory: usize, out: &mut [f32]) -> Result<()> {
        self.read_frames(trajectory, 0..self.shape.frames, out)
    }

    /// Reads frames of a trajectory, [frames.len(), grid…, channels]. `out` must have that length.
    pub fn read_frames(
        &self,
        trajectory: usize,
        frames: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let Shape { trajectories, frames: all, .. } = self.shape;
        let there = trajectory < trajectories && frames.start <= frames.end && frames.end <= all;
        if !there || out.len() != frames.len() * self.shape.frame_len() {
            return Err(Error::bug(format!(
                "{}: frames {frames:?} of trajectory {trajectory} into {} numbers; it has {}",
                self.path.display(),
                out.len(),
                self.shape
            )));
        }
        if frames.is_empty() {
            return Ok(());
        }
        if let [Component { is_static: false, place, .. }] = self.components.as_slice() {
            return place.read(trajectory, frames, out);
        }
        let (points, width) = (self.shape.points(), self.shape.channels);
        let mut buffer = Vec::new();
        for Component { channels, is_static, place } in &self.components {
            let count = channels.len();
            let stored = if *is_static { 1 } else { frames.len() };
            buffer.resize(stored * points * count, 0.0);
            place.read(trajectory, frames.clone(), &mut buffer)?;
            let rows = buffer.chunks_exact(count).cycle();
            for (out, row) in out.chunks_exact_mut(width).zip(rows) {
                out[channels.clone()].copy_from_slice(row);
            }
        }
        Ok(())
    }
}

impl FieldArrays {
    fn read(&self, trajectory: usize, frames: Range<usize>, out: &mut [f32]) -> Result<()> {
        match self {
            Self::One(array) => array.read(trajectory, frames, out),
            Self::Each { file, first, names, axes, arrays } => {
                let opened = &arrays[trajectory];
                if let Some(array) = opened.get() {
                    return array.read(0, frames, out);
                }
                let array = Array::of(&**file, &names[trajectory], axes)?;
                let sizes = |a: &Array| (a.grid(), a.size(Axis::Time), a.size(Axis::Channel));
                if sizes(&array) != sizes(first) {
                    let (a, b) = (&names[trajectory], &names[0]);
                    return Err(file.invalid(format!("`{a}` and `{b}` have different shapes")));
                }
                if array.is_direct() {
                    opened.get_or_init(|| array).read(0, frames, out)
                } else {
                    array.read(0, frames, out)
                }
            }
        }
    }
}

/// Returns the shape shared by the components. Errors: 65 if their shapes contradict each other.
fn shape_of(file: &dyn Source, components: &[Component], channels: usize) -> Result<Shape> {
    let sizes = |component: &Component| match &component.place {
        FieldArrays::One(array) => {
            (array.size(Axis::Sample).unwrap_or(1), array.size(Axis::Time), array.grid())
        }
        FieldArrays::Each { first, names, .. } => {
            (names.len(), first.size(Axis::Time), first.grid())
        }
    };
    let all: Vec<_> = components.iter().map(sizes).collect();
    let frames = all.iter().find_map(|(_, frames, _)| *frames).unwrap_or(1);
    let (trajectories, _, grid) = all[0].clone();
    for (n, t, other) in &all {
        if (*n, t.unwrap_or(frames), other) != (trajectories, frames, &grid) {
            return Err(file.invalid(format!(
                    "its datasets contradict each other: {n} trajectories of {} frames on {other:?}, and \
                 {trajectories} of {frames} on {grid:?}",
                    t.unwrap_or(frames)
                ),
            ));
        }
    }
    let shape = Shape { trajectories, frames, grid, channels };
    if shape.bytes().is_none() || trajectories > MAX_TRAJECTORIES {
        let what =
            format!("{shape} are too large; at most {MAX_TRAJECTORIES} trajectories are supported");
        return Err(file.invalid(what));
    }
    // A reader holds at least one frame, and needs as much memory again while reading it.
    let what = format!("{}: reading frames of {:?}", file.path().display(), shape.grid);
    unix::memory::ensure(&what, (shape.frame_len() as u64).checked_mul(4 * 4))?;
    Ok(shape)
}
