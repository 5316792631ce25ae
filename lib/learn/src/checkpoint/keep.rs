//! Which checkpoints stay, and the links `latest` and `best`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use unix::publish::{TEMPORARY_PREFIX, publish_link};
use unix::{Error, Result, warn};

use super::list::{Entry, list};

/// Prefix of folders that are being removed.
const TRASH_PREFIX: &str = ".trash-";

/// Which checkpoints stay. The newest always does, and so does the one that `best` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepRules {
    /// This many of the newest.
    pub last: usize,
    /// This many with the smallest value of `metric`.
    pub best: usize,
    /// Those at multiples of this many updates; 0: none.
    pub every: u64,
    /// The result of a validation that tells which is best.
    pub metric: String,
}

impl KeepRules {
    /// The checkpoint with the smallest value; of equal ones the oldest.
    fn best<'a>(&self, good: &[&'a Entry]) -> Vec<&'a Entry> {
        let value = |entry: &Entry| entry.manifest().and_then(|m| m.metric(&self.metric));
        let mut ranked: Vec<(f64, &Entry)> =
            good.iter().filter_map(|entry| Some((value(entry)?, *entry))).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        ranked.into_iter().take(self.best).map(|(_, entry)| entry).collect()
    }

    /// Names of those that stay out of `good`, the newest last.
    pub(super) fn kept<'a>(&self, good: &[&'a Entry]) -> BTreeSet<&'a str> {
        let last = good.iter().rev().take(self.last.max(1)).copied();
        let best = self.best(good);
        let every =
            good.iter().copied().filter(|e| self.every > 0 && e.step.is_multiple_of(self.every));
        last.chain(best).chain(every).map(Entry::name).collect()
    }
}

/// After `new` was written and verified: sets the links, removes what no rule keeps, and returns
/// the names of the removed. Damaged checkpoints are left to be looked at, and count for nothing.
pub(super) fn tidy(folder: &Path, rules: &KeepRules, new: &Path) -> Result<Vec<String>> {
    let entries = list(folder)?;
    let good: Vec<&Entry> = entries.iter().filter(|entry| entry.is_good()).collect();
    if let Some(name) = new.file_name() {
        publish_link(&folder.join("latest"), Path::new(name))?;
    }
    if let Some(best) = rules.best(&good).first() {
        publish_link(&folder.join("best"), Path::new(best.name()))?;
    }
    let linked: Vec<PathBuf> = ["latest", "best"]
        .iter()
        .filter_map(|link| fs::read_link(folder.join(link)).ok())
        .collect();
    let kept = rules.kept(&good);
    let mut removed = Vec::new();
    for entry in &good {
        let named = linked.iter().any(|target| target.file_name() == entry.path.file_name());
        // A link to a folder elsewhere is somebody's own doing.
        let ours = fs::symlink_metadata(&entry.path).is_ok_and(|found| found.is_dir());
        if kept.contains(entry.name()) || named || entry.path == new || !ours {
            continue;
        }
        let trash = trash_name(&entry.path);
        fs::rename(&entry.path, &trash).map_err(|cause| Error::io(&entry.path, cause))?;
        discard(&trash);
        removed.push(entry.name().to_string());
    }
    Ok(removed)
}

/// A name beside `path` under which it is no checkpoint any more.
pub(super) fn trash_name(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (host, pid) = (unix::host::name(), std::process::id());
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!("{TRASH_PREFIX}{name}-{host}-{pid}-{count}"))
}

/// Removes a folder that has a trash name; what cannot be removed now is tried again at the next
/// start.
pub(super) fn discard(trash: &Path) {
    if let Err(cause) = fs::remove_dir_all(trash) {
        warn!("cannot remove {}: {cause}", trash.display());
    }
}

/// Removes what killed saves of this run left behind. Only for the one writer of the run.
pub(super) fn remove_leftovers(folder: &Path) -> Result<()> {
    let found = fs::read_dir(folder).map_err(|cause| Error::open(folder, cause))?;
    for item in found {
        let item = item.map_err(|cause| Error::open(folder, cause))?;
        let name = item.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(TEMPORARY_PREFIX) && !name.starts_with(TRASH_PREFIX) {
            continue;
        }
        let is_folder = item.file_type().is_ok_and(|kind| kind.is_dir());
        let path = item.path();
        let done = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        if let Err(cause) = done {
            warn!("cannot remove {}: {cause}", path.display());
        }
    }
    Ok(())
}
