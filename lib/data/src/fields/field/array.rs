//! One array in a file: its storage, and reads of ranges of its frames.

use super::axes::{Axes, Axis};
use super::element::{fill, to_f32};
use super::mapped::MappedFile;
use super::packing::Packing;
use super::source::{ArrayStorage, Parts, Source};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::FileDtype;
use unix::{Error, Result};

/// Looking up a chunk takes as long as reading this many bytes.
const A_CHUNK: f64 = 16384.0;

/// An array whose dimensions have known meanings.
#[derive(Debug)]
pub(crate) struct Array {
    path: PathBuf,
    name: String,
    dims: Vec<usize>,
    axes: Axes,
    store: ArrayBacking,
}

#[derive(Debug)]
enum ArrayBacking {
    /// Any dtype and order of axes: element (i, j, …) is at offset + i·strides[0] + j·strides[1] + …
    Mapped {
        file: Arc<MappedFile>,
        offset: usize,
        strides: Vec<usize>,
        dtype: FileDtype,
        packing: Packing,
        /// Whether the order in the file is the order of the output, and numbers are not packed.
        in_order: bool,
    },
    Parts(Box<dyn Parts>),
}

impl Array {
    /// Opens the array `name` of `source`, whose dimensions are `axes`.
    ///
    /// Errors: 65 if the array cannot be read, has a different number of dimensions than `axes`, is empty (except for
    /// trajectories), too large or truncated.
    pub(super) fn of(source: &dyn Source, name: &str, axes: &Axes) -> Result<Self> {
        let (dims, place) = source.place(name)?;
        let data_error = |what: String| source.invalid(format!("`{name}` {what}"));
        if dims.len() != axes.rank() {
            return Err(data_error(format!(
                "has shape {dims:?}, not {} dimensions ({axes}); --axes says what they are",
                axes.rank()
            )));
        }
        let numbers = dims.iter().try_fold(1usize, |size, dim| size.checked_mul(*dim));
        let Some(numbers) = numbers.filter(|n| *n <= isize::MAX as usize / 8) else {
            return Err(data_error(format!("{dims:?} is too large")));
        };
        if dims.iter().zip(axes.iter()).any(|(n, axis)| *n == 0 && axis != Axis::Sample) {
            return Err(data_error(format!("is empty, {dims:?}")));
        }
        let store = match place {
            ArrayStorage::Parts(parts) => ArrayBacking::Parts(parts),
            ArrayStorage::File { file, offset, dtype, fortran, packing } => {
                let size = (numbers * dtype.bytes()) as u64;
                if offset.checked_add(size).is_none_or(|end| end > file.size()) {
                    return Err(data_error(format!(
                        "is truncated: it needs {size} bytes at offset {offset}, but the file has only {}",
                        file.size()
                    )));
                }
                let strides = distances(&dims, dtype.bytes(), fortran);
                let in_order = axes.is_ordered()
                    && strides == distances(&dims, dtype.bytes(), false)
                    && packing.is_trivial();
                let offset = offset as usize;
                ArrayBacking::Mapped { file, offset, strides, dtype, packing, in_order }
            }
        };
        let (path, name) = (source.path().to_path_buf(), name.into());
        Ok(Self { path, name, dims, axes: axes.clone(), store })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the array in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size along an axis, if the array has that axis.
    pub fn size(&self, axis: Axis) -> Option<usize> {
        self.axes.place(axis).map(|place| self.dims[place])
    }

    /// Sizes along the spatial axes.
    pub fn grid(&self) -> Vec<usize> {
        Axis::SPACE.into_iter().filter_map(|axis| self.size(axis)).collect()
    }

    /// Whether some stored numbers denote missing values, which are read as NaN.
    pub fn marks_missing(&self) -> bool {
        match &self.store {
            ArrayBacking::Mapped { packing, .. } => packing.marks_missing(),
            ArrayBacking::Parts(parts) => parts.packing().marks_missing(),
        }
    }

    /// Whether a read is a single copy into the caller's buffer.
    pub fn is_direct(&self) -> bool {
        matches!(&self.store, ArrayBacking::Mapped { dtype: FileDtype::F32, in_order: true, .. })
    }

    /// Declares that the array will be read repeatedly: see [`MappedFile::read_often`].
    pub fn read_often(&self) {
        if let ArrayBacking::Mapped { file, .. } = &self.store {
            file.read_often();
        }
    }

    /// Read mode: `direct`, `converted`, `chunks` or `packed chunks`.
    pub fn read_mode(&self) -> &'static str {
        match &self.store {
            ArrayBacking::Mapped { .. } if self.is_direct() => "direct",
            ArrayBacking::Mapped { .. } => "converted",
            ArrayBacking::Parts(parts) if parts.is_compressed() => "packed chunks",
            ArrayBacking::Parts(parts) if parts.chunk().is_some() => "chunks",
            ArrayBacking::Parts(_) => "converted",
        }
    }

