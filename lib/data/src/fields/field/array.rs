//! One array of numbers in a file: where it lies, and reads of some frames of it.

use super::axes::{Axes, Axis};
use super::element::{Element, narrow};
use super::hdf5_file::{Dataset, Stored};
use super::mapped::MappedFile;
use super::source::{Source, bad};
use super::zarr::{Chunks, MAX_CHUNK};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use unix::space::human_bytes;
use unix::{Error, Result};

/// So many numbers a byte that is stored holds at most, whatever the filters of HDF5.
const MOST_PACKED: u64 = 50_000;

/// Finding a chunk takes as long as reading so many bytes.
const A_CHUNK: f64 = 16384.0;

/// An array with the meaning of its dimensions.
#[derive(Debug)]
pub(super) struct Array {
    path: PathBuf,
    name: String,
    dims: Vec<usize>,
    axes: Axes,
    store: Store,
}

/// Where a format says that an array is.
#[derive(Debug)]
pub(super) enum Place {
    /// In one piece of a file, the last dimension fastest, or the first (`fortran`).
    File { file: Arc<MappedFile>, offset: u64, element: Element, fortran: bool },
    /// Wherever HDF5 finds it.
    Library(Stored),
    /// In files of their own.
    Chunks(Chunks),
}

#[derive(Debug)]
enum Store {
    /// Any numbers in any order of the axes: element (i, j, …) is at offset + i·strides[0] + j·strides[1] + …
    Mapped {
        file: Arc<MappedFile>,
        offset: usize,
        strides: Vec<usize>,
        element: Element,
        /// Whether frames lie as they are handed out.
        in_order: bool,
    },
    /// Anything HDF5 can convert to f32.
    Library(Stored),
    Chunks(Chunks),
}

impl Array {
    /// The array `name` of `source`.
    ///
    /// Errors (65): it has another number of dimensions than `axes`, is empty (but for trajectories), too
    /// large, or truncated.
    pub fn new(
        source: &dyn Source,
        name: &str,
        dims: Vec<usize>,
        axes: &Axes,
        place: Place,
    ) -> Result<Self> {
        let bad = |what: String| bad(source, format!("`{name}` {what}"));
        if dims.len() != axes.rank() {
            return Err(bad(format!(
                "has shape {dims:?}, not {} dimensions ({axes}); --axes says what they are",
                axes.rank()
            )));
        }
        let numbers = dims.iter().try_fold(1usize, |size, dim| size.checked_mul(*dim));
        let Some(numbers) = numbers.filter(|n| *n <= isize::MAX as usize / 8) else {
            return Err(bad(format!("{dims:?} is too large")));
        };
        if dims.iter().zip(axes.iter()).any(|(n, axis)| *n == 0 && axis != Axis::Sample) {
            return Err(bad(format!("is empty, {dims:?}")));
        }
        let store = match place {
            Place::Library(stored) => {
                let Dataset { stored: bytes, size, chunk, .. } = &stored.form;
                let chunk = chunk.iter().flatten().try_fold(*size, |n, dim| n.checked_mul(*dim));
                if chunk.is_none_or(|chunk| chunk > MAX_CHUNK) {
                    return Err(bad(format!(
                        "has chunks of more than {}, the most that is read; store it in smaller chunks",
                        human_bytes(MAX_CHUNK as u64)
                    )));
                }
                if (numbers as u64) > bytes.saturating_mul(MOST_PACKED) {
                    return Err(bad(format!(
                        "{dims:?} was never written: {bytes} bytes are stored of it"
                    )));
                }
                Store::Library(stored)
            }
            Place::Chunks(chunks) => Store::Chunks(chunks),
            Place::File { file, offset, element, fortran } => {
                let size = (numbers * element.size()) as u64;
                if offset.checked_add(size).is_none_or(|end| end > file.size()) {
                    return Err(bad(format!(
                        "is truncated: it needs {size} bytes from {offset}, the file has {}",
                        file.size()
                    )));
                }
                let strides = distances(&dims, element.size(), fortran);
                let in_order =
                    axes.is_ordered() && strides == distances(&dims, element.size(), false);
                Store::Mapped { file, offset: offset as usize, strides, element, in_order }
            }
        };
        let (path, name) = (source.path().to_path_buf(), name.into());
        Ok(Self { path, name, dims, axes: axes.clone(), store })
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size along an axis, where it has that axis.
    pub fn size(&self, axis: Axis) -> Option<usize> {
        self.axes.place(axis).map(|place| self.dims[place])
    }

    /// Sizes along the axes of space.
    pub fn grid(&self) -> Vec<usize> {
        Axis::SPACE.into_iter().filter_map(|axis| self.size(axis)).collect()
    }

    /// Whether reads are one copy into the caller's buffer.
    pub fn is_direct(&self) -> bool {
        matches!(&self.store, Store::Mapped { element: Element::F32, in_order: true, .. })
    }

    /// It will be read again and again: see [`MappedFile::read_often`].
    pub fn read_often(&self) {
        if let Store::Mapped { file, .. } = &self.store {
            file.read_often();
        }
    }

    /// How its numbers are reached: `direct`, `converted` on the way, from `chunks`, or from `packed chunks`.
    pub fn way(&self) -> &'static str {
        match &self.store {
            Store::Mapped { .. } if self.is_direct() => "direct",
            Store::Mapped { .. } => "converted",
            Store::Library(stored) if stored.form.is_packed => "packed chunks",
            Store::Library(stored) if stored.form.chunk.is_some() => "chunks",
            Store::Library(_) => "converted",
            Store::Chunks(chunks) if chunks.is_packed() => "packed chunks",
            Store::Chunks(_) => "chunks",
        }
    }

