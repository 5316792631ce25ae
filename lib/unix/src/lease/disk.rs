//! A disk that only the owner of a run changes.

use std::io;

use super::Fence;
use crate::disk::Disk;

/// The disk of this machine; before each change of a name it checks that the lease is still held. A process
/// that was suspended in the middle of a save changes nothing in a run that another one has taken over.
#[derive(Clone, Debug)]
pub struct FencedDisk(Fence);

impl FencedDisk {
    /// A disk for the owner of `fence`.
    pub fn new(fence: Fence) -> Self {
        Self(fence)
    }
}

impl Disk for FencedDisk {
    fn permit(&self) -> io::Result<()> {
        self.0.look().map_err(io::Error::other)
    }
}
