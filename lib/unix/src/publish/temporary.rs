//! Temporary names for files that are not published yet.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::Disk;
use crate::{Error, Result};

/// Prefix of temporary names; readers of directories skip names that start with it.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// Returns a suffix for temporary names that no other process uses; the host name and process id would not be enough,
/// because containers may share both.
pub(crate) fn unique_suffix() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    static RANDOM: OnceLock<u64> = OnceLock::new();
    let random = RANDOM.get_or_init(|| RandomState::new().build_hasher().finish()) >> 32;
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{random:08x}-{count}", crate::host::name(), std::process::id())
}

/// A unique temporary name. If the file still exists on drop, it was not published and is removed.
pub(super) struct Temporary<'d> {
    pub path: PathBuf,
    disk: &'d dyn Disk,
}

impl<'d> Temporary<'d> {
    /// Creates a name in the directory of `target`, because a rename cannot cross file systems.
    pub fn beside(disk: &'d dyn Disk, target: &Path) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(Error::create(target, "the path has no file name"));
        };
        let mut temporary = OsString::from(TEMPORARY_PREFIX);
        temporary.push(name);
        temporary.push(format!("-{}", unique_suffix()));
        Ok(Self { path: target.with_file_name(temporary), disk })
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // The file is absent if it was published or never created. If it cannot be removed here, the next attempt
        // removes it.
        let _ = self.disk.remove_all(&self.path);
    }
}
