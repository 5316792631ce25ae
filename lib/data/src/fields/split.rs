//! Split manifests for fields: they assign the trajectories of each file to training, validation and test.
//!
//! Every trajectory carries its provenance: the path and hash of the file, the index in the file, and the regime.
//!
//! Data are split by trajectory, never by frame. Trajectories with the same initial state, or the same input (a
//! coefficient field under several parameters), stay together; see [`GroupBy`]. Every regime (parameter value) is
//! divided in the same proportions, so each split contains every regime; alternatively, whole regimes or whole files
//! are assigned to splits. The result depends only on the seed and the content of the files.

use crate::fields::content::group_keys;
use crate::fields::field::{Field, Shape, grid_text, grouped};
use crate::fields::parameter::Parameter;
use crate::fields::split_set::{OpenFile, TrajectorySet};
use crate::inputs::InputFile;
use crate::seal::SealedFile;
use crate::split::check::{Problem, ProblemKind};
pub use crate::split::{By, GroupBy, SourceSamples, SplitName};
use crate::split::{Divisible, Listed, Share, Source};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::text::quote;
use unix::{Error, Result};

/// A split manifest of trajectories.
pub type Split = crate::split::Split<Trajectories>;

/// Properties shared by all files of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectories {
    /// Frames, grid and channels of a trajectory. `trajectories` is the size of an opened set, and 0 in manifests.
    #[serde(flatten)]
    pub shape: Shape,
    /// Names of the channels, inputs first.
    pub channel_names: Vec<String>,
    /// Number of input channels, which are given, not predicted.
    pub inputs: usize,
}

/// The file list of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Files {
    /// File entries, to which parts refer by index.
    pub files: Vec<FileEntry>,
}

/// A file of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path, relative to the manifest's folder if possible.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the file.
    pub blake3: String,
    /// Number of trajectories in the file, used or not.
    pub trajectories: usize,
    /// Regime of the file.
    pub parameter: Parameter,
}

/// A file to be split.
pub struct FieldFile {
    field: Field,
    bytes: u64,
    blake3: String,
    parameter: Parameter,
    keys: Vec<blake3::Hash>,
}

impl Source for FieldFile {
    type Content = Trajectories;

    fn open(path: &Path) -> Result<Self> {
        let field = Field::open(path)?;
        let wrong = |what: String| Err(Error::data(format!("{}: {what}", path.display())));
        field.require_fit()?;
        let ending = path.extension().unwrap_or_default();
        if ["csv", "zarr"].iter().any(|other| ending.eq_ignore_ascii_case(other)) {
            return wrong(
                "training does not read this format; convert it with `ds-prep import`".into(),
            );
        }
        let parameter = field.only_regime()?;
        if parameter.iter().any(|(_, value)| !value.is_finite()) {
            return wrong(format!(
                "parameter {parameter} is not finite; correct it with `ds-prep import --parameter NAME=V --override`"
            ));
        }
        let bytes = std::fs::metadata(path).map_err(|cause| Error::open(path, cause))?.len();
        Ok(Self { field, bytes, blake3: hash_file(path)?, parameter, keys: Vec::new() })
    }

    fn content(&self) -> Trajectories {
        let shape = Shape { trajectories: 0, ..self.field.shape().clone() };
        let (channel_names, inputs) = (self.field.channels().to_vec(), self.field.inputs());
        Trajectories { shape, channel_names, inputs }
    }

    fn path(&self) -> &Path {
        self.field.path()
    }

    fn hash(&self) -> &str {
        &self.blake3
    }

    fn len(&self) -> usize {
        self.field.trajectories()
    }

    fn difference(&self, first: &Self) -> Option<String> {
        let [here, before] = [self, first].map(Self::content);
        if here == before {
            let what = first.field.coordinate_difference(&self.field)?;
            let remedy = "make a manifest for each and mix these in the configuration";
            return Some(format!("{what}; {remedy}"));
        }
        let [here, before] = [here, before].map(|Trajectories { shape, channel_names, inputs }| {
            let (frames, grid) = (shape.frames, grid_text(&shape.grid));
            let channels = quote(&channel_names.join(","));
            format!(
                "{frames} frames on {grid} points, channels {channels}, {inputs} of them inputs"
            )
        });
        Some(format!("its trajectories have {here}, those of the previous files {before}"))
    }

    fn regime(&self) -> Option<(String, Vec<f64>)> {
        let values = self.parameter.iter().map(|(_, value)| value).collect();
        Some((self.parameter.to_string(), values))
    }

    fn prepare(&mut self, by: Option<GroupBy>) -> Result<()> {
        self.keys = group_keys(&self.field, by.unwrap_or_default())?;
        Ok(())
    }

    fn group(&self, i: usize) -> blake3::Hash {
        self.keys[i]
    }
}

