//! The chunks of an array: a file each.

use super::super::array::distances;
use super::super::element::{Element, narrow};
use super::compressor::Compressor;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::{Error, Result, small};

/// The chunks of an array.
#[derive(Debug)]
pub struct Chunks {
    pub(super) folder: PathBuf,
    pub(super) chunk: Vec<usize>,
    pub(super) element: Element,
    pub(super) compressor: Compressor,
    pub(super) fill: f32,
    pub(super) fortran: bool,
    pub(super) separator: String,
    pub(super) fill_missing: bool,
}

impl Chunks {
    /// Shape of a chunk.
    pub fn shape(&self) -> &[usize] {
        &self.chunk
    }

    /// Bytes of a number.
    pub fn element_size(&self) -> usize {
        self.element.size()
    }

    /// Whether they are compressed.
    pub fn is_packed(&self) -> bool {
        self.compressor != Compressor::None
    }

    /// The numbers at `ranges`, the last dimension fastest; `beyond` becomes one that f32 cannot hold.
    pub fn read(&self, ranges: &[Range<usize>], beyond: &mut Option<f64>) -> Result<Vec<f32>> {
        let sizes: Vec<usize> = ranges.iter().map(Range::len).collect();
        let mut out = vec![self.fill; sizes.iter().product()];
        if out.is_empty() {
            return Ok(out);
        }
        let to = distances(&sizes, 1, false);
        let from = distances(&self.chunk, self.element.size(), self.fortran);
        let touched = ranges.iter().zip(&self.chunk).map(|(r, n)| r.start / n..(r.end - 1) / n + 1);
        for_each_index(&touched.collect::<Vec<_>>(), &mut |index| {
            let Some(bytes) = self.chunk_at(index)? else { return Ok(()) };
            // What of the chunk is asked for, in numbers of the whole array.
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
                out[target] = narrow(self.element.read(&bytes[source..]), beyond);
                Ok(())
            })
        })?;
        Ok(out)
    }

    /// The bytes of a chunk; `None` when it was never written.
    fn chunk_at(&self, index: &[usize]) -> Result<Option<Vec<u8>>> {
        let path = self.path_of(index);
        if self.fill_missing && path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let size = self.chunk.iter().product::<usize>() * self.element.size();
        // What cannot be compressed grows a little.
        let packed = small::read(&path, (size + size / 8 + 4096) as u64)?;
        let bytes = self.compressor.unpack(packed, size);
        let damaged = || Error::data(format!("{}: a damaged chunk", path.display()));
        bytes.filter(|bytes| bytes.len() == size).map(Some).ok_or_else(damaged)
    }

    fn path_of(&self, index: &[usize]) -> PathBuf {
        let names: Vec<String> = index.iter().map(ToString::to_string).collect();
        self.folder.join(if names.is_empty() { "0".into() } else { names.join(&self.separator) })
    }

    /// Refuses an array of which chunks are missing, or that is larger than they can hold; unless the user
    /// says that those were never written. The error tells which.
    pub fn require_all(&self, shape: &[usize]) -> Result<(), String> {
        let counts = shape.iter().zip(&self.chunk).map(|(n, chunk)| n.div_ceil(*chunk));
        let counts: Vec<usize> = counts.collect();
        if self.fill_missing || counts.contains(&0) {
            return Ok(());
        }
        let depth = if self.separator == "/" { counts.len().max(1) } else { 1 };
        let (found, bytes) = stored(&self.folder, depth);
        let expected = counts.iter().try_fold(1usize, |n, count| n.checked_mul(*count));
        if expected.is_none_or(|expected| expected > found) {
            // Among the first chunks one more than are there, one is not.
            let ranges: Vec<Range<usize>> = counts.iter().map(|n| 0..*n).collect();
            let mut missing = String::new();
            let _ = for_each_index(&ranges, &mut |index| {
                let path = self.path_of(index);
                if path.exists() {
                    return Ok(());
                }
                missing = path.strip_prefix(&self.folder).unwrap_or(&path).display().to_string();
                Err(Error::data("found"))
            });
            return Err(format!(
                "chunk {missing} is not there, {found} of {} are; if they were never written they hold the \
                 fill value, and --fill-missing says so",
                expected.map_or("very many".into(), |n| n.to_string())
            ));
        }
        let numbers = shape.iter().try_fold(self.element.size(), |n, dim| n.checked_mul(*dim));
        let room = bytes.saturating_mul(self.compressor.most());
        match numbers {
            Some(size) if size as u64 <= room => Ok(()),
            _ => Err(format!("{bytes} bytes of chunks cannot hold {shape:?}")),
        }
    }
}

/// Files of chunks in a folder, so many levels deep, and their bytes.
fn stored(folder: &Path, depth: usize) -> (usize, u64) {
    let mut all = (0, 0u64);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Ok(found) = fs::metadata(entry.path()) else { continue };
        let (files, bytes) = match (found.is_dir(), depth) {
            (true, 2..) => stored(&entry.path(), depth - 1),
            (true, _) => (0, 0),
            (false, _) => (1, found.len()),
        };
        all = (all.0 + files, all.1.saturating_add(bytes));
    }
    all
}

/// Calls `visit` with every index in `ranges`, the last dimension fastest; once for no dimensions.
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
