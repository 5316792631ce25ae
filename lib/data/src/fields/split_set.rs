//! The trajectories of one split, across its files.

use crate::fields::check::manifest::{against_file, error};
use crate::fields::check::{Kind, Violation};
use crate::fields::field::{Field, Shape};
use crate::fields::parameter::Parameter;
use crate::fields::split::{Split, SplitName};
use crate::inputs::InputFile;
use crate::provenance::Provenance;
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Error, Result};

/// How thoroughly files are compared with the manifest when a set is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// By size and shape, which is cheap.
    Sizes,
    /// By hash as well, which reads every file completely.
    Hashes,
}

/// A trajectory of a set.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Path of the file.
    pub file: &'a Path,
    /// Its index in the file.
    pub sample: usize,
    /// Its regime.
    pub parameter: &'a Parameter,
}

/// The trajectories of one split, in the order of the manifest. Can be shared between threads; reads are cheap.
#[derive(Debug)]
pub struct TrajectorySet {
    manifest: PathBuf,
    name: SplitName,
    shape: Shape,
    channels: Vec<String>,
    inputs: usize,
    manifest_hash: String,
    file_hashes: Vec<String>,
    files: Vec<OpenFile>,
    entries: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    field: Option<Field>,
    parameter: Parameter,
}

impl TrajectorySet {
    /// Opens the files that a split of the manifest uses.
    ///
    /// Errors: 66 for a missing file; 65 for a file that differs from the one in the manifest, and for an inconsistent
    /// manifest.
    pub fn open(manifest: &Path, name: SplitName, verify: Verify) -> Result<Self> {
        Self::open_allowing(manifest, name, verify, None)
    }

    /// Like [`open`](Self::open), but ignores one kind of violation within the manifest.
    pub(crate) fn open_allowing(
        manifest: &Path,
        name: SplitName,
        verify: Verify,
        allowed: Option<Kind>,
    ) -> Result<Self> {
        let (split, manifest_hash) = Split::load_allowing(manifest, allowed)?;
        let mut entries = Vec::new();
        for part in split.parts(name) {
            entries.extend(part.samples.iter().map(|&sample| (part.file, sample)));
        }
        let mut files: Vec<OpenFile> = Vec::new();
        for (number, source) in split.files.iter().enumerate() {
            let path = split.file_path(number, manifest);
            let used = split.parts(name).iter().any(|p| p.file == number && !p.samples.is_empty());
            let field = used.then(|| open_as_in(manifest, &split, number, verify)).transpose()?;
            let first = files.iter().find_map(|file| file.field.as_ref());
            if let (Some(first), Some(field)) = (first, &field)
                && let Some(what) = first.coordinate_difference(field)
            {
                return Err(Error::data(format!(
                    "{}: {}: {what}; make a manifest for each and mix these in the configuration",
                    manifest.display(),
                    path.display()
                )));
            }
            files.push(OpenFile { path, field, parameter: source.parameter.clone() });
        }
        let file_hashes = split.files.iter().map(|source| source.blake3.clone()).collect();
        let (shape, channels, inputs) = (split.shape(name), split.channel_names, split.inputs);
        Ok(Self {
            manifest: manifest.into(),
            name,
            shape,
            channels,
            inputs,
            manifest_hash,
            file_hashes,
            files,
            entries,
        })
    }

    /// See [`Field::read_often`].
    pub fn read_often(&self) {
        self.fields().for_each(Field::read_often);
    }

