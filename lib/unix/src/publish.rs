//! Files and folders that are whole or absent.
//!
//! Written under a temporary name beside the target, fsynced, renamed, and the parent folder
//! fsynced: whoever looks, at any moment and after any crash, sees the old content or the new.
//! Both fsyncs are needed, in this order: without the first the final name may hold 0 bytes after
//! a power cut, without the second the whole data may sit under the temporary name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::space::{self, ensure_space};
use crate::{Error, Exit, Result};

/// Prefix of temporary names; readers of folders skip names that start with it.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// What a writing closure of [`publish_file`] writes to.
pub type FileWriter = BufWriter<File>;

/// Publishes `bytes` as `path`, replacing what was there.
/// Errors: 73 when it cannot be created (or space is short), 74 when writing fails.
pub fn publish_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    ensure_space(path, bytes.len() as u64)?;
    publish_file(path, |writer| writer.write_all(bytes))
}

/// Publishes what `write` writes as `path`, replacing what was there, and returns its result.
/// When the size is known, call [`ensure_space`] first.
/// An error of ours travels through `write` as `io::Error::other(error)` and keeps its exit status.
pub fn publish_file<T>(
    path: &Path,
    write: impl FnOnce(&mut FileWriter) -> io::Result<T>,
) -> Result<T> {
    let temporary = Temporary::beside(path)?;
    let file = OpenOptions::new().write(true).create_new(true).open(&temporary.path);
    let mut writer = BufWriter::with_capacity(1 << 20, file.map_err(|e| Error::create(path, e))?);
    let written = write(&mut writer).and_then(|value| {
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(value)
    });
    let value = written.map_err(|cause| write_error(path, cause))?;
    rename_surely(&temporary.path, path).map_err(|cause| Error::create(path, cause))?;
    sync_parent(path)?;
    Ok(value)
}

/// Publishes a folder that `fill` fills; `path` must not exist yet.
pub fn publish_folder<T>(path: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    publish_new(path, |temporary| {
        fs::create_dir(temporary).map_err(|cause| Error::create(path, cause))?;
        fill(temporary)
    })
}

/// Publishes a file that `make` makes under the name it is given, for libraries that open files
/// themselves; `path` must not exist yet.
pub fn publish_new_file<T>(path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    publish_new(path, make)
}

fn publish_new<T>(path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    refuse_existing(path)?;
    let temporary = Temporary::beside(path)?;
    let value = make(&temporary.path)?;
    sync_tree(&temporary.path).map_err(|cause| write_error(path, cause))?;
    match renameat_with(CWD, &temporary.path, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Some network file systems know no such rename: look, then rename.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            refuse_existing(path)?;
            rename_surely(&temporary.path, path).map_err(|cause| Error::create(path, cause))?;
        }
        Err(rustix::io::Errno::EXIST) => refuse_existing(path)?,
        Err(cause) => return Err(Error::create(path, cause)),
    }
    sync_parent(path)?;
    Ok(value)
}

/// Makes `link` a symbolic link to `target`, replacing an older one in a single step.
pub fn publish_link(link: &Path, target: &Path) -> Result<()> {
    let temporary = Temporary::beside(link)?;
    let made = std::os::unix::fs::symlink(target, &temporary.path);
    made.and_then(|()| fs::rename(&temporary.path, link)).map_err(|e| Error::create(link, e))?;
    sync_parent(link)
}

/// Creates a folder with its parents, all of them durable.
pub fn create_folder(path: &Path) -> Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.exists() && *p != "").collect();
    fs::create_dir_all(path).map_err(|cause| Error::create(path, cause))?;
    missing.into_iter().rev().try_for_each(sync_parent)
}

/// BLAKE3 of a file's content, in hexadecimal.
pub fn hash_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut file).map_err(|cause| Error::io(path, cause))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// A name that nobody else uses; what is still there when this is dropped was not published and
/// is removed.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn beside(target: &Path) -> Result<Self> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let Some(name) = target.file_name() else {
            return Err(Error::create(target, "the path names no file"));
        };
        let mut temporary = std::ffi::OsString::from(TEMPORARY_PREFIX);
        temporary.push(name);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        temporary.push(format!("-{}-{}-{count}", crate::host::name(), std::process::id()));
        Ok(Self { path: target.with_file_name(temporary) })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_dir() => drop(fs::remove_dir_all(&self.path)),
            Ok(_) => drop(fs::remove_file(&self.path)),
            Err(_) => {} // published, or never made
        }
    }
}

fn refuse_existing(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(Error::create(path, "it exists already; move it away or choose another name")),
        Err(_) => Ok(()),
    }
}

/// Renames, and looks before believing an error: over NFS the answer to a rename that was done
/// can get lost.
fn rename_surely(from: &Path, to: &Path) -> io::Result<()> {
    let before = fs::symlink_metadata(from)?;
    fs::rename(from, to).or_else(|cause| match fs::symlink_metadata(to) {
        Ok(now) if (now.dev(), now.ino()) == (before.dev(), before.ino()) => Ok(()),
        _ => Err(cause),
    })
}

/// Makes the names in the parent folder of `path` durable.
fn sync_parent(path: &Path) -> Result<()> {
    let parent = space::parent(path);
    let synced = File::open(parent).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| Error::io(parent, cause))
}

/// Makes a file, or a folder with all that is in it, durable.
fn sync_tree(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() || kind.is_file() {
                sync_tree(&entry.path())?;
            }
        }
    }
    File::open(path)?.sync_all()
}

/// The error of ours that travelled inside, or 74 with a word about full disks.
fn write_error(path: &Path, cause: io::Error) -> Error {
    match cause.downcast::<Error>() {
        Ok(ours) => ours,
        Err(cause) => match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::new(
                Exit::Io,
                format!(
                    "{}: {cause}; nothing was published, free space and run again",
                    path.display()
                ),
            ),
            _ => Error::io(path, cause),
        },
    }
}
