//! Manifests, which list the samples of each source that are used for training, validation and test.

use super::check::{Problem, ProblemKind, error};
use super::groups::quotas;
use super::{By, GroupBy, SameGroup, Share, SourceSamples, SplitName, SplitSet, folder_of};
use crate::inputs::InputFile;
use crate::seal::SealedFile;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use unix::Result;

/// Maximum number of repeated samples reported individually; the rest are only counted.
const MAX_REPEATS: usize = 100;

/// A file of trajectories or a store of records, opened to be divided or checked.
pub trait Source: Sized {
    /// The properties of the content that all sources of a manifest must share.
    type Content: Divisible;
    /// Whether its samples have distances, see [`near_groups`](Self::near_groups).
    const HAS_DISTANCES: bool = false;

    /// Opens the source at `path`. Errors: 66 when it is missing; 65 when it is incomplete, damaged or unfit for
    /// training.
    fn open(path: &Path) -> Result<Self>;
    /// Its content.
    fn content(&self) -> Self::Content;
    /// Its path.
    fn path(&self) -> &Path;
    /// The BLAKE3 hash that identifies its content.
    fn hash(&self) -> &str;
    /// Number of samples.
    fn len(&self) -> usize;
    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns why it cannot share a manifest with `first`; `None` if it can.
    fn difference(&self, first: &Self) -> Option<String>;
    /// The parameters of all its trajectories, as text and as values; `None` for records.
    fn regime(&self) -> Option<(String, Vec<f64>)> {
        None
    }
    /// Prepares calls of [`group`](Self::group). Errors: those of reading the source.
    fn prepare(&mut self, _by: Option<GroupBy>) -> Result<()> {
        Ok(())
    }
    /// Returns the key of the group of sample `i`. Samples with the same key must be in the same split.
    fn group(&self, i: usize) -> blake3::Hash;
    /// Merges groups of these sources if their samples have a distance below `distance`.
    fn near_groups(_sources: &[Self], _distance: f64) -> SameGroup {
        SameGroup::default()
    }
    /// Returns the key of the stratum of sample `i`. Every stratum is divided in the same proportions.
    fn stratum(&self, _i: usize) -> blake3::Hash {
        blake3::Hash::from_bytes([0; blake3::OUT_LEN])
    }
}

/// The properties that all sources of a manifest share; part of the manifest.
pub trait Divisible: Clone + Debug + PartialEq + Serialize + DeserializeOwned {
    /// The type of the sources with this content.
    type Source: Source<Content = Self>;
    /// An opened source of a [`SplitSet`].
    type Opened;
    /// The list of sources in a manifest. Its JSON members must differ from those of the content.
    type List: Clone + Debug + PartialEq + Serialize + DeserializeOwned;
    /// File format of the manifest.
    const FILE: SealedFile;
    /// Words for a source, a sample and several samples in messages.
    const WORDS: [&'static str; 3];

    /// Lists sources under these paths.
    fn list(sources: &[Self::Source], paths: Vec<PathBuf>) -> Self::List;
    /// Returns source `number` of a list.
    fn listed(list: &Self::List, number: usize) -> Option<Listed<'_>>;
    /// Describes what the samples of a group share, for messages.
    fn in_common(&self, _by: Option<GroupBy>) -> Option<&'static str> {
        None
    }
    /// Finds contradictions in the manifest that was read from `path`, apart from the samples that it lists.
    fn problems(_split: &Split<Self>, _path: &Path) -> Vec<Problem> {
        Vec::new()
    }
    /// Returns the data files that a set reads, with their recorded hashes.
    fn input_files(set: &SplitSet<Self>) -> Vec<InputFile>;
    /// Returns a table row: the split, its number of samples in source `number` of `list`, and the path of this source.
    fn row(list: &Self::List, split: SplitName, number: usize, samples: usize, path: &str)
    -> Value;
}

/// A source of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// Path, relative to the manifest's folder if possible.
    pub path: &'a Path,
    /// BLAKE3 hash that identifies its content.
    pub blake3: &'a str,
    /// Number of its samples, used or not.
    pub samples: usize,
}