    /// Cost of reading a trajectory, in bytes read per byte returned: every chunk that the trajectory touches is read
    /// completely and costs at least as much as [`A_CHUNK`] bytes. 1 for a contiguous array.
    pub fn read_cost(&self) -> f64 {
        let ArrayBacking::Parts(parts) = &self.store else { return 1.0 };
        let fits = |chunk: &&[usize]| chunk.len() == self.dims.len() && !self.dims.contains(&0);
        let Some(chunk) = parts.chunk().filter(fits) else { return 1.0 };
        let size = parts.item_size();
        let (mut wanted, mut touched) = (size as f64, 1.0);
        for ((axis, n), chunk) in self.axes.iter().zip(&self.dims).zip(chunk) {
            let n = if axis == Axis::Sample { 1 } else { (*n).max(1) };
            wanted *= n as f64;
            touched *= n.div_ceil((*chunk).max(1)) as f64;
        }
        let of_chunk = chunk.iter().fold(size as f64, |bytes, n| bytes * *n as f64);
        (touched * of_chunk.max(A_CHUNK) / wanted.max(A_CHUNK)).max(1.0)
    }

    /// Reads frames of trajectory `sample` as [frames, grid…, channels], regardless of the order in the file. An array
    /// without a time axis has one frame. The caller has checked `sample`, `frames` and the length of `out`.
    pub fn read(&self, sample: usize, frames: Range<usize>, out: &mut [f32]) -> Result<()> {
        let frames = if self.axes.place(Axis::Time).is_some() { frames } else { 0..1 };
        let mut beyond = None;
        if let ArrayBacking::Mapped { file, offset, strides, dtype, in_order: true, .. } =
            &self.store
        {
            let first = |axis, i| self.axes.place(axis).map_or(0, |place| i * strides[place]);
            let from = offset + first(Axis::Sample, sample) + first(Axis::Time, frames.start);
            if *dtype == FileDtype::F32 {
                file.read(from, bytemuck::cast_slice_mut(out))?;
            } else {
                let bytes = out.len() * dtype.bytes();
                beyond = file.with(from, bytes, |bytes| fill(*dtype, bytes, out))?;
            }
        } else {
            self.gather(sample, frames, out, &mut beyond)?;
        }
        match beyond {
            None => Ok(()),
            Some(value) => Err(Error::data(format!(
                "{}: `{}` holds {value:e} in trajectory {sample}, too large for f32; scale the numbers",
                self.path.display(),
                self.name
            ))),
        }
    }

    /// Reads an array that needs conversion or reordering. A value too large for f32 is stored in `beyond`.
    fn gather(
        &self,
        sample: usize,
        frames: Range<usize>,
        out: &mut [f32],
        beyond: &mut Option<f64>,
    ) -> Result<()> {
        let range = |(place, axis)| match axis {
            Axis::Sample => sample..sample + 1,
            Axis::Time => frames.clone(),
            _ => 0..self.dims[place],
        };
        let ranges: Vec<Range<usize>> = self.axes.iter().enumerate().map(range).collect();
        let order = self.axes.order();
        match &self.store {
            ArrayBacking::Mapped { file, offset, strides, dtype, packing, .. } => {
                // The span from the first to the last value of the ranges.
                let end = |(range, stride): (&Range<usize>, &usize)| {
                    range.len().saturating_sub(1) * stride
                };
                let ends = ranges.iter().zip(strides).map(end).sum::<usize>();
                let start = ranges.iter().zip(strides).map(|(range, stride)| range.start * stride);
                let start: usize = start.sum();
                file.with(offset + start, ends + dtype.bytes(), |bytes| {
                    gather(&ranges, strides, &order, out, |at| {
                        to_f32(packing.unpack(dtype.read(&bytes[at - start..])), beyond)
                    });
                })?;
            }
            ArrayBacking::Parts(parts) => {
                let values = parts.read(&ranges, beyond)?;
                permute(&values, &ranges, &order, out);
            }
        }
        Ok(())
    }
}

/// Returns the strides of a contiguous array in C or Fortran order, where `unit` is the stride of the fastest
/// dimension.
pub(super) fn distances(dims: &[usize], unit: usize, fortran: bool) -> Vec<usize> {
    let mut strides = vec![unit; dims.len()];
    let mut distance = unit;
    for i in 0..dims.len() {
        let place = if fortran { i } else { dims.len() - 1 - i };
        strides[place] = distance;
        distance *= dims[place];
    }
    strides
}

/// Fills `out` with the values at `ranges`, with dimension `order[0]` slowest, from `values` in C order.
fn permute(values: &[f32], ranges: &[Range<usize>], order: &[usize], out: &mut [f32]) {
    let sizes: Vec<usize> = ranges.iter().map(Range::len).collect();
    let whole: Vec<Range<usize>> = sizes.iter().map(|n| 0..*n).collect();
    gather(&whole, &distances(&sizes, 1, false), order, out, |at| values[at]);
}

/// Fills `out` with `value` at each index of `ranges`, with dimension `order[0]` slowest.
fn gather(
    ranges: &[Range<usize>],
    strides: &[usize],
    order: &[usize],
    out: &mut [f32],
    mut value: impl FnMut(usize) -> f32,
) {
    let mut index: Vec<usize> = ranges.iter().map(|range| range.start).collect();
    let mut at: usize = index.iter().zip(strides).map(|(i, stride)| i * stride).sum();
    for out in out {
        *out = value(at);
        for &place in order.iter().rev() {
            index[place] += 1;
            at += strides[place];
            if index[place] < ranges[place].end {
                break;
            }
            at -= ranges[place].len() * strides[place];
            index[place] = ranges[place].start;
        }
    }
}