impl Divisible for Trajectories {
    type Source = FieldFile;
    type Opened = OpenFile;
    type List = Files;
    /// The size limit suffices for about eight million trajectories.
    const FILE: SealedFile = SealedFile {
        format: "longhaul-split",
        version: 1,
        made_by: "ds-prep split",
        max_bytes: 64 << 20,
    };
    const WORDS: [&'static str; 3] = ["file", "trajectory", "trajectories"];

    fn list(sources: &[FieldFile], paths: Vec<PathBuf>) -> Files {
        let source = |(file, path): (&FieldFile, PathBuf)| FileEntry {
            path,
            bytes: file.bytes,
            blake3: file.blake3.clone(),
            trajectories: file.field.trajectories(),
            parameter: file.parameter.clone(),
        };
        Files { files: sources.iter().zip(paths).map(source).collect() }
    }

    fn listed(Files { files }: &Files, number: usize) -> Option<Listed<'_>> {
        let FileEntry { path, blake3, trajectories, .. } = files.get(number)?;
        Some(Listed { path, blake3, samples: *trajectories })
    }

    fn in_common(&self, by: Option<GroupBy>) -> Option<&'static str> {
        Some(match by.unwrap_or_default() {
            GroupBy::State if self.shape.frames == 1 && self.inputs > 0 => "one input",
            GroupBy::State => "one initial state",
            GroupBy::Content => "all their values",
        })
    }

    fn problems(split: &Split, path: &Path) -> Vec<Problem> {
        let mut all = Vec::new();
        let mut wrong =
            |what: String| all.push(Problem::new(ProblemKind::Manifest, path, None, what));
        let Self { shape: Shape { frames, grid, channels, .. }, channel_names, inputs } =
            &split.content;
        if *frames == 0 || *channels == 0 || grid.contains(&0) || !(1..=3).contains(&grid.len()) {
            wrong(format!("{frames} frames on a grid {grid:?} with {channels} channels"));
        }
        if channel_names.len() != *channels {
            wrong(format!("{} `channel_names` for {channels} channels", channel_names.len()));
        }
        let distinct: HashSet<&String> = channel_names.iter().collect();
        if distinct.len() != channel_names.len() {
            wrong(format!("`channel_names` {} repeat a name", channel_names.join(",")));
        }
        if inputs >= channels {
            wrong(format!("{inputs} `inputs` of {channels} channels leave nothing to predict"));
        }
        counts(split, wrong);
        for (number, source) in split.list.files.iter().enumerate() {
            if source.parameter.iter().any(|(_, value)| !value.is_finite()) {
                let what = format!("parameter {} of {}", source.parameter, source.path.display());
                let file = split.file_path(number, path);
                all.push(Problem::new(ProblemKind::Parameter, &file, None, what));
            }
        }
        all
    }

    fn input_files(set: &TrajectorySet) -> Vec<InputFile> {
        let open = set.sources.iter().zip(&set.list.files).filter(|(file, _)| file.is_open());
        let input = |(file, source): (&OpenFile, &FileEntry)| InputFile {
            path: file.path.clone(),
            blake3: source.blake3.clone(),
            recorded_in: set.manifest.display().to_string(),
            remedy: "restore the file, or run `ds-prep split` and `ds-prep stats` again".into(),
        };
        open.map(input).collect()
    }

    fn row(list: &Files, split: SplitName, number: usize, samples: usize, path: &str) -> Value {
        let parameter = list.files.get(number).map(|source| source.parameter.to_string());
        json!({"split": split, "parameter": parameter, "trajectories": samples, "file": path})
    }
}

/// Reports splits whose number of trajectories (per regime), regimes or files differs from the requested count.
fn counts(split: &Split, mut wrong: impl FnMut(String)) {
    let files = &split.list.files;
    let parameters = files.iter().map(|source| Some(source.parameter.clone()));
    let regimes = grouped(parameters.enumerate());
    for (name, share) in SplitName::ALL.into_iter().zip(split.shares) {
        let Share::Count(count) = share else { continue };
        let mut compare = |found: usize, what: &str| {
            if found != count {
                wrong(format!("{name} lists {found} {what}, its share is {count}"));
            }
        };
        // Number of trajectories from each file in the split.
        let mut found = vec![0; files.len()];
        for part in split.parts(name) {
            found.get_mut(part.file).into_iter().for_each(|count| *count += part.samples.len());
        }
        let sum = |files: &[usize]| files.iter().map(|file| found[*file]).sum::<usize>();
        match split.by {
            By::Trajectory => regimes.iter().for_each(|regime| {
                let parameter = &files[regime.samples[0]].parameter;
                compare(sum(&regime.samples), &format!("trajectories of {parameter}"));
            }),
            By::Parameter => {
                compare(regimes.iter().filter(|r| sum(&r.samples) > 0).count(), "regimes");
            }
            // Only manifests of records use these modes.
            By::Index | By::Torch => {}
            By::File => compare(found.iter().filter(|count| **count > 0).count(), "files"),
        }
    }
}
