//! Files and folders that are whole or absent.
//!
//! Written under a temporary name beside the target, fsynced, renamed, and the parent folder
//! fsynced: whoever looks, at any moment and after any crash, sees the old content or the new.
//! Both fsyncs are needed, in this order: without the first the final name may hold 0 bytes after
//! a power cut, without the second the whole data may sit under the temporary name.
//!
//! The functions here publish on the disk of this machine, a [`Publisher`] on any [`Disk`]. When an
//! fsync fails, what was written is given up and its temporary name removed; nothing is synced twice
//! in the hope of a better answer.

mod publisher;
mod temporary;

pub use publisher::{Publisher, Written};
pub use temporary::TEMPORARY_PREFIX;

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::Path;

use crate::disk::{DiskFile, RealDisk};
use crate::{Error, Result, small};

#[cfg(doc)]
use crate::{disk::Disk, space::ensure_space};

/// What a writing closure of [`publish_file`] writes to.
pub type FileWriter = BufWriter<Box<dyn DiskFile>>;

const REAL: Publisher = Publisher::new(&RealDisk);

/// Publishes `bytes` as `path`, replacing what was there. Only its owner may read a file with a known
/// secret in it ([`crate::secrets`]).
/// Errors: 73 when it cannot be created (or space is short), 74 when writing fails.
pub fn publish_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    REAL.bytes(path, bytes)
}

/// The same for a file that only its owner may read.
pub fn publish_private(path: &Path, bytes: &[u8]) -> Result<()> {
    REAL.private_bytes(path, bytes)
}

/// Publishes what `write` writes as `path`, replacing what was there, and returns its result.
/// When the size is known, call [`ensure_space`] first.
/// An error of ours travels through `write` as `io::Error::other(error)` and keeps its exit status.
pub fn publish_file<T>(
    path: &Path,
    write: impl FnOnce(&mut FileWriter) -> io::Result<T>,
) -> Result<T> {
    REAL.file(path, write)
}

/// Publishes a folder that `fill` fills; `path` must not exist yet.
pub fn publish_folder<T>(path: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    REAL.folder(path, fill)
}

/// Publishes a file that `make` makes under the name it is given, for libraries that open files
/// themselves; `path` must not exist yet.
pub fn publish_new_file<T>(path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    REAL.new_file(path, make)
}

/// Makes `link` a symbolic link to `target`, replacing an older one in a single step.
pub fn publish_link(link: &Path, target: &Path) -> Result<()> {
    REAL.link(link, target)
}

/// Creates a folder with its parents, all of them durable.
pub fn create_folder(path: &Path) -> Result<()> {
    REAL.create_folder(path)
}

/// BLAKE3 of a regular file's content, in hexadecimal.
pub fn hash_file(path: &Path) -> Result<String> {
    hash_file_while(path, &|| true)
}

/// As [`hash_file`]; when `go_on`, which is asked after every MiB, returns false, the hash is that of what was
/// read so far. Tells the kernel not to keep the pages, which other processes may need more.
pub fn hash_file_while(path: &Path, go_on: &dyn Fn() -> bool) -> Result<String> {
    small::require_file(path)?;
    let mut file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::NoReuse); // only a hint
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 1 << 20];
    while go_on() {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(count) => _ = hasher.update(&block[..count]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(Error::io(path, cause)),
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}
