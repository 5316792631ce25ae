//! The few operations that change a disk, as a trait.
//!
//! Everything that must survive a crash is written through it ([`crate::publish`]), so that a test can
//! record what was done in which order and build every state that a power cut may leave. Reading is
//! not part of it: a read loses nothing.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::stream::Stream;

/// What a rename does when the new name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// It replaces the file or link.
    Replace,
    /// It fails with `EEXIST`.
    New,
    /// The two change places. `EINVAL` or `ENOSYS` where the file system cannot.
    Exchange,
}

/// A file being written. It is closed when dropped.
pub trait DiskFile: Write + Send {
    /// Makes what was written durable. A file for which this failed is lost: the system may have
    /// marked its pages clean, so that another try proves nothing.
    fn sync(&mut self) -> io::Result<()>;
}

/// The operations that change a disk. A name is durable only after [`Disk::sync_folder`] of the folder
/// that holds it, content only after a sync of its file.
pub trait Disk: Debug + Send + Sync {
    /// Whether this process may change the disk now; asked before each operation that makes, changes or removes a
    /// name.
    fn permit(&self) -> io::Result<()> {
        Ok(())
    }

    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.permit()?;
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?))
    }

    /// Creates a file that must not exist yet, for so many bytes.
    fn create_sized(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        if bytes < LARGE {
            return self.create(path);
        }
        self.permit()?;
        Ok(Box::new(Stream::create(path, bytes)?))
    }

    /// Makes a folder that must not exist yet, in one that does.
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.permit()?;
        fs::create_dir(path)
    }

    /// Makes `link` a symbolic link to `target`; it must not exist yet.
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.permit()?;
        std::os::unix::fs::symlink(target, link)
    }

    /// Renames within a file system, in one step.
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

    /// Removes an empty folder.
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.permit()?;
        fs::remove_dir(path)
    }

    /// Makes the content of a file durable that somebody else wrote and closed.
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        // A pipe that took its name is not waited for.
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?.sync_all()
    }

    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    /// Removes a file or a folder with all that is in it.
    fn remove_all(&self, path: &Path) -> io::Result<()> {
        if !fs::symlink_metadata(path)?.is_dir() {
            return self.remove_file(path);
        }
        for entry in fs::read_dir(path)? {
            self.remove_all(&entry?.path())?;
        }
        self.remove_folder(path)
    }

    /// Makes a file, or a folder with all that is in it, durable; the folders after their content.
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

/// Whether `path` still names the open `file`. A disk that does not answer is no reason to think otherwise.
pub(crate) fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        (_, Err(cause)) => cause.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

/// From here on a file is written past the page cache.
const LARGE: u64 = 16 << 20;

/// The disk of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {}
