//! Going back: where to, and what becomes of the checkpoints that are left behind.

use std::fs::{self, File};
use std::path::Path;

use unix::{Error, Result, warn};

use super::keep::{discard, tidy, trash_name};
use super::{Loaded, Saver, list, load};

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
        let mut removed = Vec::new();
        let mut target = None;
        for entry in list(&self.folder)?.into_iter().filter(super::Entry::is_good) {
            if entry.step > update {
                let trash = trash_name(&entry.path);
                fs::rename(&entry.path, &trash).map_err(|cause| Error::io(&entry.path, cause))?;
                removed.push((entry.name().to_string(), trash));
            } else if entry.step == update {
                target = Some(entry.path);
            }
        }
        sync(&self.folder)?;
        if let Some(target) = target {
            tidy(&self.folder, &self.rules, self.anchor, &target)?;
        }
        unlink(&self.folder)?;
        removed.iter().for_each(|(_, trash)| discard(trash));
        Ok(removed.into_iter().map(|(name, _)| name).collect())
    }
}

fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| Error::io(folder, cause))
}

/// Removes links that name nothing any more.
fn unlink(folder: &Path) -> Result<()> {
    for link in ["latest", "best"].map(|name| folder.join(name)) {
        if fs::symlink_metadata(&link).is_ok() && !link.exists() {
            fs::remove_file(&link).map_err(|cause| Error::io(&link, cause))?;
        }
    }
    Ok(())
}