    /// The files that this set reads, in the order of the manifest.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.files.iter().filter_map(|file| file.field.as_ref())
    }

    /// The file of trajectory `i`; None when it is not open.
    pub fn field_of(&self, i: usize) -> Option<&Field> {
        self.files[self.entries[i].0].field.as_ref()
    }

    /// Number of trajectories.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The split.
    pub fn name(&self) -> SplitName {
        self.name
    }

    /// The shape of the trajectories; their number is that of the set.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Names of the channels, inputs first.
    pub fn channels(&self) -> &[String] {
        &self.channels
    }

    /// How many of the channels are inputs: given, not predicted, and the same in all frames.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// BLAKE3 hash of the manifest.
    pub fn manifest_hash(&self) -> &str {
        &self.manifest_hash
    }

    /// BLAKE3 hash of every file of the manifest, in its order.
    pub fn file_hashes(&self) -> &[String] {
        &self.file_hashes
    }

    /// The files that this set reads: the manifest, and the data files of the split, with the hashes that the manifest
    /// recorded.
    pub fn input_files(&self) -> Vec<InputFile> {
        let open =
            self.files.iter().zip(&self.file_hashes).filter(|(file, _)| file.field.is_some());
        let data = open.map(|(file, blake3)| InputFile {
            path: file.path.clone(),
            blake3: blake3.clone(),
            recorded_in: self.manifest.display().to_string(),
            remedy: "restore the file, or run `ds-prep split` and `ds-prep stats` again".into(),
        });
        let manifest = InputFile::read_at_start(&self.manifest, &self.manifest_hash);
        std::iter::once(manifest).chain(data).collect()
    }

    /// The trajectories, identified by the content of their files, in the order of the manifest.
    pub fn provenance(&self) -> Vec<Provenance> {
        let of_file = |entries: &[(usize, usize)]| Provenance {
            blake3: self.file_hashes[entries[0].0].clone(),
            samples: entries.iter().map(|(_, sample)| *sample).collect(),
        };
        self.entries.chunk_by(|a, b| a.0 == b.0).map(of_file).collect()
    }

    /// Time between frames.
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

    /// Trajectory `i`. Panics when out of range.
    pub fn entry(&self, i: usize) -> Entry<'_> {
        let (file, sample) = self.entries[i];
        let file = &self.files[file];
        Entry { file: &file.path, sample, parameter: &file.parameter }
    }

    /// Reads trajectory `i`, [frames, grid…, channels].
    pub fn read(&self, i: usize, out: &mut [f32]) -> Result<()> {
        self.read_frames(i, 0..self.shape.frames, out)
    }

    /// Reads frames of trajectory `i`, [frames.len(), grid…, channels].
    pub fn read_frames(&self, i: usize, frames: Range<usize>, out: &mut [f32]) -> Result<()> {
        let field =
            |&(file, sample): &(usize, usize)| Some((self.files[file].field.as_ref()?, sample));
        match self.entries.get(i).and_then(field) {
            Some((field, sample)) => field.read_frames(sample, frames, out),
            None => Err(Error::bug(format!("trajectory {i} of {} in {}", self.len(), self.name))),
        }
    }
}

/// Opens file `number` of a manifest. Errors: 66, and 65 when it differs from the manifest's description.
fn open_as_in(manifest: &Path, split: &Split, number: usize, verify: Verify) -> Result<Field> {
    let (field, violations) = compare(manifest, split, number, verify)?;
    let named = |error: Error| error.context(manifest.display());
    field.require_fit().map_err(named)?;
    match error(&violations) {
        None => Ok(field),
        Some(error) => Err(named(error)),
    }
}

/// Opens file `number` of a manifest and lists how it differs from the manifest's description.
///
/// Errors: 66, 65 when it cannot be opened.
pub(crate) fn compare(
    manifest: &Path,
    split: &Split,
    number: usize,
    verify: Verify,
) -> Result<(Field, Vec<Violation>)> {
    let source = &split.files[number];
    let path = split.file_path(number, manifest);
    let named = |error: Error| error.context(manifest.display());
    // How the content differs from the recorded one; it is only hashed on request.
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
    let mut violations = against_file(split, number, &field);
    if let Some(change) = change {
        violations.insert(0, Violation::new(Kind::Changed, &path, change));
    }
    Ok((field, violations))
}
