//! Checks stores of records and their manifests, and reports every problem instead of stopping at the first.

use super::{Content, RecordStore};
use crate::split::check::{CheckReport, ProblemKind, shared};
use crate::split::{Source, Split, SplitSet};
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result};

/// Checks the hashes and the records of the store in `folder`; values may be at most `limit`.
pub fn check_store<C: Content>(folder: &Path, limit: f32) -> CheckReport {
    let mut report = CheckReport::default();
    match C::Store::open(folder) {
        Ok(store) => records(&store, limit, &mut report),
        Err(error) => report.add_record(ProblemKind::Store, folder, None, error),
    }
    report
}

fn records<R: RecordStore>(store: &R, limit: f32, report: &mut CheckReport) {
    if let Err(error) = store.verify() {
        report.add_record(ProblemKind::Store, store.path(), None, error);
        return;
    }
    report.records += store.len();
    store.check(limit, report);
}

/// Checks a manifest and its stores, and that no group or input occurs in two splits.
///
/// Errors: only when the manifest or a store is missing (66), or the manifest is invalid (65).
pub fn check_split<C: Content>(manifest: &Path, limit: f32) -> Result<CheckReport> {
    let (split, _) = Split::<C>::load(manifest)?;
    let mut report = CheckReport::default();
    for number in 0..split.list.stores.len() {
        match split.open_store(number, manifest) {
            Ok(store) => records(&store, limit, &mut report),
            Err(error) if error.exit == Exit::NoInput => {
                let what = format!("a store of {} is missing", manifest.display());
                return Err(error.context(what));
            }
            Err(error) => report.add_record(
                ProblemKind::Store,
                &split.file_path(number, manifest),
                None,
                error,
            ),
        }
    }
    if report.problems.iter().all(|problem| problem.kind != ProblemKind::Store) {
        leaks(&SplitSet::<C>::open_all(manifest)?, &mut report);
    }
    Ok(report)
}

/// Checks that no group or input occurs in two of these splits of a manifest. Errors: 65.
pub fn require_separate<C: Content>(manifest: &Path, sets: &[SplitSet<C>]) -> Result<()> {
    let mut report = CheckReport::default();
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

/// Finds groups and inputs that occur in two splits of the manifests; `more` may add further problems. Errors: those of
/// [`SplitSet::open`].
pub fn audit<C: Content>(
    manifests: &[PathBuf],
    more: impl FnOnce(&[SplitSet<C>], &mut CheckReport),
) -> Result<CheckReport> {
    let sets = manifests.iter().map(|manifest| SplitSet::<C>::open_all(manifest));
    let sets: Vec<SplitSet<C>> = sets.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let mut report =
        CheckReport { records: sets.iter().map(SplitSet::len).sum(), ..CheckReport::default() };
    leaks(&sets, &mut report);
    more(&sets, &mut report);
    Ok(report)
}

/// Reports groups and inputs that two splits share.
fn leaks<C: Content>(sets: &[SplitSet<C>], report: &mut CheckReport) {
    let samples = sets.iter().flat_map(|set| (0..set.len()).map(move |i| (set, i)));
    let keyed = samples.map(|(set, i)| {
        let (input, group) = (set.input_hash(i), set.group(i));
        // Without explicit groups, the group of a record is its input.
        let group = (group != input).then_some((ProblemKind::Group, group));
        (set.name(), (set, i), std::iter::once((ProblemKind::SameInput, input)).chain(group))
    });
    shared(keyed, |(kind, _), (name, (set, i)), (other_name, (other, first))| {
        let how = match kind {
            ProblemKind::Group => "is in the same group as",
            _ => "has the same input as",
        };
        let ((file, record), (other_file, other_record)) = (set.origin(i), other.origin(first));
        let what = format!(
            "{how} record {other_record} of {}, in splits {name} and {other_name}; split again, or remove one",
            other_file.display()
        );
        report.add_record(kind, file, Some(record), what);
    });
}
