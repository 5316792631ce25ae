//! Going back: where to, and what becomes of the checkpoints that are left behind.

use std::fs;
use std::path::Path;

use unix::disk::Disk;
use unix::{Error, Result, warn};

use super::keep::tidy;
use super::{Loaded, Saver, list, load, trash};

impl Saver {
    /// The newest good checkpoint at a multiple of the anchor ([`Saver::anchored`]) before update
    /// `spike`; damaged ones are passed over with a warning. None when there is none.
    ///
    /// Others are no place to go back to: a stop or a wish for a checkpoint makes them at updates
    /// that depend on the machine, and so would the result.
    pub fn before(&self, spike: u64) -> Result<Option<Loaded>> {
        let is_place = |step: u64| self.anchor > 0 && step.is_multiple_of(self.anchor);
        let mut entries = list(&self.folder)?;
        entries.retain(|entry| entry.is_good() && is_place(entry.step) && entry.step < spike);
        entries.sort_by_key(|entry| entry.step);
        for entry in entries.iter().rev() {
            match load(&entry.path) {
                Ok(loaded) => return Ok(Some(loaded)),
                Err(error) => warn!("passed over: {error}"),
            }
        }
        Ok(None)
    }

    /// Takes all good checkpoints after `update` out of the way, for a run that goes on from there
    /// with other samples, and sets the links; returns their names. The save that runs must have
    /// ended.
    ///
    /// Killed in the middle, the next start goes on from one of those that are left, which leads to
    /// the same spike and here again.
    pub fn go_back(&self, update: u64) -> Result<Vec<String>> {
        let disk = &*self.disk;
        let mut removed = Vec::new();
        let mut target = None;
        for entry in list(&self.folder)?.into_iter().filter(super::Entry::is_good) {
            if entry.step > update {
                trash::remove(disk, &entry.path)?;
                removed.push(entry.name().to_string());
            } else if entry.step == update {
                target = Some(entry.path);
            }
        }
        if let Some(target) = target {
            tidy(disk, &self.folder, &self.rules, self.anchor, &target)?;
        }
        unlink(disk, &self.folder)?;
        Ok(removed)
    }
}

/// Removes links that name nothing any more.
fn unlink(disk: &dyn Disk, folder: &Path) -> Result<()> {
    for link in ["latest", "best"].map(|name| folder.join(name)) {
        if fs::symlink_metadata(&link).is_ok() && !link.exists() {
            disk.remove_file(&link).map_err(|cause| Error::io(&link, cause))?;
        }
    }
    Ok(())
}
