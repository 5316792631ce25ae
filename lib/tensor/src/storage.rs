//! Where the elements of a tensor are.

use crate::device::Device;
use crate::kernel::memory::DeviceBuffer;
use crate::memory::Block;
use std::sync::Arc;

/// Memory of one or several tensors.
pub(crate) enum Storage {
    Host(Block),
    /// On the host, of somebody else.
    Borrowed(Borrowed),
    Device(DeviceBuffer),
}

impl Storage {
    pub(crate) fn take(device: Device, bytes: usize) -> Storage {
        match device {
            Device::Cpu => Storage::Host(Block::take(bytes)),
            _ => Storage::Device(DeviceBuffer::take(device, bytes)),
        }
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Storage::Host(_) | Storage::Borrowed(_) => Device::Cpu,
            Storage::Device(piece) => piece.device(),
        }
    }

    /// Start of memory on the host.
    pub(crate) fn host(&self) -> *mut u8 {
        match self {
            Storage::Host(block) => block.start(),
            Storage::Borrowed(borrowed) => borrowed.start,
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

/// Borrowed memory, and what must live as long as it is used.
pub(crate) struct Borrowed {
    start: *mut u8,
    access: Access,
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: plain memory; who lends it answers for who else touches it (`Tensor::from_raw_parts`).
unsafe impl Send for Borrowed {}
// SAFETY: shared access only reads; writing needs `&mut` of the owner.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    pub(crate) fn new(start: *mut u8, access: Access, owner: Arc<dyn Send + Sync>) -> Self {
        Self { start, access, _owner: owner }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.access == Access::Write
    }
}
