//! A disk that only the owner of a run may modify.

use std::io;

use super::Fence;
use crate::disk::Disk;

/// The file system of this machine; checks before each change of a name that the lease is still held. A process that
/// was suspended in the middle of a save therefore modifies nothing in a run that another process has taken over.
#[derive(Clone, Debug)]
pub struct FencedDisk(Fence);

impl FencedDisk {
    /// A disk for the holder of `fence`.
    pub fn new(fence: Fence) -> Self {
        Self(fence)
    }
}

impl Disk for FencedDisk {
    fn permit(&self) -> io::Result<()> {
        self.0.look().map_err(io::Error::other)
    }
}