/// A manifest, the content of `split.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "C: Divisible")]
pub struct Split<C: Divisible> {
    /// Seed of the random assignment.
    #[serde(with = "unix::decimal")]
    pub seed: u64,
    /// The unit that was divided.
    pub by: By,
    /// Which trajectories were kept together; `None` for records, whose groups are in their stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_by: Option<GroupBy>,
    /// The requested shares of train, validation and test.
    pub shares: [Share; 3],
    /// The properties that all sources share.
    #[serde(flatten)]
    pub content: C,
    /// The sources; parts refer to them by index.
    #[serde(flatten)]
    pub list: C::List,
    /// Samples for training, ascending within each source.
    pub train: Vec<SourceSamples>,
    /// Samples for validation.
    pub validation: Vec<SourceSamples>,
    /// Samples for the test.
    pub test: Vec<SourceSamples>,
}

impl<C: Divisible> Split<C> {
    /// Whether the file at `path` declares itself a manifest of this kind.
    pub fn is_manifest(path: &Path) -> bool {
        C::FILE.is_format_of(path)
    }

    /// Reads a manifest; the second value is the BLAKE3 hash of its bytes, which identifies it.
    ///
    /// Errors: 66 when it cannot be read; 65 when it is not a manifest, was edited or is inconsistent.
    pub fn load(path: &Path) -> Result<(Self, String)> {
        Self::load_allowing(path, None)
    }

    /// Like [`load`](Self::load), but ignores one kind of problem.
    pub(crate) fn load_allowing(
        path: &Path,
        allowed: Option<ProblemKind>,
    ) -> Result<(Self, String)> {
        let (split, hash) = Self::parse(path)?;
        let mut problems = split.problems(path);
        problems.retain(|problem| Some(problem.kind) != allowed);
        match error(&problems) {
            None => Ok((split, hash)),
            Some(error) => Err(error.context(path.display())),
        }
    }

    /// Reads a manifest without checking its consistency. Otherwise fails like [`load`](Self::load).
    pub(crate) fn parse(path: &Path) -> Result<(Self, String)> {
        C::FILE.read(path)
    }

