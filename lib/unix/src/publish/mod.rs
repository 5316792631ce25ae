//! Writes files and directories atomically: they are complete or absent.
//!
//! Data is written under a temporary name next to the target, fsynced, renamed, and the parent directory is fsynced: at
//! any moment and after any crash, readers see either the old content or the new. Both fsyncs are needed, in this
//! order: without the first, the final name may refer to 0 bytes after a power failure; without the second, the data
//! may still be under the temporary name.
//!
//! The functions here publish on the file system of this machine, a [`Publisher`] on any [`Disk`]. If an fsync fails,
//! the data is discarded and its temporary name removed; an fsync is never retried, because a second one may succeed
//! without the data being on disk.

mod publisher;
mod temporary;

pub use publisher::{Publisher, Written};
pub use temporary::TEMPORARY_PREFIX;

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::Path;

use crate::disk::{DiskFile, RealDisk};
use crate::{Error, Result, host, small};

#[cfg(doc)]
use crate::{disk::Disk, space::ensure_space};

/// The writer passed to the closure of [`Publisher::file`].
pub type FileWriter = BufWriter<Box<dyn DiskFile>>;

/// Publishes on the file system of this machine.
pub const REAL: Publisher<'static> = Publisher::new(&RealDisk);

/// Publishes `bytes` as `path`, replacing an existing file. A file that contains a registered secret
/// ([`crate::secrets`]) is readable only by its owner. Errors: 73 when it cannot be created (or space is short), 74
/// when writing fails.
pub fn publish_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    REAL.bytes(path, bytes)
}

/// Publishes `bytes` as `path` unless it exists: of several processes, one succeeds. Returns whether this one did.
/// Errors: those of [`publish_bytes`].
pub fn publish_new(path: &Path, bytes: &[u8]) -> Result<bool> {
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    // link(2) gives a name to one process only, also over NFS; rename(2) would replace the file of another one.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unique = format!("{}-{}", host::name(), std::process::id());
    let own = path.with_file_name(format!("{TEMPORARY_PREFIX}{name}-{unique}"));
    publish_bytes(&own, bytes)?;
    let linked = std::fs::hard_link(&own, path);
    let _ = std::fs::remove_file(&own); // otherwise only a stray file is left
    match linked {
        Ok(()) => REAL.names(crate::space::parent(path)).map(|()| true),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(cause) => Err(Error::create(path, cause)),
    }
}

/// Creates a directory and its parents durably.
pub fn create_folder(path: &Path) -> Result<()> {
    REAL.create_folder(path)
}

/// BLAKE3 hash of a regular file, in hexadecimal.
pub fn hash_file(path: &Path) -> Result<String> {
    hash_file_while(path, &|_| true)
}

/// Like [`hash_file`], but calls `proceed` for every MiB with the number of bytes read so far; once it returns false, the
/// result is the hash of these. Tells the kernel not to keep the pages, because other processes may need the memory.
pub fn hash_file_while(path: &Path, proceed: &dyn Fn(u64) -> bool) -> Result<String> {
    small::require_file(path)?;
    let mut file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::NoReuse); // only a hint
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 1 << 20];
    while proceed(hasher.count()) {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(count) => _ = hasher.update(&block[..count]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(Error::io(path, cause)),
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}
