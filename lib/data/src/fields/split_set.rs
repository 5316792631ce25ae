//! The trajectories of one split, across all its files.

use crate::fields::field::{Field, Shape};
use crate::fields::parameter::Parameter;
use crate::fields::split::{Split, SplitName, Trajectories};
use crate::split::SplitSet;
use crate::split::check::{Problem, ProblemKind, error};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Error, Result};

/// How thoroughly files are compared with the manifest when a set is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Compares sizes and shapes, which is cheap.
    Sizes,
    /// Also compares hashes, which reads every file completely.
    Hashes,
}

/// A trajectory of a set.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Path of the file.
    pub file: &'a Path,
    /// Index of the trajectory in the file.
    pub sample: usize,
    /// Regime of the trajectory.
    pub parameter: &'a Parameter,
}

/// The trajectories of one split, in the order of the manifest. Can be shared between threads; reads are cheap.
pub type TrajectorySet = SplitSet<Trajectories>;

/// A file of a manifest, open if the split uses it.
#[derive(Debug)]
pub struct OpenFile {
    pub(crate) path: PathBuf,
    field: Option<Field>,
}

impl OpenFile {
    /// Whether the file is open, that is, used by the split.
    pub(crate) fn is_open(&self) -> bool {
        self.field.is_some()
    }
}

impl TrajectorySet {
    /// Opens the files that a split of the manifest uses.
    ///
    /// Errors: 66 for a missing file; 65 for a file that differs from its manifest entry, and for an inconsistent
    /// manifest.
    pub fn open(manifest: &Path, name: SplitName, verify: Verify) -> Result<Self> {
        Self::open_allowing(manifest, name, verify, None)
    }

    /// Like [`open`](Self::open), but ignores one kind of problem within the manifest.
    pub(crate) fn open_allowing(
        manifest: &Path,
        name: SplitName,
        verify: Verify,
        allowed: Option<ProblemKind>,
    ) -> Result<Self> {
        let (split, hash) = Split::load_allowing(manifest, allowed)?;
        let open = |number| {
            let path = split.file_path(number, manifest);
            let used = split.parts(name).iter().any(|p| p.file == number && !p.samples.is_empty());
            let field = used.then(|| open_as_in(manifest, &split, number, verify)).transpose()?;
            Ok(OpenFile { path, field })
        };
        let files = (0..split.list.files.len()).map(open).collect::<Result<Vec<_>>>()?;
        let mut set = SplitSet::new(manifest, (split, hash), name, files);
        set.content.shape.trajectories = set.entries.len();
        let different = |field: &Field| {
            let what = set.fields().next()?.coordinate_difference(field)?;
            Some((field.path().display().to_string(), what))
        };
        if let Some((path, what)) = set.fields().skip(1).find_map(different) {
            return Err(Error::data(format!(
                "{}: {path}: {what}; make a manifest for each and mix these in the configuration",
                manifest.display()
            )));
        }
        Ok(set)
    }

    /// See [`Field::read_often`].
    pub fn read_often(&self) {
        self.fields().for_each(Field::read_often);
    }

    /// The files that this set reads, in the order of the manifest.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.sources.iter().filter_map(|file| file.field.as_ref())
    }

    /// The file of trajectory `i`; `None` if it is not open.
    pub fn field_of(&self, i: usize) -> Option<&Field> {
        self.sources[self.entries[i].0].field.as_ref()
    }

    /// Shape of the trajectories; `trajectories` is the size of the set.
    pub fn shape(&self) -> &Shape {
        &self.content.shape
    }

    /// Names of the channels, inputs first.
    pub fn channels(&self) -> &[String] {
        &self.content.channel_names
    }

    /// Number of input channels, which are given, not predicted, and constant over all frames.
    pub fn inputs(&self) -> usize {
        self.content.inputs
    }

    /// BLAKE3 hash of each file in the manifest, in manifest order.
    pub fn file_hashes(&self) -> Vec<String> {
        self.list.files.iter().map(|source| source.blake3.clone()).collect()
    }

    /// Mean time between frames; 1 if the file has fewer than two times.
    pub fn frame_interval(&self) -> f64 {
        match self.t() {
            [first, .., last] => (last - first) / (self.t().len() - 1) as f64,
            _ => 1.0,
        }
    }

    /// Times of the frames, from the first file; PDEBench's files have one more time than frames.
    pub fn t(&self) -> &[f64] {
        self.fields().next().map_or(&[], Field::t)
    }

    /// Describes trajectory `i`. Panics if `i` is out of range.
    pub fn entry(&self, i: usize) -> Entry<'_> {
        let (file, sample) = self.entries[i];
        let parameter = &self.list.files[file].parameter;
        Entry { file: &self.sources[file].path, sample, parameter }
    }

    /// Reads trajectory `i`, [frames, grid…, channels].
    pub fn read(&self, i: usize, out: &mut [f32]) -> Result<()> {
        self.read_frames(i, 0..self.shape().frames, out)
    }

    /// Reads frames of trajectory `i`, [frames.len(), grid…, channels].
    pub fn read_frames(&self, i: usize, frames: Range<usize>, out: &mut [f32]) -> Result<()> {
        let field =
            |&(file, sample): &(usize, usize)| Some((self.sources[file].field.as_ref()?, sample));
        match self.entries.get(i).and_then(field) {
            Some((field, sample)) => field.read_frames(sample, frames, out),
            None => Err(Error::bug(format!("trajectory {i} of {} in {}", self.len(), self.name()))),
        }
    }
}

