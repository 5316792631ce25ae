//! Where the elements of a tensor are.

use crate::device::Device;
use crate::kernel::memory::Piece;
use crate::memory::Block;
use std::sync::Arc;

/// Memory of one or several tensors.
pub(crate) enum Storage {
    Host(Block),
    /// On the host, of somebody else.
    Lent(Lent),
    Device(Piece),
}

impl Storage {
    pub(crate) fn take(device: Device, bytes: usize) -> Storage {
        match device {
            Device::Cpu => Storage::Host(Block::take(bytes)),
            _ => Storage::Device(Piece::take(device, bytes)),
        }
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Storage::Host(_) | Storage::Lent(_) => Device::Cpu,
            Storage::Device(piece) => piece.device(),
        }
    }

    /// Start of memory on the host.
    pub(crate) fn host(&self) -> *mut u8 {
        match self {
            Storage::Host(block) => block.start(),
            Storage::Lent(lent) => lent.start,
            Storage::Device(piece) => {
                unreachable!("a tensor on {} is read on the host", piece.device())
            }
        }
    }
}

/// What a tensor may do with memory that was lent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it; who writes to such a tensor gets memory of the tensor's own.
    Read,
    /// Read and write it.
    Write,
}

/// Lent memory, and what must live as long as it is used.
pub(crate) struct Lent {
    start: *mut u8,
    access: Access,
    _keeper: Arc<dyn Send + Sync>,
}

// SAFETY: plain memory; who lends it answers for who else touches it (`Tensor::over`).
unsafe impl Send for Lent {}
// SAFETY: shared access only reads; writing needs `&mut` of the owner.
unsafe impl Sync for Lent {}

impl Lent {
    pub(crate) fn new(start: *mut u8, access: Access, keeper: Arc<dyn Send + Sync>) -> Self {
        Self { start, access, _keeper: keeper }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.access == Access::Write
    }
}
