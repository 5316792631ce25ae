//! Reading fields from PDEBench's HDF5 files.
//!
//! The file is opened once through HDF5 for its shape and attributes. Data that lies in one piece is
//! then read by positional reads straight into the caller's buffer, past the library and its global
//! lock; compressed, chunked or f64 data goes through the library.
//!
//! File locking is off: many ranks read the same file, and network file systems often cannot lock.

use crate::parameter::{NAMES, Parameter};
use hdf5::datatype::ByteOrder;
use hdf5::{Hyperslab, SliceOrIndex};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use unix::{Error, Result, small};

/// How a file stores its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One dataset `tensor` [trajectories, frames, x] with `x-coordinate` and `t-coordinate`.
    Tensor1d,
}

/// The trajectories of one file, opened but not read.
#[derive(Debug)]
pub struct Field {
    path: PathBuf,
    layout: Layout,
    shape: Shape,
    parameter: Option<Parameter>,
    x: Vec<f64>,
    t: Vec<f64>,
    store: Store,
}

/// Sizes of a field: [trajectories, frames, grid…, channels].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of trajectories, N.
    pub trajectories: usize,
    /// Frames of a trajectory, T.
    pub frames: usize,
    /// Points along each dimension of space.
    pub grid: Vec<usize>,
    /// Numbers at each point.
    pub channels: usize,
}

impl Shape {
    /// Numbers in a frame: all points and channels.
    pub fn frame_len(&self) -> usize {
        self.grid.iter().product::<usize>() * self.channels
    }

    /// Numbers in a trajectory.
    pub fn trajectory_len(&self) -> usize {
        self.frames * self.frame_len()
    }

    /// Whether trajectories of both shapes can be in one data set.
    pub fn has_same_trajectories(&self, other: &Self) -> bool {
        (self.frames, &self.grid, self.channels) == (other.frames, &other.grid, other.channels)
    }
}

#[derive(Debug)]
enum Store {
    /// Little-endian f32 in one piece from `offset` on.
    Direct { file: fs::File, offset: u64 },
    /// Anything HDF5 can convert to f32.
    Library { dataset: hdf5::Dataset },
}

