//! Publishes files and directories on a [`Disk`].

use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::FileWriter;
use super::temporary::Temporary;
use crate::disk::{Disk, DiskFile, Rename};
use crate::fail::point;
use crate::space::{self, ensure_space};
use crate::{Error, Result, secrets};

/// Publishes on a disk; its methods correspond to the functions of [`crate::publish`].
#[derive(Clone, Copy, Debug)]
pub struct Publisher<'d> {
    disk: &'d dyn Disk,
}

impl<'d> Publisher<'d> {
    /// Creates a publisher on `disk`.
    pub const fn new(disk: &'d dyn Disk) -> Self {
        Self { disk }
    }

    /// See [`super::publish_bytes`].
    pub fn bytes(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        ensure_space(path, bytes.len() as u64)?;
        self.replace(path, secrets::occur_in(bytes), |writer| writer.write_all(bytes))
    }

    /// Like [`Publisher::bytes`], but the file is always readable only by its owner.
    pub fn private_bytes(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        ensure_space(path, bytes.len() as u64)?;
        self.replace(path, true, |writer| writer.write_all(bytes))
    }

    /// Publishes the output of `write` as `path`, replacing an existing file, and returns the result of `write`. If the
    /// size is known, call [`ensure_space`] first. To return a [`crate::Error`] from `write`, wrap it as
    /// `io::Error::other(error)`; its exit status is kept.
    pub fn file<T>(
        &self,
        path: &Path,
        write: impl FnOnce(&mut FileWriter) -> io::Result<T>,
    ) -> Result<T> {
        self.replace(path, false, write)
    }

    fn replace<T>(
        &self,
        path: &Path,
        private: bool,
        write: impl FnOnce(&mut FileWriter) -> io::Result<T>,
    ) -> Result<T> {
        let temporary = Temporary::beside(self.disk, path)?;
        let file = self.disk.create(&temporary.path);
        let file = file.map_err(|cause| Error::create(path, cause))?;
        if private {
            make_private(&temporary.path).map_err(|cause| Error::create(path, cause))?;
        }
        let (written, value) = write_content(file, path, write)?;
        written.sync()?;
        self.rename(&temporary.path, path, Rename::Replace)?;
        Ok(value)
    }

    /// Writes a new file of about `bytes` bytes inside a directory that is not published yet. Its content is durable
    /// after [`Written::sync`], and its name once the directory is synced. Errors: 73, 74, naming `path`.
    pub fn inner_file(
        &self,
        path: &Path,
        bytes: u64,
        write: impl FnOnce(&mut FileWriter) -> io::Result<()>,
    ) -> Result<Written> {
        let file = self.disk.create_sized(path, bytes);
        let file = file.map_err(|cause| Error::create(path, cause))?;
        write_content(file, path, write).map(|(written, ())| written)
    }

    /// Writes a new file with the content `bytes`; it is readable only by its owner if it contains a registered secret.
    pub fn inner_bytes(&self, path: &Path, bytes: &[u8]) -> Result<Written> {
        let written = self.inner_file(path, bytes.len() as u64, |file| file.write_all(bytes))?;
        if secrets::occur_in(bytes) {
            make_private(path).map_err(|cause| Error::create(path, cause))?;
        }
        Ok(written)
    }

    /// Publishes a directory that `fill` populates; `path` must not exist yet.
    pub fn folder<T>(&self, path: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.new_file(path, |temporary| {
            let made = self.disk.make_folder(temporary);
            made.map_err(|cause| Error::create(path, cause))?;
            fill(temporary)
        })
    }

    /// Like [`Publisher::folder`], for a `fill` that creates only files, each with [`Publisher::inner_file`], and syncs
    /// them. Only the directory itself then remains to be synced.
    pub fn folder_of_files<T>(
        &self,
        path: &Path,
        fill: impl FnOnce(&Path) -> Result<T>,
    ) -> Result<T> {
        self.absent(path, |temporary| {
            let made = self.disk.make_folder(temporary);
            made.map_err(|cause| Error::create(path, cause))?;
            let value = fill(temporary)?;
            self.names(temporary)?;
            Ok(value)
        })
    }

    /// Makes the names in `folder` durable.
    pub fn names(&self, folder: &Path) -> Result<()> {
        self.disk.sync_folder(folder).map_err(|cause| write_error(folder, cause))
    }

    /// Publishes a file that `make` creates under the temporary name passed to it, for libraries that open files
    /// themselves; `path` must not exist yet.
    pub fn new_file<T>(&self, path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        self.absent(path, |temporary| {
            let value = make(temporary)?;
            self.disk.sync_all(temporary).map_err(|cause| write_error(path, cause))?;
            Ok(value)
        })
    }

