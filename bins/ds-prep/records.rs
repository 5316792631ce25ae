//! Subcommands for records: stores of pairs of arrays or of texts, and their manifests.

use std::path::{Path, PathBuf};

use crate::texts;
use data::records::{
    RecordPlan, RecordSet, RecordShapes, RecordSplit, RecordStats, Records, import,
};
use data::split::check::{CheckReport, ProblemKind};
use data::split::{
    By, DivideRequest, Divisible, Share, Source, Split, SplitName, SplitSet, divide,
};
use data::store::{Content, RecordStore, check};
use data::text::{TextKind, TextSplit, TextStore, equal_vectors, near_leaks};
use serde_json::{Value, json};
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result, warn};

/// The content of records.
#[derive(Clone, Copy, PartialEq)]
pub enum RecordKind {
    /// Pairs of arrays.
    Arrays,
    /// Texts with labels.
    Texts,
}

/// Returns the kind of records in a store or manifest; `None` if a path is neither.
pub fn kind(path: &Path) -> Option<RecordKind> {
    if TextStore::is_store(path) || TextSplit::is_manifest(path) {
        return Some(RecordKind::Texts);
    }
    (Records::is_store(path) || RecordSplit::is_manifest(path)).then_some(RecordKind::Arrays)
}

/// Returns whether a path is a store or a manifest of records.
pub fn are_at(path: &Path) -> bool {
    kind(path).is_some()
}

/// Copies pairs of arrays into a store.
pub fn make(plan: &RecordPlan, files: &[PathBuf], to: &Path, mut out: Out) -> Result<Exit> {
    let signals = Signals::install()?;
    let mut progress = Progress::new("records", 0);
    let mut done = 0;
    let store = import(plan, files, to, |more| {
        done += more as u64;
        progress.set(done);
        signals
            .check_stop(|| format!("{} is incomplete; the same command resumes it", to.display()))
    });
    drop(progress);
    out.row(&row(&store?))?;
    out.finish()
}

/// Returns a table row that describes a store.
pub fn row(store: &Records) -> Value {
    let description = store.description();
    json!({
        "store": store.path(),
        "records": store.len(),
        "input": description.input.to_string(),
        "target": description.target.to_string(),
    })
}

/// Returns a complete description of a store.
pub fn describe(store: &Path) -> Result<Value> {
    let store = Records::open(store)?;
    let (mut row, description) = (row(&store), store.description());
    row["options"] = description.options.as_str().into();
    row["files"] = json!(description.files);
    row["others"] = json!(description.others);
    Ok(row)
}

/// The options of `ds-prep split` for records.
pub struct Division<'a> {
    pub by: By,
    pub shares: [Share; 3],
    pub validation_from: &'a [PathBuf],
    pub test_from: &'a [PathBuf],
    pub seed: u64,
    pub near: Option<f64>,
}

/// Splits stores, and writes the manifest.
pub fn split(division: &Division, stores: &[PathBuf], to: &Path, out: Out) -> Result<Exit> {
    match kind(&stores[0]) {
        Some(RecordKind::Texts) => split_kind::<TextKind>(division, stores, to, out),
        _ => split_kind::<RecordShapes>(division, stores, to, out),
    }
}

fn split_kind<C: Content>(
    division: &Division,
    stores: &[PathBuf],
    to: &Path,
    out: Out,
) -> Result<Exit> {
    let Division { by, mut shares, validation_from, test_from, seed, near } = *division;
    let given = |folders: &[PathBuf], name: SplitName| -> Vec<(PathBuf, SplitName)> {
        folders.iter().map(|folder| (folder.clone(), name)).collect()
    };
    let validation = given(validation_from, SplitName::Validation);
    let fixed = [validation, given(test_from, SplitName::Test)].concat();
    // A split with its own stores takes no records from the others; its share of those goes to training.
    for (number, from) in [(1, validation_from), (2, test_from)] {
        if !from.is_empty() {
            if let (Share::Fraction(train), Share::Fraction(own)) = (shares[0], shares[number]) {
                shares[0] = Share::Fraction((train + own).min(1.0));
            }
            shares[number] = Share::Count(0);
        }
    }
    let request = DivideRequest { by, group_by: None, shares, fixed: &fixed, seed, near };
    let split: Split<C> = divide(&request, stores, to)?;
    save(&split, to, out, || warn_remarks::<C>(to))
}

