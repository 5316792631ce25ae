//! Checks stores and manifests of records, and reports every problem instead of stopping at the first.

use super::{Description, RecordSet, RecordSplit, Records};
use crate::fields::content::hash_values;
use crate::split::SplitName;
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result};

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A store is missing, incomplete, damaged, or another one than was divided.
    Store,
    /// A value is NaN or infinite.
    NotFinite,
    /// A value exceeds the limit.
    TooLarge,
    /// Records of one group are in two splits.
    Group,
    /// Two splits have records with the same input.
    SameInput,
}

/// One problem and where it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Problem {
    /// What is wrong.
    pub kind: Kind,
    /// The file that the record came from, or the store.
    pub file: PathBuf,
    /// The number of the record in the file.
    pub record: Option<usize>,
    /// The problem and its remedy as a message.
    pub message: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Records that were read.
    pub records: usize,
    /// All problems.
    pub problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, kind: Kind, file: &Path, record: Option<usize>, what: String) {
        let message = match record {
            Some(record) => format!("{}: record {record}: {what}", file.display()),
            None => what,
        };
        self.problems.push(Problem { kind, file: file.into(), record, message });
    }

    fn add_error(&mut self, file: &Path, error: &Error) {
        self.add(Kind::Store, file, None, error.to_string());
    }
}

/// Checks the store in `folder`: hashes, and that values are finite and at most `limit`.
pub fn check_store(folder: &Path, limit: f32) -> Report {
    let mut report = Report::default();
    match Records::open(folder) {
        Ok(store) => values(&store, limit, &mut report),
        Err(error) => report.add_error(folder, &error),
    }
    report
}

fn values(store: &Records, limit: f32, report: &mut Report) {
    if let Err(error) = store.verify() {
        report.add_error(store.folder(), &error);
    }
    report.records += store.len();
    for i in 0..store.len() {
        let Description { input, target, .. } = store.description();
        for (name, side, values) in
            [("input", input, store.input(i)), ("target", target, store.target(i))]
        {
            let bad = values.iter().position(|value| value.is_nan() || value.abs() > limit);
            let Some(at) = bad else { continue };
            let ((file, record), value) = (store.origin(i), values[at]);
            let (kind, why) = match value.is_finite() {
                true => (Kind::TooLarge, "larger than --limit; scale the numbers"),
                false => (Kind::NotFinite, "not finite; remove the record"),
            };
            let what = format!("its {name} is {value} at {}, {why}", side.place(at));
            report.add(kind, file, Some(record), what);
        }
    }
}

/// Checks a manifest, its stores, and that no group and no input is in two splits.
///
/// Errors: only when the manifest or a store is missing (66), or the manifest is invalid (65).
pub fn check_split(manifest: &Path, limit: f32) -> Result<Report> {
    let (split, _) = RecordSplit::load(manifest)?;
    let mut report = Report::default();
    for (number, entry) in split.stores.iter().enumerate() {
        let folder = split.store_path(number, manifest);
        match Records::open(&folder) {
            Ok(store) if store.hash() != entry.blake3 => {
                let what = format!(
                    "{}: its content is not that which {} divides; run `ds-prep split` again",
                    folder.display(),
                    manifest.display()
                );
                report.add(Kind::Store, &folder, None, what);
            }
            Ok(store) => values(&store, limit, &mut report),
            Err(error) if error.exit == Exit::NoInput => {
                let what = format!("a store of {} is missing", manifest.display());
                return Err(error.context(what));
            }
            Err(error) => report.add_error(&folder, &error),
        }
    }
    if report.problems.iter().all(|problem| problem.kind != Kind::Store) {
        leaks(&[manifest.to_path_buf()], &mut report)?;
    }
    Ok(report)
}

/// Finds groups and inputs that are in two splits of some manifests. Errors: those of [`RecordSet::open`].
pub fn audit(manifests: &[PathBuf]) -> Result<Report> {
    let mut report = Report::default();
    report.records = leaks(manifests, &mut report)?;
    Ok(report)
}

/// Adds what two splits share, and returns the number of records.
fn leaks(manifests: &[PathBuf], report: &mut Report) -> Result<usize> {
    let mut seen: HashMap<(Shared, blake3::Hash), (SplitName, PathBuf, usize)> = HashMap::new();
    let mut records = 0;
    for manifest in manifests {
        for name in SplitName::ALL {
            let set = RecordSet::open(manifest, name)?;
            records += set.len();
            for i in 0..set.len() {
                let mut hasher = blake3::Hasher::new();
                hash_values(&mut hasher, set.input(i));
                let (file, record) = set.origin(i);
                let input = hasher.finalize();
                // Without given groups, the group is the input.
                let keys = [(Shared::Input, input), (Shared::Group, set.group(i))];
                let count = if keys[0].1 == keys[1].1 { 1 } else { 2 };
                for key in keys.into_iter().take(count) {
                    let first = seen.entry(key).or_insert((name, file.into(), record));
                    if first.0 == name {
                        continue;
                    }
                    let (other, other_file, other_record) = first.clone();
                    let (kind, shared) = match key.0 {
                        Shared::Input => (Kind::SameInput, "has the same input as"),
                        Shared::Group => (Kind::Group, "is in the same group as"),
                    };
                    let what = format!(
                        "of {name} {shared} record {other_record} of {} in {other}; split again, or remove one",
                        other_file.display()
                    );
                    report.add(kind, file, Some(record), what);
                }
            }
        }
    }
    Ok(records)
}

/// What identifies records that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shared {
    Input,
    Group,
}