    /// Publishes a file or directory that `make` creates and syncs; `path` must not exist yet.
    fn absent<T>(&self, path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        refuse_existing(path)?;
        let temporary = Temporary::beside(self.disk, path)?;
        let value = make(&temporary.path)?;
        self.rename(&temporary.path, path, Rename::New)?;
        Ok(value)
    }

    /// Makes `link` a symbolic link to `target`, atomically replacing an existing link.
    pub fn link(&self, link: &Path, target: &Path) -> Result<()> {
        let temporary = Temporary::beside(self.disk, link)?;
        let made = self.disk.symlink(target, &temporary.path);
        made.map_err(|cause| Error::create(link, cause))?;
        self.rename(&temporary.path, link, Rename::Replace)
    }

    /// See [`super::create_folder`].
    pub fn create_folder(&self, path: &Path) -> Result<()> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|p| !p.exists() && *p != "").collect();
        for folder in missing.into_iter().rev() {
            match self.disk.make_folder(folder) {
                // Another process was faster.
                Err(_) if folder.is_dir() => {}
                made => made.map_err(|cause| Error::create(path, cause))?,
            }
            self.names(space::parent(folder))?;
        }
        if path.is_dir() { Ok(()) } else { Err(Error::create(path, "it is not a directory")) }
    }

    /// Swaps `new` and `old` durably. Returns false if the file system does not support it. Errors: 73, 74.
    pub fn exchange(&self, new: &Path, old: &Path) -> Result<bool> {
        match self.rename_verified(new, old, Rename::Exchange) {
            Err(cause) if is_unknown(&cause) => return Ok(false),
            done => done.map_err(|cause| Error::create(old, cause))?,
        }
        self.names(space::parent(old))?;
        Ok(true)
    }

    /// Renames durably within a directory. Emulates `New` on file systems that lack it. Errors: 73, 74.
    pub fn rename(&self, from: &Path, to: &Path, how: Rename) -> Result<()> {
        match self.rename_verified(from, to, how) {
            // Some network file systems lack RENAME_NOREPLACE: check, then rename.
            Err(cause) if how == Rename::New && is_unknown(&cause) => {
                refuse_existing(to)?;
                return self.rename(from, to, Rename::Replace);
            }
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
                return Err(already_exists(to));
            }
            done => done.map_err(|cause| Error::create(to, cause))?,
        }
        point("publish.renamed").map_err(|cause| write_error(to, cause))?;
        self.names(space::parent(to))
    }

    /// Renames, and checks the target before reporting an error: over NFS the reply to a successful rename may be lost.
    fn rename_verified(&self, from: &Path, to: &Path, how: Rename) -> io::Result<()> {
        let before = fs::symlink_metadata(from)?;
        self.disk.rename(from, to, how).or_else(|cause| match fs::symlink_metadata(to) {
            Ok(now) if (now.dev(), now.ino()) == (before.dev(), before.ino()) => Ok(()),
            _ => Err(cause),
        })
    }
}

/// A file that is written but not yet durable.
#[must_use]
pub struct Written {
    file: Box<dyn DiskFile>,
    path: PathBuf,
}

impl Written {
    /// Makes the file durable. Errors: 74; the file must then be discarded.
    pub fn sync(mut self) -> Result<()> {
        let synced = self.file.sync().and_then(|()| point("publish.synced"));
        synced.map_err(|cause| write_error(&self.path, cause))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes the content of `file`, which has or will have the name `path`.
fn write_content<T>(
    file: Box<dyn DiskFile>,
    path: &Path,
    write: impl FnOnce(&mut FileWriter) -> io::Result<T>,
) -> Result<(Written, T)> {
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    let written = point("publish.created").and_then(|()| write(&mut writer)).and_then(|value| {
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        point("publish.written")?;
        Ok((Written { file, path: path.to_path_buf() }, value))
    });
    written.map_err(|cause| write_error(path, cause))
}

fn make_private(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

fn is_unknown(cause: &io::Error) -> bool {
    use rustix::io::Errno;
    let unknown = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP];
    unknown.iter().any(|errno| cause.raw_os_error() == Some(errno.raw_os_error()))
}

fn refuse_existing(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(already_exists(path)),
        Err(_) => Ok(()),
    }
}

fn already_exists(path: &Path) -> Error {
    Error::create(path, "it already exists; move it away or choose another name")
}

/// Returns the [`Error`] wrapped in `cause`, or an error 74, with advice if the disk is full.
fn write_error(path: &Path, cause: io::Error) -> Error {
    match cause.downcast::<Error>() {
        Ok(ours) => ours,
        Err(cause) => match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::io(path, format!("{cause}; nothing was published, free space and run again"))
            }
            _ => Error::io(path, cause),
        },
    }
}
