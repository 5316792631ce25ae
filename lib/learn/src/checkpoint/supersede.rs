//! Support for rewinds: finds the checkpoint to go back to, and removes the later ones.

use std::fs;
use std::path::Path;

use unix::disk::Disk;
use unix::{Error, Result, warn};

use super::keep::tidy;
use super::saver::Destination;
use super::{Loaded, Saver, list, load, trash};

impl Saver {
    /// Loads the newest good checkpoint before update `spike` that lies at a multiple of
    /// [`KeepRules::anchor`](super::KeepRules); checkpoints that fail to load are skipped with a warning. None when
    /// there is none.
    ///
    /// Other checkpoints are not used: a stop or a request saved them at updates that vary between executions, so the
    /// result of the run would vary as well.
    pub fn before(&self, spike: u64) -> Result<Option<Loaded>> {
        let Destination { folder, rules, .. } = &self.to;
        let mut entries = list(folder)?;
        entries.retain(|entry| entry.is_good() && rules.is_anchor(entry) && entry.step < spike);
        entries.sort_by_key(|entry| entry.step);
        for entry in entries.iter().rev() {
            match load(&entry.path) {
                Ok(loaded) => return Ok(Some(loaded)),
                Err(error) => warn!("skipping checkpoint: {error}"),
            }
        }
        Ok(None)
    }

    /// Removes all good checkpoints after `update`, for a run that continues from there with different samples, updates
    /// the links, and returns the removed names. No save may be in progress.
    ///
    /// If the process is killed halfway, the next attempt resumes from one of the remaining checkpoints, reaches the
    /// same spike and rewinds again.
    pub fn go_back(&self, update: u64) -> Result<Vec<String>> {
        let Destination { disk, folder, rules, .. } = &self.to;
        let mut removed = Vec::new();
        let mut target = None;
        for entry in list(folder)?.into_iter().filter(super::Entry::is_good) {
            if entry.step > update {
                trash::remove(&**disk, &entry.path)?;
                removed.push(entry.name().to_string());
            } else if entry.step == update {
                target = Some(entry.path);
            }
        }
        if let Some(target) = target {
            tidy(&**disk, folder, rules, &target)?;
        }
        unlink(&**disk, folder)?;
        Ok(removed)
    }
}

/// Removes dangling links.
fn unlink(disk: &dyn Disk, folder: &Path) -> Result<()> {
    for link in ["latest", "best"].map(|name| folder.join(name)) {
        if fs::symlink_metadata(&link).is_ok() && !link.exists() {
            disk.remove_file(&link).map_err(|cause| Error::io(&link, cause))?;
        }
    }
    Ok(())
}
