//! Checks files and splits, and reports every violation instead of stopping at the first.

pub(crate) mod manifest;
mod values;

use crate::fields::field::Field;
use crate::fields::split::{GroupBy, Split, SplitName};
use crate::fields::split_set::{Verify, compare};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result};
use values::check_field;

/// The kinds of violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The file does not exist or cannot be opened.
    Missing,
    /// The file has no supported layout, or is truncated.
    Unreadable,
    /// The file's content is not the one that the manifest was made from.
    Changed,
    /// The manifest and the file disagree.
    Mismatch,
    /// The manifest is inconsistent.
    Manifest,
    /// The file has no trajectories.
    Empty,
    /// The parameter is missing or not finite.
    Parameter,
    /// Coordinates are missing, too few or too many, not ascending, or differ between trajectories.
    Coordinates,
    /// The coordinates fit a different order of the axes than the one that is assumed.
    AxisOrder,
    /// A value is NaN or infinite.
    NotFinite,
    /// All values of a trajectory are equal.
    Constant,
    /// A value exceeds the limit.
    TooLarge,
    /// The splits list a trajectory twice.
    Overlap,
    /// Two trajectories have the same content.
    Duplicate,
    /// A frame of one split also occurs in a trajectory of another.
    SharedFrame,
    /// Two splits have trajectories with almost the same initial state or input.
    NearDuplicate,
    /// Two splits have trajectories with the same initial state or input.
    SameInitialState,
}

/// One violation and where it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// What is wrong.
    pub kind: Kind,
    /// The file.
    pub file: PathBuf,
    /// The trajectory.
    pub trajectory: Option<usize>,
    /// The frame of the trajectory.
    pub frame: Option<usize>,
    /// The index in the frame, over points and channels.
    pub index: Option<usize>,
    /// The violation as a message.
    pub message: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Files that were checked.
    pub files: usize,
    /// Trajectories that were read.
    pub trajectories: usize,
    /// All violations, in the order of the files.
    pub violations: Vec<Violation>,
}

impl Violation {
    /// A violation that concerns a whole file.
    pub(crate) fn new(kind: Kind, file: &Path, message: impl ToString) -> Self {
        let (trajectory, frame, index) = (None, None, None);
        let (file, message) = (file.to_path_buf(), message.to_string());
        Self { kind, file, trajectory, frame, index, message }
    }

    /// The violation that an error about a file means: [`Kind::Missing`], or else `otherwise`.
    fn of_error(file: &Path, error: &Error, otherwise: Kind) -> Self {
        let kind = if error.exit == Exit::NoInput { Kind::Missing } else { otherwise };
        Self::new(kind, file, error)
    }
}

impl Report {
    /// Adds a violation of a file; its message begins with the path.
    fn add(&mut self, kind: Kind, file: &Path, what: impl fmt::Display) {
        let message = format!("{}: {what}", file.display());
        self.violations.push(Violation::new(kind, file, message));
    }

    /// Adds violations of a manifest, prefixing their messages with its path.
    fn add_of(&mut self, manifest: &Path, violations: Vec<Violation>) {
        self.violations.extend(violations.into_iter().map(|violation| Violation {
            message: format!("{}: {}", manifest.display(), violation.message),
            ..violation
        }));
    }
}

/// Checks files on their own. `limit` bounds |u|.
pub fn check_files(paths: &[PathBuf], limit: f32) -> Report {
    let mut report = Report::default();
    for path in paths {
        report.files += 1;
        match Field::open(path) {
            Ok(field) => {
                check_field(&field, limit, GroupBy::State, &mut report);
            }
            Err(error) => {
                report.violations.push(Violation::of_error(path, &error, Kind::Unreadable));
            }
        }
    }
    report
}

/// Checks a manifest and its files, and that no trajectory is in two splits.
///
/// Errors: only when the manifest cannot be read (66) or is invalid (65).
pub fn check_split(manifest: &Path, limit: f32) -> Result<Report> {
    let (split, _) = Split::parse(manifest)?;
    let mut report = Report::default();
    report.add_of(manifest, manifest::in_itself(&split, manifest));
    let mut keys: Vec<Vec<blake3::Hash>> = Vec::new();
    let mut first: Option<Field> = None;
    for number in 0..split.files.len() {
        report.files += 1;
        match compare(manifest, &split, number, Verify::Hashes) {
            Ok((field, violations)) => {
                report.add_of(manifest, violations);
                keys.push(check_field(&field, limit, split.group_by, &mut report));
                if let Some(what) = first.as_ref().and_then(|f| f.coordinate_difference(&field)) {
                    report.add(Kind::Coordinates, field.path(), what);
                }
                first.get_or_insert(field);
            }
            Err(error) => {
                let path = split.file_path(number, manifest);
                report.violations.push(Violation::of_error(&path, &error, Kind::Unreadable));
                keys.push(Vec::new());
            }
        }
    }
    check_groups(&split, manifest, &keys, &mut report);
    Ok(report)
}

fn check_groups(split: &Split, manifest: &Path, keys: &[Vec<blake3::Hash>], report: &mut Report) {
    let mut seen: HashMap<blake3::Hash, (SplitName, usize, usize)> = HashMap::new();
    for (name, file, sample) in split.entries() {
        let Some(hash) = keys.get(file).and_then(|keys| keys.get(sample)) else { continue };
        let (first, other_file, other) = *seen.entry(*hash).or_insert((name, file, sample));
        if first != name && (other_file, other) != (file, sample) {
            let path = split.file_path(file, manifest);
            let (kind, how) = match split.group_by {
                GroupBy::State => {
                    (Kind::SameInitialState, "has the same initial state or input as")
                }
                GroupBy::Content => (Kind::Duplicate, "equals"),
            };
            let message = format!(
                "{}: trajectory {sample} of {name} {how} trajectory {other} of {} in {first}",
                path.display(),
                split.file_path(other_file, manifest).display()
            );
            let violation = Violation::new(kind, &path, message);
            report.violations.push(Violation { trajectory: Some(sample), ..violation });
        }
    }
}