/// Opens file `number` of a manifest. Errors: 66 when it cannot be opened, 65 when it differs from its manifest entry.
fn open_as_in(manifest: &Path, split: &Split, number: usize, verify: Verify) -> Result<Field> {
    let (field, problems) = compare(manifest, split, number, verify)?;
    let named = |error: Error| error.context(manifest.display());
    field.require_fit().map_err(named)?;
    match error(&problems) {
        None => Ok(field),
        Some(error) => Err(named(error)),
    }
}

/// Opens file `number` of a manifest and lists its differences from the manifest entry.
///
/// Errors: 66 or 65 when it cannot be opened.
pub(crate) fn compare(
    manifest: &Path,
    split: &Split,
    number: usize,
    verify: Verify,
) -> Result<(Field, Vec<Problem>)> {
    let source = &split.list.files[number];
    let path = split.file_path(number, manifest);
    let named = |error: Error| error.context(manifest.display());
    // Describes how the content has changed since the split; it is hashed only on request.
    let change = || {
        let (bytes, blake3) = (source.bytes, &source.blake3);
        let found = std::fs::metadata(&path).map_err(|cause| Error::open(&path, cause))?.len();
        if found != bytes {
            return Ok(Some(format!("{found} bytes, {bytes} when it was split")));
        }
        let verify = verify == Verify::Hashes;
        let found = if verify { hash_file(&path)? } else { blake3.clone() };
        Ok((found != *blake3).then(|| format!("content {found}, {blake3} when it was split")))
    };
    let change = change().map_err(named)?;
    let change =
        change.map(|what| format!("{}: {what}; restore the file or split again", path.display()));
    let field = Field::open(&path).map_err(|cause| match &change {
        None => named(cause),
        Some(change) => named(Error::data(cause).context(change)),
    })?;
    let mut problems = against_file(split, number, &field);
    if let Some(change) = change {
        problems.insert(0, Problem::new(ProblemKind::Changed, &path, None, change));
    }
    Ok((field, problems))
}

/// Lists the differences between a file and its manifest entry.
fn against_file(split: &Split, number: usize, field: &Field) -> Vec<Problem> {
    let source = &split.list.files[number];
    let (stated, mut all) = (&split.content.shape, Vec::new());
    let mut compare = |kind, what: &str, found: String, stated: String| {
        if found != stated {
            let path = field.path();
            let what = format!("{}: {what} {found}, the manifest says {stated}", path.display());
            all.push(Problem::new(kind, path, None, what));
        }
    };
    let Shape { trajectories, frames, grid, channels } = field.shape();
    let text = |value: &usize| value.to_string();
    compare(ProblemKind::Mismatch, "trajectories", text(trajectories), text(&source.trajectories));
    compare(ProblemKind::Mismatch, "frames", text(frames), text(&stated.frames));
    compare(ProblemKind::Mismatch, "grid", format!("{grid:?}"), format!("{:?}", stated.grid));
    compare(ProblemKind::Mismatch, "number of channels", text(channels), text(&stated.channels));
    let (found, stated) = (field.channels().join(","), split.content.channel_names.join(","));
    compare(ProblemKind::Mismatch, "channels", found, stated);
    compare(ProblemKind::Mismatch, "inputs", text(&field.inputs()), text(&split.content.inputs));
    // Values are printed with full precision, so equal texts mean equal bits.
    let found = field.parameter().map_or("none".into(), Parameter::to_string);
    compare(ProblemKind::Parameter, "parameter", found, source.parameter.to_string());
    all
}
