//! A disk that records the operations on it.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use unix::disk::{Disk, DiskFile, RealDisk, Rename};

/// A recorded operation; paths are relative to the folder of the recorder.
#[derive(Clone, PartialEq)]
pub enum Op {
    /// A file was created.
    Create(PathBuf),
    /// Bytes were appended to a file.
    Write(PathBuf, Vec<u8>),
    /// A file was fsynced.
    SyncFile(PathBuf),
    /// An fsync failed; the data may be lost whatever comes after.
    FailedSync(PathBuf),
    /// A folder was created.
    MakeFolder(PathBuf),
    /// A symbolic link was created: target, then link.
    Symlink(PathBuf, PathBuf),
    /// A name was renamed to another.
    Rename(PathBuf, PathBuf, Rename),
    /// A file or link was removed.
    RemoveFile(PathBuf),
    /// An empty folder was removed.
    RemoveFolder(PathBuf),
    /// A folder was fsynced.
    SyncFolder(PathBuf),
    /// The program reported that everything up to here is durable.
    Promise,
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create(path) => write!(f, "create {}", path.display()),
            Op::Write(path, bytes) => write!(f, "write {} {}", path.display(), bytes.len()),
            Op::SyncFile(path) => write!(f, "fsync {}", path.display()),
            Op::FailedSync(path) => write!(f, "failed fsync {}", path.display()),
            Op::MakeFolder(path) => write!(f, "mkdir {}", path.display()),
            Op::Symlink(target, link) => {
                write!(f, "symlink {} {}", target.display(), link.display())
            }
            Op::Rename(from, to, how) => {
                write!(f, "rename {how:?} {} {}", from.display(), to.display())
            }
            Op::RemoveFile(path) => write!(f, "unlink {}", path.display()),
            Op::RemoveFolder(path) => write!(f, "rmdir {}", path.display()),
            Op::SyncFolder(path) => write!(f, "fsync folder {:?}", path.display().to_string()),
            Op::Promise => write!(f, "promise"),
        }
    }
}

/// Performs all operations in a real folder, and keeps the list.
#[derive(Clone, Debug)]
pub struct Recorder {
    root: PathBuf,
    ops: Arc<Mutex<Vec<Op>>>,
    /// Whether the disk supports RENAME_EXCHANGE and RENAME_NOREPLACE.
    pub flags: bool,
    /// Which fsync of a file fails, counted from 1; 0 for none.
    pub failing_sync: usize,
}

impl Recorder {
    /// A recorder of what is done in `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), ops: Arc::default(), flags: true, failing_sync: 0 }
    }

    /// Records that the program has reported durability.
    pub fn promise(&self) {
        self.ops.lock().unwrap().push(Op::Promise);
    }

    /// The operations so far, in order.
    pub fn ops(&self) -> Vec<Op> {
        self.ops.lock().unwrap().clone()
    }

    fn inner(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).expect("a path on this disk").to_path_buf()
    }

    /// Syncs a file with `sync`, unless this is the fsync that must fail.
    fn sync(&self, path: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let is_sync = |op: &&Op| matches!(op, Op::SyncFile(_) | Op::FailedSync(_));
        let before = self.ops.lock().unwrap().iter().filter(is_sync).count();
        if before + 1 == self.failing_sync {
            self.done(Op::FailedSync(path.to_path_buf()));
            return Err(rustix::io::Errno::IO.into());
        }
        sync()?;
        self.done(Op::SyncFile(path.to_path_buf()));
        Ok(())
    }

    fn done(&self, op: Op) {
        self.ops.lock().unwrap().push(op);
    }
}

struct RecordedFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    disk: Recorder,
}

impl Write for RecordedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.disk.done(Op::Write(self.path.clone(), bytes[..count].to_vec()));
        Ok(count)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for RecordedFile {
    fn sync(&mut self) -> io::Result<()> {
        self.disk.sync(&self.path, || self.file.sync())
    }
}

impl Disk for Recorder {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = RealDisk.create(path)?;
        let path = self.inner(path);
        self.done(Op::Create(path.clone()));
        Ok(Box::new(RecordedFile { file, path, disk: self.clone() }))
    }
    fn create_sized(&self, path: &Path, _bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        self.create(path)
    }
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.make_folder(path)?;
        self.done(Op::MakeFolder(self.inner(path)));
        Ok(())
    }
    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        RealDisk.symlink(target, link)?;
        self.done(Op::Symlink(target.to_path_buf(), self.inner(link)));
        Ok(())
    }
    fn rename(&self, from: &Path, to: &Path, how: Rename) -> io::Result<()> {
        if !self.flags && how != Rename::Replace {
            return Err(rustix::io::Errno::INVAL.into());
        }
        RealDisk.rename(from, to, how)?;
        self.done(Op::Rename(self.inner(from), self.inner(to), how));
        Ok(())
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_file(path)?;
        self.done(Op::RemoveFile(self.inner(path)));
        Ok(())
    }
    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove_folder(path)?;
        self.done(Op::RemoveFolder(self.inner(path)));
        Ok(())
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.sync(&self.inner(path), || RealDisk.sync_file(path))
    }
    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)?;
        self.done(Op::SyncFolder(self.inner(path)));
        Ok(())
    }
}
