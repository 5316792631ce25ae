//! Where the elements of a tensor are stored.

use crate::device::Device;
use crate::kernel::memory::DeviceBuffer;
use crate::memory::Block;
use std::sync::Arc;

/// Memory shared by one or several tensors.
pub(crate) enum Storage {
    Host(Block),
    /// Host memory with an external owner.
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

    /// Zeros on the host.
    pub(crate) fn zeroed(bytes: usize) -> Storage {
        Storage::Host(Block::zeroed(bytes))
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Storage::Host(_) | Storage::Borrowed(_) => Device::Cpu,
            Storage::Device(piece) => piece.device(),
        }
    }

    /// Start of the memory on the host.
    pub(crate) fn host(&self) -> *mut u8 {
        match self {
            Storage::Host(block) => block.start(),
            Storage::Borrowed(borrowed) => borrowed.start,
            Storage::Device(piece) => {
                unreachable!("a tensor on {} cannot be accessed on the host", piece.device())
            }
        }
    }
}

/// What a tensor may do with borrowed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only: writing to such a tensor first copies it to memory of its own.
    Read,
    /// Read and write in place.
    Write,
}

/// Borrowed memory, with the owner that keeps it alive.
pub(crate) struct Borrowed {
    start: *mut u8,
    access: Access,
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: plain memory; the caller of `Tensor::from_raw_parts` guarantees exclusive access.
unsafe impl Send for Borrowed {}
// SAFETY: shared access only reads; writing requires `&mut` of the tensor.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    pub(crate) fn new(start: *mut u8, access: Access, owner: Arc<dyn Send + Sync>) -> Self {
        Self { start, access, _owner: owner }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.access == Access::Write
    }
}
