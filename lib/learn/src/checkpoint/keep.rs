//! Checkpoint retention, and the links `latest` and `best`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use unix::disk::Disk;
use unix::publish::Publisher;
use unix::{Result, warn};

use super::list::{Entry, list};
use super::trash;
use super::write::step;
use crate::score::Direction;

/// Checkpoint retention rules. The newest checkpoint and the target of `best` are always kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeepRules {
    /// Number of newest checkpoints to keep.
    pub last: usize,
    /// Number of checkpoints with the best values of `metric` to keep.
    pub best: usize,
    /// Keep checkpoints at multiples of this many updates; 0: none.
    pub every: u64,
    /// Validation metric that selects the best checkpoints.
    pub metric: String,
    /// Whether `metric` is minimised or maximised.
    pub direction: Direction,
    /// Keep the newest checkpoint at a multiple of this many updates, as the target of a rewind; 0: none.
    pub anchor: u64,
}

impl KeepRules {
    /// Returns the checkpoints with the best values; ties keep the older one.
    fn best<'a>(&self, good: &[&'a Entry]) -> Vec<&'a Entry> {
        let mut ranked = ranked(good, &self.metric, self.direction);
        ranked.truncate(self.best);
        ranked
    }

    pub(super) fn is_anchor(&self, entry: &Entry) -> bool {
        self.anchor > 0 && entry.step.is_multiple_of(self.anchor)
    }

    /// Returns the names of the checkpoints in `good` that a rule keeps.
    pub(super) fn kept<'a>(&self, good: &[&'a Entry]) -> BTreeSet<&'a str> {
        let last = good.iter().rev().take(self.last.max(1)).copied();
        let best = self.best(good);
        let every =
            good.iter().copied().filter(|e| self.every > 0 && e.step.is_multiple_of(self.every));
        let anchor = good.iter().copied().rev().find(|entry| self.is_anchor(entry));
        last.chain(best).chain(every).chain(anchor).map(Entry::name).collect()
    }
}

/// Returns the checkpoints with a finite value of `metric`, best first; ties put the older one first.
fn ranked<'a>(good: &[&'a Entry], metric: &str, direction: Direction) -> Vec<&'a Entry> {
    let value = |entry: &Entry| entry.manifest().and_then(|m| m.metric(metric));
    let mut ranked: Vec<(f64, &Entry)> =
        good.iter().filter_map(|entry| Some((value(entry)?, *entry))).collect();
    ranked.sort_by(|(a, _), (b, _)| match direction {
        Direction::Minimize => a.total_cmp(b),
        Direction::Maximize => b.total_cmp(a),
    });
    ranked.into_iter().map(|(_, entry)| entry).collect()
}

/// Returns the best checkpoint in `folder` (RUN/ckpt) by the metric that the newest checkpoint monitors, even if it is
/// damaged; None when no checkpoint has a value of that metric. Errors: 66 when the directory cannot be read.
pub fn best(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = list(folder)?;
    let all: Vec<&Entry> = entries.iter().collect();
    let newest = entries.iter().rev().find_map(Entry::manifest);
    let order = newest.map(|newest| ranked(&all, &newest.monitor, newest.direction));
    Ok(order.and_then(|order| order.first().map(|entry| entry.path.clone())))
}

/// Tidies the directory after `new` was written and verified: updates the links, removes the checkpoints that no rule
/// keeps, and returns their names. Damaged checkpoints are kept for inspection and do not count towards the rules.
pub(super) fn tidy(
    disk: &dyn Disk,
    folder: &Path,
    rules: &KeepRules,
    new: &Path,
) -> Result<Vec<String>> {
    let publisher = Publisher::new(disk);
    let entries = list(folder)?;
    let good: Vec<&Entry> = entries.iter().filter(|entry| entry.is_good()).collect();
    // A link that cannot be set, e.g. because copying the run turned it into a directory, only causes a warning.
    let link = |link: &str, name: &Path| {
        publisher.link(&folder.join(link), name).unwrap_or_else(|error| warn!("{error}"));
    };
    if let Some(name) = new.file_name() {
        link("latest", Path::new(name));
    }
    step("save.after_latest", folder)?;
    if let Some(best) = rules.best(&good).first() {
        link("best", Path::new(best.name()));
    }
    let linked: Vec<PathBuf> = ["latest", "best"]
        .iter()
        .filter_map(|link| fs::read_link(folder.join(link)).ok())
        .collect();
    let kept = rules.kept(&good);
    let mut removed = Vec::new();
    for entry in &good {
        let named = linked.iter().any(|target| target.file_name() == entry.path.file_name());
        // Symbolic links to other directories were created by the user and are left alone.
        let ours = fs::symlink_metadata(&entry.path).is_ok_and(|found| found.is_dir());
        if kept.contains(entry.name()) || named || entry.path == new || !ours {
            continue;
        }
        step("save.before_prune", &entry.path)?;
        trash::remove(disk, &entry.path)?;
        step("save.after_prune", &entry.path)?;
        removed.push(entry.name().to_string());
    }
    Ok(removed)
}
