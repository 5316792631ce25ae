//! The operations that modify the file system, as a trait.
//!
//! Everything that must survive a crash is written through this trait ([`crate::publish`]), so that a test can record
//! the order of operations and reconstruct every state that a power failure may leave. Reads bypass it.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::stream::Stream;

/// The behaviour of a rename if the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// Replaces the existing file or link.
    Replace,
    /// Fails with `EEXIST`.
    New,
    /// Swaps the two names. `EINVAL` or `ENOSYS` if the file system does not support it.
    Exchange,
}

/// A file being written. It is closed when dropped.
pub trait DiskFile: Write + Send {
    /// Makes the written data durable. After an error the file must be discarded: the kernel may have marked its pages
    /// clean, so that a second sync succeeds without writing them.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operations that modify the file system. A name is durable only after [`Disk::sync_folder`] of its parent
/// directory, and content only after a sync of the file.
pub trait Disk: Debug + Send + Sync {
    /// Whether this process may modify the file system now; called before each operation that creates, changes or
    /// removes a name.
    fn permit(&self) -> io::Result<()> {
        Ok(())
    }

    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.permit()?;
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?))
    }

    /// Creates a file that must not exist yet and will hold `bytes` bytes.
    fn create_sized(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        if bytes < DIRECT_IO_BYTES {
            return self.create(path);
        }
        self.permit()?;
        Ok(Box::new(Stream::create(path, bytes)?))
    }

    /// Creates a directory that must not exist yet; its parent must exist.
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.permit()?;
        fs::create_dir(path)
    }

    /// Creates `link`, which must not exist yet, as a symbolic link to `target`.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.permit()?;
        std::os::unix::fs::symlink(target, link)
    }

    /// Renames atomically within one file system.
    fn rename(&self, from: &Path, to: &Path, how: Rename) -> io::Result<()> {
        self.permit()?;
        let flags = match how {
            Rename::Replace => return fs::rename(from, to),
            Rename::New => RenameFlags::NOREPLACE,
            Rename::Exchange => RenameFlags::EXCHANGE,
        };
        Ok(renameat_with(CWD, from, CWD, to, flags)?)
    }

    /// Removes a file or a link.
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.permit()?;
        fs::remove_file(path)
    }

    /// Removes an empty directory.
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.permit()?;
        fs::remove_dir(path)
    }

    /// Makes the content of a file durable after another process has written and closed it.
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        // O_NONBLOCK prevents blocking if the name now belongs to a pipe.
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?.sync_all()
    }

    /// Makes the names in a directory durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    /// Removes a file, or a directory with its contents.
    fn remove_all(&self, path: &Path) -> io::Result<()> {
        if !fs::symlink_metadata(path)?.is_dir() {
            return self.remove_file(path);
        }
        for entry in fs::read_dir(path)? {
            self.remove_all(&entry?.path())?;
        }
        self.remove_folder(path)
    }

    /// Makes a file, or a directory with its contents, durable; each directory is synced after its contents.
    fn sync_all(&self, path: &Path) -> io::Result<()> {
        if !fs::symlink_metadata(path)?.is_dir() {
            return self.sync_file(path);
        }
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() || kind.is_file() {
                self.sync_all(&entry.path())?;
            }
        }
        self.sync_folder(path)
    }
}

/// Whether `path` still refers to the open `file`. Also returns true if the file system does not answer.
pub(crate) fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        (_, Err(cause)) => cause.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

/// Size in bytes from which files are written with direct I/O, bypassing the page cache.
const DIRECT_IO_BYTES: u64 = 16 << 20;

/// The real file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {}
