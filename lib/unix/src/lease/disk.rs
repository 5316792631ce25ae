//! A disk that only the owner of a run changes.

use std::io;
use std::path::Path;

use super::Fence;
use crate::disk::{Disk, DiskFile, RealDisk, Rename};

/// The disk of this machine; before each change of a name it asks whether the lease is still ours. A process
/// that was suspended in the middle of a save changes nothing in a run that was replaced meanwhile.
#[derive(Clone, Debug)]
pub struct FencedDisk(Fence);

impl FencedDisk {
    /// A disk for the owner of `fence`.
    pub fn new(fence: Fence) -> Self {
        Self(fence)
    }

    fn ours(&self) -> io::Result<RealDisk> {
        self.0.look().map(|()| RealDisk).map_err(io::Error::other)
    }
}

impl Disk for FencedDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.ours()?.create(path)
    }

    fn create_sized(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        self.ours()?.create_sized(path, bytes)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.ours()?.make_folder(path)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.ours()?.symlink(target, link)
    }

    fn rename(&self, from: &Path, to: &Path, how: Rename) -> io::Result<()> {
        self.ours()?.rename(from, to, how)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.ours()?.remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.ours()?.remove_folder(path)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_folder(path)
    }
}