impl Field {
    /// Opens a file and reads everything but the field itself.
    ///
    /// Errors: 66 when it cannot be opened, 65 when it is no HDF5 file, is truncated, or has a layout
    /// that is not known.
    pub fn open(path: &Path) -> Result<Self> {
        // The library has poor words for missing files and folders.
        small::require_file(path)?;
        let plain = fs::File::open(path).map_err(|cause| Error::open(path, cause))?;
        let bytes = plain.metadata().map_err(|cause| Error::open(path, cause))?.len();
        let bad = |cause: hdf5::Error| Error::data(format!("{}: {cause}", path.display()));
        let file = open_file(path)?;
        let dataset = find_tensor(path, &file)?;
        let shape = shape_of(path, &dataset)?;
        let size = 4 * (shape.trajectories * shape.trajectory_len()) as u64;
        let dtype = dataset.dtype().map_err(bad)?;
        let plain_f32 = dtype.is::<f32>() && dtype.byte_order() == ByteOrder::LittleEndian;
        let store = match dataset.offset() {
            Some(offset) if plain_f32 && file.userblock() == 0 => {
                if offset.checked_add(size).is_none_or(|end| end > bytes) {
                    return Err(Error::data(format!(
                        "{}: truncated: `tensor` needs {size} bytes from {offset}, the file has {bytes}",
                        path.display()
                    )));
                }
                Store::Direct { file: plain, offset }
            }
            _ => Store::Library { dataset: dataset.clone() },
        };
        Ok(Self {
            path: path.to_path_buf(),
            layout: Layout::Tensor1d,
            shape,
            parameter: parameter_of(path, &file, &dataset),
            x: coordinate(path, &file, "x-coordinate")?,
            t: coordinate(path, &file, "t-coordinate")?,
            store,
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the file stores its field.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Sizes of the field.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of trajectories.
    pub fn trajectories(&self) -> usize {
        self.shape.trajectories
    }

    /// The parameter: an attribute of the root or of the dataset, else what the file name says.
    pub fn parameter(&self) -> Option<&Parameter> {
        self.parameter.as_ref()
    }

    /// Points of the grid as the file has them; empty when it has none.
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// Times of the frames; PDEBench's files have one more than there are frames. Empty when the file
    /// has none.
    pub fn t(&self) -> &[f64] {
        &self.t
    }

    /// Whether reads go past the HDF5 library.
    pub fn is_direct(&self) -> bool {
        matches!(self.store, Store::Direct { .. })
    }

    /// Reads a trajectory, [frames, grid…, channels].
    pub fn read(&self, trajectory: usize, out: &mut [f32]) -> Result<()> {
        self.read_frames(trajectory, 0..self.shape.frames, out)
    }

    /// Reads some frames of a trajectory, [frames.len(), grid…, channels]. `out` must have that length.
    pub fn read_frames(
        &self,
        trajectory: usize,
        frames: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let Shape { trajectories, frames: all, .. } = self.shape;
        if trajectory >= trajectories || frames.start > frames.end || frames.end > all {
            return Err(Error::bug(format!(
                "{}: frames {frames:?} of trajectory {trajectory} asked, there are {all} of {trajectories}",
                self.path.display()
            )));
        }
        if out.len() != frames.len() * self.shape.frame_len() {
            return Err(Error::bug(format!(
                "{}: a buffer of {} numbers for {} frames of {}",
                self.path.display(),
                out.len(),
                frames.len(),
                self.shape.frame_len()
            )));
        }
        match &self.store {
            Store::Direct { file, offset } => {
                let first = (trajectory * all + frames.start) as u64;
                let at = offset + 4 * first * self.shape.frame_len() as u64;
                file.read_exact_at(bytemuck::cast_slice_mut(out), at)
                    .map_err(|cause| Error::io(&self.path, cause))
            }
            Store::Library { dataset } => {
                let selection: Vec<SliceOrIndex> =
                    vec![trajectory.into(), frames.into(), (..).into()];
                let values = dataset
                    .read_slice_2d::<f32, _>(Hyperslab::from(selection))
                    .map_err(|cause| Error::io(&self.path, cause))?;
                out.iter_mut().zip(values.iter()).for_each(|(out, value)| *out = *value);
                Ok(())
            }
        }
    }
}

/// Opens an HDF5 file without locking it.
pub(crate) fn open_file(path: &Path) -> Result<hdf5::File> {
    hdf5::File::with_options()
        .with_fapl(|access| access.file_locking(false))
        .open(path)
        .map_err(|cause| Error::data(format!("{}: not a whole HDF5 file: {cause}", path.display())))
}

/// The dataset `tensor`, or an error that says what the file holds instead.
fn find_tensor(path: &Path, file: &hdf5::File) -> Result<hdf5::Dataset> {
    file.dataset("tensor").map_err(|_| {
        let names = file.member_names().unwrap_or_default();
        let describe = |name: &String| match file.dataset(name) {
            Ok(dataset) => format!("{name} {:?}", dataset.shape()),
            Err(_) => format!("{name} (group)"),
        };
        let found: Vec<String> = names.iter().take(8).map(describe).collect();
        Error::data(format!(
            "{}: unknown layout: no dataset `tensor`; found {}",
            path.display(),
            if found.is_empty() { "nothing".into() } else { found.join(", ") }
        ))
    })
}

fn shape_of(path: &Path, dataset: &hdf5::Dataset) -> Result<Shape> {
    let dims = dataset.shape();
    let &[trajectories, frames, x] = dims.as_slice() else {
        return Err(Error::data(format!(
            "{}: unknown layout: `tensor` has shape {dims:?}; read are [trajectories, frames, x]",
            path.display()
        )));
    };
    let float = dataset.dtype().is_ok_and(|t| t.is::<f32>() || t.conv_to::<f32>().is_some());
    if !float {
        return Err(Error::data(format!("{}: `tensor` holds no numbers", path.display())));
    }
    let bytes = dims.iter().try_fold(4usize, |size, dim| size.checked_mul(*dim));
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Error::data(format!("{}: `tensor` {dims:?} is too large", path.display())));
    }
    if frames == 0 || x == 0 {
        return Err(Error::data(format!("{}: `tensor` is empty, {dims:?}", path.display())));
    }
    Ok(Shape { trajectories, frames, grid: vec![x], channels: 1 })
}

fn parameter_of(path: &Path, file: &hdf5::File, dataset: &hdf5::Dataset) -> Option<Parameter> {
    let places: [&hdf5::Location; 2] = [file, dataset];
    let attribute = |place: &&hdf5::Location| {
        let names = place.attr_names().ok()?;
        let name = names.iter().find(|name| NAMES.contains(&name.to_ascii_lowercase().as_str()))?;
        let values = place.attr(name).ok()?.read_raw::<f64>().ok()?;
        Some(Parameter::new(name, *values.first()?))
    };
    let of_name = || Parameter::from_file_name(&path.file_name()?.to_string_lossy());
    places.iter().find_map(attribute).or_else(of_name)
}

fn coordinate(path: &Path, file: &hdf5::File, name: &str) -> Result<Vec<f64>> {
    match file.dataset(name) {
        Ok(dataset) => dataset
            .read_raw::<f64>()
            .map_err(|cause| Error::data(format!("{}: `{name}`: {cause}", path.display()))),
        Err(_) => Ok(Vec::new()),
    }
}
