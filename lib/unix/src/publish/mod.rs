//! Writes files and directories atomically: they are either complete or absent.
//!
//! Data is written under a temporary name next to the target, fsynced and renamed, and the parent directory is fsynced:
//! at any moment and after any crash, readers see either the old content or the new. Both fsyncs are needed, in this
//! order: without the first, the final name may refer to 0 bytes after a power failure; without the second, the data
//! may still be under the temporary name.
//!
//! The functions here publish on the file system of this machine, a [`Publisher`] on any [`Disk`]. If an fsync fails,
//! the data is discarded and its temporary name is removed. An fsync is never retried, because a second one may succeed
//! without the data being on disk.

mod publisher;
mod temporary;

pub use publisher::{Publisher, Written};
pub use temporary::TEMPORARY_PREFIX;
pub(crate) use temporary::unique_suffix;

use std::fs;
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::disk::{DiskFile, RealDisk};
use crate::{Error, Result, retry, small};

#[cfg(doc)]
use crate::{disk::Disk, space::ensure_space};

/// The writer passed to the closure of [`Publisher::file`].
pub type FileWriter = BufWriter<Box<dyn DiskFile>>;

/// Publishes on the real file system of this machine.
pub const REAL: Publisher<'static> = Publisher::new(&RealDisk);

/// Publishes `bytes` as `path`, replacing an existing file. A file that contains a registered secret
/// ([`crate::secrets`]) is readable only by its owner. Errors: 73 when it cannot be created (or there is too little
/// space), 74 when writing fails.
pub fn publish_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    REAL.bytes(path, bytes)
}

/// Publishes `bytes` as `path` unless it exists, and returns whether this process did: one of several processes
/// succeeds. Errors: those of [`publish_bytes`].
pub fn publish_new(path: &Path, bytes: &[u8]) -> Result<bool> {
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let own = path.with_file_name(format!("{TEMPORARY_PREFIX}{name}-{}", unique_suffix()));
    publish_bytes(&own, bytes)?;
    let linked = link_new(&own, path);
    let _ = fs::remove_file(&own); // otherwise only a stray file is left
    if !linked.map_err(|cause| Error::create(path, cause))? {
        return Ok(false);
    }
    REAL.names(crate::space::parent(path)).map(|()| true)
}

/// Creates a hard link `path` to the file `own` unless `path` exists; returns whether it was created. If
/// several processes try, each with its own file, one succeeds, even over NFS; rename(2) would replace another
/// process's file.
pub(crate) fn link_new(own: &Path, path: &Path) -> io::Result<bool> {
    match fs::hard_link(own, path) {
        Ok(()) => Ok(true),
        // Over NFS the reply to a successful link may be lost; the repeated request then fails.
        Err(_) if is_same_file(own, path) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(cause) => Err(cause),
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |path| fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
}

/// Creates a directory and its parents durably.
pub fn create_folder(path: &Path) -> Result<()> {
    REAL.create_folder(path)
}

/// Returns the BLAKE3 hash of a regular file, in hexadecimal.
pub fn hash_file(path: &Path) -> Result<String> {
    hash_file_while(path, &|_| true)
}

/// Like [`hash_file`], but calls `proceed` for every MiB with the number of bytes read so far. Once it returns false,
/// the result is the hash of these bytes. Tells the kernel not to keep the pages, because other processes may need the
/// memory.
pub fn hash_file_while(path: &Path, proceed: &dyn Fn(u64) -> bool) -> Result<String> {
    let mut file = small::open(path)?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::NoReuse); // only a hint
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 1 << 20];
    while proceed(hasher.count()) {
        match retry::reading(path, || file.read(&mut block)) {
            Ok(0) => break,
            Ok(count) => _ = hasher.update(&block[..count]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(Error::io(path, cause)),
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_gets_a_name_also_if_the_reply_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, name] = ["a", "b", "name"].map(|name| folder.path().join(name));
        fs::write(&a, "a").unwrap();
        fs::write(&b, "b").unwrap();
        // The server has made the link, and the client repeats the request.
        fs::hard_link(&a, &name).unwrap();
        assert!(link_new(&a, &name).unwrap());
        assert!(!link_new(&b, &name).unwrap());
        assert_eq!(fs::read(&name).unwrap(), b"a");
        assert!(link_new(&a, &folder.path().join("no/folder")).is_err());
    }
}