    /// Writes the manifest atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        C::FILE.write(path, self)
    }

    /// Returns the content of the manifest file, including its seal.
    pub fn text(&self) -> Result<String> {
        C::FILE.text(self)
    }

    /// The samples of one split.
    pub fn parts(&self, name: SplitName) -> &[SourceSamples] {
        match name {
            SplitName::Train => &self.train,
            SplitName::Validation => &self.validation,
            SplitName::Test => &self.test,
        }
    }

    /// The number of samples of one split.
    pub fn count(&self, name: SplitName) -> usize {
        self.parts(name).iter().map(|part| part.samples.len()).sum()
    }

    /// Iterates over all listed samples: split, index of the source, index in the source.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SplitName, usize, usize)> {
        SplitName::ALL.into_iter().flat_map(move |name| {
            self.parts(name).iter().flat_map(move |part| {
                part.samples.iter().map(move |&sample| (name, part.file, sample))
            })
        })
    }

    /// The sources in order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..).map_while(|number| C::listed(&self.list, number))
    }

    /// Returns the path of source `number`, for a manifest at `manifest`.
    pub fn file_path(&self, number: usize, manifest: &Path) -> PathBuf {
        let listed = C::listed(&self.list, number);
        folder_of(manifest).join(listed.map_or(Path::new(""), |source| source.path))
    }

    /// Returns one row for each split and source, for a manifest at `manifest`.
    pub fn rows(&self, manifest: &Path) -> Vec<Value> {
        let row = |name, part: &SourceSamples| {
            let path = self.file_path(part.file, manifest);
            C::row(&self.list, name, part.file, part.samples.len(), &path.to_string_lossy())
        };
        let of_split = |name| self.parts(name).iter().map(move |part| row(name, part));
        SplitName::ALL.into_iter().flat_map(of_split).collect()
    }

    /// Describes the splits that miss their share by over a tenth and more than one sample, with the reason. Counts of
    /// trajectories are always met exactly.
    pub fn missed_shares(&self) -> Vec<String> {
        if self.by != By::Trajectory {
            return Vec::new();
        }
        let because = match self.group_by {
            None => "records of a group stay together, and some groups are large",
            Some(GroupBy::State) => {
                "trajectories that begin alike stay together, and some of these groups are large"
            }
            Some(GroupBy::Content) => "copies stay together, and some groups of them are large",
        };
        let placed = SplitName::ALL.map(|name| self.count(name));
        let total: usize = placed.iter().sum();
        let all = self.sources().fold(0, |all, s| usize::saturating_add(all, s.samples));
        // Splits without a share consist of fixed sources.
        let own = placed.iter().zip(self.shares).filter(|(_, share)| share.is_zero());
        let own: usize = own.map(|(count, _)| count).sum();
        let Ok(wanted) = quotas(self.shares, all.saturating_sub(own)) else {
            return Vec::new();
        };
        let mut missed = Vec::new();
        for (((name, share), placed), wanted) in
            SplitName::ALL.into_iter().zip(self.shares).zip(placed).zip(wanted)
        {
            let is_exact = self.group_by.is_some() && matches!(share, Share::Count(_));
            let by = placed.abs_diff(wanted);
            if !share.is_zero() && !is_exact && by > 1 && by as f64 > 0.1 * wanted as f64 {
                missed.push(format!(
                    "the {name} split has {placed} of {total} {}, not {wanted} as its share: {because}",
                    C::WORDS[2]
                ));
            }
        }
        missed
    }

    /// Finds inconsistencies within the manifest that was read from `path`.
    pub(crate) fn problems(&self, path: &Path) -> Vec<Problem> {
        let mut all = C::problems(self, path);
        for name in SplitName::ALL {
            for part in self.parts(name) {
                let Some(Listed { path: of, samples, .. }) = C::listed(&self.list, part.file)
                else {
                    let [source, ..] = C::WORDS;
                    let what =
                        format!("{name}: {source} {} of {}", part.file, self.sources().count());
                    all.push(Problem::new(ProblemKind::Manifest, path, None, what));
                    continue;
                };
                if let Some(first) = part.samples.iter().find(|sample| **sample >= samples) {
                    let (of, sample) = (of.display(), C::WORDS[1]);
                    let what = format!("{name}: {sample} {first} of {of}, which has {samples}");
                    all.push(Problem::new(ProblemKind::Manifest, path, None, what));
                }
            }
        }
        for (name, share) in SplitName::ALL.into_iter().zip(self.shares) {
            if self.count(name) == 0 && !share.is_zero() {
                let what = format!("the {name} split is empty, though its share is not 0");
                all.push(Problem::new(ProblemKind::Empty, path, None, what));
            }
        }
        all.extend(self.repeats(path));
        all
    }

    /// Finds samples that are listed twice: in one split, in two splits, or under two paths with the same content.
    fn repeats(&self, manifest: &Path) -> Vec<Problem> {
        let mut first = HashMap::new();
        let sources = self.sources().enumerate();
        let same: Vec<usize> =
            sources.map(|(i, source)| *first.entry(source.blake3).or_insert(i)).collect();
        let listed = |(name, file, sample)| Some((*same.get(file)?, sample, file, name));
        let mut entries: Vec<(usize, usize, usize, SplitName)> =
            self.entries().filter_map(listed).collect();
        // The entries are mostly three sorted runs, which a stable sort merges.
        entries.sort_by_key(|(source, sample, ..)| (*source, *sample));
        let twice = entries.windows(2).filter(|two| (two[0].0, two[0].1) == (two[1].0, two[1].1));
        let (mut all, mut more) = (Vec::new(), 0usize);
        for two in twice {
            if all.len() == MAX_REPEATS {
                more += 1;
                continue;
            }
            let (before, (_, sample, file, name)) = (two[0].3, two[1]);
            let path = C::listed(&self.list, file).map_or(Path::new(""), |source| source.path);
            let (path, unit) = (path.display(), C::WORDS[1]);
            let message = format!("{path}: {unit} {sample} is in {before} and again in {name}");
            let file = self.file_path(file, manifest);
            all.push(Problem::new(ProblemKind::Overlap, &file, Some(sample), message));
        }
        if more > 0 {
            let what = format!("{more} more {} are listed twice", C::WORDS[2]);
            all.push(Problem::new(ProblemKind::Overlap, manifest, None, what));
        }
        all
    }
}
