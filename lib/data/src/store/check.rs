//! Checks stores of records and their manifests, and reports every problem instead of stopping at the first.

use super::{Content, RecordStore, StoreSet, StoreSplit};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result};

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A store is missing, incomplete, damaged, or another one than was divided.
    Store,
    /// A value is NaN or infinite.
    NotFinite,
    /// A value exceeds the limit.
    TooLarge,
    /// A text is empty.
    EmptyText,
    /// A label is not one of the classes.
    Label,
    /// Records of one group are in two splits.
    Group,
    /// Two splits have records with the same input.
    SameInput,
    /// Two splits have texts that are nearly equal.
    NearDuplicate,
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
    /// Adds a problem of a record, or of a store or file as a whole.
    pub fn add(&mut self, kind: Kind, file: &Path, record: Option<usize>, what: String) {
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

/// Checks the store in `folder`: hashes, and its records, of which values must be at most `limit`.
pub fn check_store<C: Content>(folder: &Path, limit: f32) -> Report {
    let mut report = Report::default();
    match C::Store::open(folder) {
        Ok(store) => records(&store, limit, &mut report),
        Err(error) => report.add_error(folder, &error),
    }
    report
}

fn records<R: RecordStore>(store: &R, limit: f32, report: &mut Report) {
    if let Err(error) = store.verify() {
        report.add_error(store.folder(), &error);
        return;
    }
    report.records += store.len();
    store.check(limit, report);
}

/// Checks a manifest, its stores, and that no group and no input is in two splits.
///
/// Errors: only when the manifest or a store is missing (66), or the manifest is invalid (65).
pub fn check_split<C: Content>(manifest: &Path, limit: f32) -> Result<Report> {
    let (split, _) = StoreSplit::<C>::load(manifest)?;
    let mut report = Report::default();
    for number in 0..split.stores.len() {
        match split.open_store(number, manifest) {
            Ok(store) => records(&store, limit, &mut report),
            Err(error) if error.exit == Exit::NoInput => {
                let what = format!("a store of {} is missing", manifest.display());
                return Err(error.context(what));
            }
            Err(error) => report.add_error(&split.store_path(number, manifest), &error),
        }
    }
    if report.problems.iter().all(|problem| problem.kind != Kind::Store) {
        leaks(&StoreSet::<C>::open_all(manifest)?, &mut report);
    }
    Ok(report)
}

/// Checks that no group and no input is in two of these splits of a manifest. Errors: 65.
pub fn require_separate<C: Content>(manifest: &Path, sets: &[StoreSet<C>]) -> Result<()> {
    let mut report = Report::default();
    leaks(sets, &mut report);
    if report.problems.is_empty() {
        return Ok(());
    }
    let messages: Vec<&String> = report.problems.iter().map(|problem| &problem.message).collect();
    Err(Error::list(
        Exit::Data,
        format!("{}: its splits share records, as ds-prep check reports:", manifest.display()),
        &messages,
    ))
}

/// Finds groups and inputs that are in two splits of some manifests; `more` may add what else they share. Errors: those
/// of [`StoreSet::open`].
pub fn audit<C: Content>(
    manifests: &[PathBuf],
    more: impl FnOnce(&[StoreSet<C>], &mut Report),
) -> Result<Report> {
    let sets = manifests.iter().map(|manifest| StoreSet::<C>::open_all(manifest));
    let sets: Vec<StoreSet<C>> = sets.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let mut report = Report { records: sets.iter().map(StoreSet::len).sum(), ..Report::default() };
    leaks(&sets, &mut report);
    more(&sets, &mut report);
    Ok(report)
}

/// Adds what two splits share.
fn leaks<C: Content>(sets: &[StoreSet<C>], report: &mut Report) {
    // The first record of each group and of each input.
    let mut seen: HashMap<(Kind, blake3::Hash), (&StoreSet<C>, usize)> = HashMap::new();
    for set in sets {
        for i in 0..set.len() {
            let (input, group) = (set.input_hash(i), set.group(i));
            // Without given groups, the group is the input.
            let group = (group != input).then_some((Kind::Group, group));
            for key in std::iter::once((Kind::SameInput, input)).chain(group) {
                let (other, first) = *seen.entry(key).or_insert((set, i));
                if other.name() == set.name() {
                    continue;
                }
                let shared = match key.0 {
                    Kind::Group => "is in the same group as",
                    _ => "has the same input as",
                };
                let ((file, record), (other_file, other_record)) =
                    (set.origin(i), other.origin(first));
                let what = format!(
                    "{shared} record {other_record} of {}, in splits {} and {}; split again, or remove one",
                    other_file.display(),
                    set.name(),
                    other.name()
                );
                report.add(key.0, file, Some(record), what);
            }
        }
    }
}