/// Writes a manifest, or prints it for `-`. `tell` warns about properties that are valid but probably unintended.
pub fn save<C: Divisible>(
    split: &Split<C>,
    to: &Path,
    mut out: Out,
    tell: impl FnOnce() -> Result<()>,
) -> Result<Exit> {
    if to.as_os_str() == "-" {
        return out.raw(split.text()?.as_bytes()).map(|()| Exit::Done);
    }
    if to.exists() && Split::<C>::load(to).map_or(true, |(old, _)| old != *split) {
        let cause = "it is a different manifest that runs may use; move it or choose another name";
        return Err(Error::create(to, cause));
    }
    split.save(to)?;
    tell()?;
    out.rows(split.rows(to))
}

/// Computes the statistics of the training split of a manifest.
pub fn stats(manifest: &Path, to: &Path, mut out: Out) -> Result<Exit> {
    if kind(manifest) == Some(RecordKind::Texts) {
        return texts::stats(manifest, to, out);
    }
    let set = RecordSet::open(manifest, SplitName::Train)?;
    set.stores().iter().try_for_each(RecordStore::verify)?;
    let stats = RecordStats::of(&set)?;
    if to.as_os_str() == "-" {
        return out.raw(stats.text()?.as_bytes()).map(|()| Exit::Done);
    }
    stats.save(to)?;
    out.rows(stats.rows())
}

/// Checks a store or a manifest.
pub fn check(path: &Path, limit: f32) -> Result<CheckReport> {
    match kind(path) {
        Some(RecordKind::Texts) => check_kind::<TextKind>(path, limit),
        _ => check_kind::<RecordShapes>(path, limit),
    }
}

fn check_kind<C: Content>(path: &Path, limit: f32) -> Result<CheckReport> {
    if !Split::<C>::is_manifest(path) {
        return Ok(check::check_store::<C>(path, limit));
    }
    let report = check::check_split::<C>(path, limit)?;
    if report.problems.iter().all(|problem| problem.kind != ProblemKind::Store) {
        warn_remarks::<C>(path)?;
    }
    Ok(report)
}

fn warn_remarks<C: Content>(manifest: &Path) -> Result<()> {
    warn_missed_shares(&Split::<C>::load(manifest)?.0, manifest);
    for remark in C::remarks(&SplitSet::<C>::open_all(manifest)?) {
        warn!("{}: {remark}", manifest.display());
    }
    Ok(())
}

/// Warns about requested shares that a manifest does not meet.
pub fn warn_missed_shares<C: Divisible>(split: &Split<C>, manifest: &Path) {
    for missed in split.missed_shares() {
        warn!("{}: {missed}", manifest.display());
    }
}

/// Finds records shared between splits; for texts, also equal vectors, and near-duplicates with a distance below `near`.
pub fn audit(manifests: &[PathBuf], near: Option<f64>) -> Result<CheckReport> {
    match kind(&manifests[0]) {
        Some(RecordKind::Texts) => check::audit::<TextKind>(manifests, |sets, report| {
            equal_vectors(sets, report);
            let mut stores = sets.iter().flat_map(|set| set.stores());
            let has_images = stores.any(|store| store.image_store().is_some());
            let near = near.unwrap_or(if has_images { 0.05 } else { 0.2 });
            if near > 0.0 {
                near_leaks(sets, 1.0 - near, report);
            }
        }),
        _ => check::audit::<RecordShapes>(manifests, |_, _| ()),
    }
}
