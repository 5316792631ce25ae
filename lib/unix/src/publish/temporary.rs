//! Names for what is not published yet.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::Disk;
use crate::{Error, Result};

/// Prefix of temporary names; readers of folders skip names that start with it.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// A name that nobody else uses; what is still there when this is dropped was not published and
/// is removed.
pub(super) struct Temporary<'d> {
    pub path: PathBuf,
    disk: &'d dyn Disk,
}

impl<'d> Temporary<'d> {
    /// In the folder of `target`, for a rename does not leave its file system.
    pub fn beside(disk: &'d dyn Disk, target: &Path) -> Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let Some(name) = target.file_name() else {
            return Err(Error::create(target, "the path names no file"));
        };
        let mut temporary = OsString::from(TEMPORARY_PREFIX);
        temporary.push(name);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        temporary.push(format!("-{}-{}-{count}", crate::host::name(), std::process::id()));
        Ok(Self { path: target.with_file_name(temporary), disk })
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // Absent when it was published, or never made; what cannot be removed the next start removes.
        let _ = self.disk.remove_all(&self.path);
    }
}