    /// What reading a trajectory costs, in bytes for a byte: all chunks that it touches are read as a whole,
    /// and each costs at least what [`A_CHUNK`] bytes cost. 1 in one piece.
    pub fn read_cost(&self) -> f64 {
        let (chunk, size) = match &self.store {
            Store::Library(stored) => (stored.form.chunk.clone(), stored.form.size),
            Store::Chunks(chunks) => (Some(chunks.shape().to_vec()), chunks.element_size()),
            Store::Mapped { .. } => (None, 4),
        };
        let fits = |chunk: &Vec<usize>| chunk.len() == self.dims.len() && !self.dims.contains(&0);
        let Some(chunk) = chunk.filter(fits) else { return 1.0 };
        let (mut wanted, mut touched) = (size as f64, 1.0);
        for ((axis, n), chunk) in self.axes.iter().zip(&self.dims).zip(&chunk) {
            let n = if axis == Axis::Sample { 1 } else { (*n).max(1) };
            wanted *= n as f64;
            touched *= n.div_ceil((*chunk).max(1)) as f64;
        }
        let of_chunk = chunk.iter().fold(size as f64, |bytes, n| bytes * *n as f64);
        (touched * of_chunk.max(A_CHUNK) / wanted.max(A_CHUNK)).max(1.0)
    }

    /// Reads frames of trajectory `sample`, [frames, grid…, channels], whatever the order of the file.
    /// An array without time has one frame. `out` has just that length; the caller has compared both
    /// with the sizes.
    pub fn read(&self, sample: usize, frames: Range<usize>, out: &mut [f32]) -> Result<()> {
        let frames = if self.axes.place(Axis::Time).is_some() { frames } else { 0..1 };
        let mut beyond = None;
        if let Store::Mapped { file, offset, strides, element, in_order: true } = &self.store {
            let first = |axis, i| self.axes.place(axis).map_or(0, |place| i * strides[place]);
            let from = offset + first(Axis::Sample, sample) + first(Axis::Time, frames.start);
            if *element == Element::F32 {
                file.read(from, bytemuck::cast_slice_mut(out))?;
            } else {
                let bytes = out.len() * element.size();
                beyond = file.with(from, bytes, |bytes| element.fill(bytes, out))?;
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

    /// Reads what does not lie as it is handed out. Keeps in `beyond` a number that f32 cannot hold.
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
            Store::Mapped { file, offset, strides, element, .. } => {
                // From the first number of the ranges to the last.
                let end = |(range, stride): (&Range<usize>, &usize)| {
                    range.len().saturating_sub(1) * stride
                };
                let ends = ranges.iter().zip(strides).map(end).sum::<usize>();
                let start = ranges.iter().zip(strides).map(|(range, stride)| range.start * stride);
                let start: usize = start.sum();
                file.with(offset + start, ends + element.size(), |bytes| {
                    gather(&ranges, strides, &order, out, |at| {
                        narrow(element.read(&bytes[at - start..]), beyond)
                    });
                })?;
            }
            Store::Library(stored) => {
                let values = stored.read(&ranges, beyond)?;
                permute(&values, &ranges, &order, out);
            }
            Store::Chunks(chunks) => {
                let values = chunks.read(&ranges, beyond)?;
                permute(&values, &ranges, &order, out);
            }
        }
        Ok(())
    }
}

/// Distances of neighbours along each dimension.
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

/// Fills `out` with the numbers of `ranges`, the dimension `order[0]` slowest, from `values`, where the last
/// is fastest.
fn permute(values: &[f32], ranges: &[Range<usize>], order: &[usize], out: &mut [f32]) {
    let sizes: Vec<usize> = ranges.iter().map(Range::len).collect();
    let whole: Vec<Range<usize>> = sizes.iter().map(|n| 0..*n).collect();
    gather(&whole, &distances(&sizes, 1, false), order, out, |at| values[at]);
}

/// Fills `out` with what `value` finds at the places of `ranges`, the dimension `order[0]` slowest.
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
