//! Removes checkpoints on request, by the same rules that training applies.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use unix::disk::RealDisk;
use unix::space::human_bytes;
use unix::{Error, Result};

use super::find::{folder_of, require_folder};
use super::hold::hold_run_of;
use super::keep::KeepRules;
use super::list::{Entry, list};
use super::trash;
use super::verify::verify;
use crate::score::Direction;

/// Outcome for one checkpoint, returned by [`prune`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Path of the checkpoint directory.
    pub path: PathBuf,
    /// The update number in the directory's name.
    pub step: u64,
    /// Total file size in bytes; None when the manifest cannot be read.
    pub bytes: Option<u64>,
    /// Whether the checkpoint was removed, or would be without `dry_run`.
    pub removed: bool,
    /// Reason for keeping the checkpoint; None when it is removed.
    pub why: Option<String>,
}

/// Removes the checkpoints of a run, or of its `ckpt`, that no rule keeps; with `dry_run` it only reports them. The
/// newest checkpoint is read and verified before anything is removed. The newest checkpoint, the target of `best`,
/// damaged checkpoints and links are always kept. Each checkpoint is renamed before it is removed, so that a kill never
/// leaves a partial checkpoint under its name.
///
/// Errors: 66 when there is no good checkpoint, 65 when the newest is damaged, 75 while a process trains the run
/// (training prunes its checkpoints itself).
pub fn prune(run: &Path, rules: &KeepRules, dry_run: bool) -> Result<Vec<Pruned>> {
    let folder = require_folder(run)?;
    // A dry run does not need the lease.
    let _lease = if dry_run { None } else { hold_run_of(&folder)? };
    let entries = list(&folder)?;
    let good: Vec<&Entry> = entries.iter().filter(|entry| entry.is_good()).collect();
    let Some(newest) = good.last() else {
        return Err(Error::open(run, "it contains no good checkpoint"));
    };
    if let Some(damage) = verify(&newest.path)?.damage.first() {
        return Err(Error::data(format!(
            "{}: {damage}; nothing was removed: restore the newest checkpoint or move it away first",
            newest.path.display()
        )));
    }
    let rules = KeepRules { anchor: anchor(newest).unwrap_or(0), ..rules.clone() };
    let kept = rules.kept(&good);
    let best = fs::read_link(folder.join("best")).unwrap_or_default();
    let mut pruned = Vec::new();
    for entry in &entries {
        let link = fs::symlink_metadata(&entry.path).is_ok_and(|found| found.is_symlink());
        let why = match entry.problem() {
            Some(problem) => Some(format!("damaged: {problem}")),
            None if entry.path == newest.path => Some("the newest".into()),
            None if best.file_name() == entry.path.file_name() => Some("best".into()),
            None if kept.contains(entry.name()) => Some("kept by a rule".into()),
            None if link => Some("a link".into()),
            None => None,
        };
        if why.is_none() && !dry_run {
            trash::remove(&RealDisk, &entry.path)?;
        }
        pruned.push(Pruned {
            path: entry.path.clone(),
            step: entry.step,
            bytes: entry.manifest().map(|manifest| manifest.bytes()),
            removed: why.is_none(),
            why,
        });
    }
    Ok(pruned)
}

/// Returns the rewind anchor recorded in the configuration of `newest`; None unless the run rewinds on spikes. Training
/// keeps the newest checkpoint at a multiple of this many updates, because a rewind would go back to it.
fn anchor(newest: &Entry) -> Option<u64> {
    let config = &newest.manifest()?.config;
    let rewinds = config.pointer("/training/on_spike")?.as_str() == Some("rewind");
    config.pointer("/checkpoint/every")?.as_u64().filter(|_| rewinds)
}

/// A one-line summary for users of what was, or would be, removed.
pub fn summary(pruned: &[Pruned], dry_run: bool) -> String {
    let removed = pruned.iter().filter(|one| one.removed);
    let bytes: u64 = removed.clone().filter_map(|one| one.bytes).sum();
    let verb = if dry_run { "would remove" } else { "removed" };
    let (count, all) = (removed.count(), pruned.len());
    format!("{verb} {count} of {all} checkpoints, {}", human_bytes(bytes))
}

/// Returns the metric that selects the best checkpoint of a run, and its direction: as recorded in the newest
/// checkpoint, or the checkpoint's only metric, minimised. Errors: 2 when this is ambiguous.
pub fn monitor_of(run: &Path) -> Result<(String, Direction)> {
    let entries = list(&folder_of(run))?;
    let newest = entries.iter().rev().find_map(Entry::manifest);
    if let Some(manifest) = newest.filter(|manifest| !manifest.monitor.is_empty()) {
        return Ok((manifest.monitor.clone(), manifest.direction));
    }
    let metrics = newest.and_then(|manifest| manifest.metrics.as_object());
    let names: Vec<&String> = metrics.into_iter().flat_map(|metrics| metrics.keys()).collect();
    match names.as_slice() {
        [one] => Ok(((*one).clone(), Direction::Minimize)),
        _ => Err(Error::usage(format!(
            "{}: no checkpoint records which metric selects the best one; choose with --metric NAME from \
             {names:?}",
            run.display()
        ))),
    }
}
