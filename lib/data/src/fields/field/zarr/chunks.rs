//! The chunks of an array, one file each.

use super::super::array::distances;
use super::super::element::to_f32;
use super::super::packing::Packing;
use super::super::source::Parts;
use super::compressor::Compressor;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use tensor::FileDtype;
use unix::{Error, Result, small};

/// Maximum number of chunks that are counted when some are missing.
const MAX_COUNTED: usize = 1 << 20;

/// The chunks of an array.
#[derive(Debug)]
pub struct Chunks {
    pub(super) folder: PathBuf,
    pub(super) shape: Vec<usize>,
    pub(super) chunk: Vec<usize>,
    pub(super) dtype: FileDtype,
    pub(super) compressor: Compressor,
    /// The stored number that missing chunks hold.
    pub(super) fill: f64,
    pub(super) packing: Packing,
    pub(super) fortran: bool,
    pub(super) separator: String,
    pub(super) fill_missing: bool,
}

impl Parts for Chunks {
    fn chunk(&self) -> Option<&[usize]> {
        Some(&self.chunk)
    }

    fn item_size(&self) -> usize {
        self.dtype.bytes()
    }

    fn is_compressed(&self) -> bool {
        self.compressor != Compressor::None
    }

    fn packing(&self) -> &Packing {
        &self.packing
    }

    fn read(&self, ranges: &[Range<usize>], beyond: &mut Option<f64>) -> Result<Vec<f32>> {
        self.gather(ranges, |value| to_f32(value, beyond))
    }

    fn numbers(&self) -> Result<Vec<f64>> {
        let all: Vec<Range<usize>> = self.shape.iter().map(|n| 0..*n).collect();
        self.gather(&all, |value| value)
    }
}

impl Chunks {
    /// Reads the values at `ranges` in C order, and converts each of them.
    fn gather<T: Clone>(
        &self,
        ranges: &[Range<usize>],
        mut convert: impl FnMut(f64) -> T,
    ) -> Result<Vec<T>> {
        let sizes: Vec<usize> = ranges.iter().map(Range::len).collect();
        let mut out = vec![convert(self.packing.unpack(self.fill)); sizes.iter().product()];
        if out.is_empty() {
            return Ok(out);
        }
        let to = distances(&sizes, 1, false);
        let from = distances(&self.chunk, self.dtype.bytes(), self.fortran);
        let touched = ranges.iter().zip(&self.chunk).map(|(r, n)| r.start / n..(r.end - 1) / n + 1);
        for_each_index(&touched.collect::<Vec<_>>(), &mut |index| {
            let Some(bytes) = self.chunk_at(index)? else { return Ok(()) };
            // The requested part of the chunk, in indices of the whole array.
            let part = ranges
                .iter()
                .zip(&self.chunk)
                .zip(index)
                .map(|((range, n), i)| range.start.max(i * n)..range.end.min((i + 1) * n));
            for_each_index(&part.collect::<Vec<_>>(), &mut |place| {
                let (mut source, mut target) = (0, 0);
                for (axis, at) in place.iter().enumerate() {
                    source += (at - index[axis] * self.chunk[axis]) * from[axis];
                    target += (at - ranges[axis].start) * to[axis];
                }
                out[target] = convert(self.packing.unpack(self.dtype.read(&bytes[source..])));
                Ok(())
            })
        })?;
        Ok(out)
    }

    /// Reads and decompresses a chunk; `None` when it was never written.
    fn chunk_at(&self, index: &[usize]) -> Result<Option<Vec<u8>>> {
        let path = self.path_of(index);
        if self.fill_missing && path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let size = self.chunk.iter().product::<usize>() * self.dtype.bytes();
        // Incompressible data grows slightly.
        let packed = small::read(&path, (size + size / 8 + 4096) as u64)?;
        let bytes = self.compressor.decompress(packed, size);
        let damaged = || Error::data(format!("{}: a damaged chunk", path.display()));
        bytes.filter(|bytes| bytes.len() == size).map(Some).ok_or_else(damaged)
    }

    fn path_of(&self, index: &[usize]) -> PathBuf {
        let names: Vec<String> = index.iter().map(ToString::to_string).collect();
        self.folder.join(if names.is_empty() { "0".into() } else { names.join(&self.separator) })
    }

    /// Fails if chunks are missing, unless the user has said that these were never written, or if the array is larger
    /// than its chunks can hold. The error describes the problem.
    pub fn require_all(&self) -> Result<(), String> {
        let shape = &self.shape;
        let counts = shape.iter().zip(&self.chunk).map(|(n, chunk)| 0..n.div_ceil(*chunk));
        let counts: Vec<Range<usize>> = counts.collect();
        if self.fill_missing || counts.iter().any(Range::is_empty) {
            return Ok(());
        }
        let expected = counts.iter().try_fold(1usize, |n, range| n.checked_mul(range.end));
        let countable = expected.is_some_and(|expected| expected <= MAX_COUNTED);
        let (mut found, mut bytes, mut missing) = (0usize, 0u64, None);
        let _ = for_each_index(&counts, &mut |index| {
            let path = self.path_of(index);
            match fs::metadata(&path) {
                Ok(of_chunk) => {
                    (found, bytes) = (found + 1, bytes.saturating_add(of_chunk.len()));
                    return Ok(());
                }
                Err(_) => missing.get_or_insert(path),
            };
            if countable { Ok(()) } else { Err(Error::data("too many to count")) }
        });
        if let Some(path) = missing {
            return Err(format!(
                "chunk {} is missing ({found} of {} exist); if they were never written they hold the fill value, \
                 and --fill-missing says so",
                path.strip_prefix(&self.folder).unwrap_or(&path).display(),
                expected.map_or("very many".into(), |n| n.to_string())
            ));
        }
        let numbers = shape.iter().try_fold(self.dtype.bytes(), |n, dim| n.checked_mul(*dim));
        let room = bytes.saturating_mul(self.compressor.most());
        match numbers {
            Some(size) if size as u64 <= room => Ok(()),
            _ => Err(format!("{bytes} bytes of chunks cannot hold {shape:?}")),
        }
    }
}

/// Calls `visit` with every index in `ranges`, in C order; once if there are no dimensions.
fn for_each_index(
    ranges: &[Range<usize>],
    visit: &mut dyn FnMut(&[usize]) -> Result<()>,
) -> Result<()> {
    if ranges.iter().any(Range::is_empty) {
        return Ok(());
    }
    let mut index: Vec<usize> = ranges.iter().map(|range| range.start).collect();
    loop {
        visit(&index)?;
        let mut place = ranges.len();
        loop {
            let Some(next) = place.checked_sub(1) else { return Ok(()) };
            place = next;
            index[place] += 1;
            if index[place] < ranges[place].end {
                break;
            }
            index[place] = ranges[place].start;
        }
    }
}
