//! Storage of tensor elements.

use crate::device::Device;
use crate::kernel::memory::DeviceBuffer;
use crate::memory::Block;
use std::sync::Arc;

/// Memory of one or more tensors.
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

    /// Allocates zeroed host memory.
    pub(crate) fn zeroed(bytes: usize) -> Storage {
        Storage::Host(Block::zeroed(bytes))
    }

    /// Zeros on the host that take no memory before they are written, if they are many.
    pub(crate) fn untouched(bytes: usize) -> Self {
        Storage::Host(Block::untouched(bytes))
    }

    pub(crate) fn device(&self) -> Device {
        match self {
            Storage::Host(_) | Storage::Borrowed(_) => Device::Cpu,
            Storage::Device(piece) => piece.device(),
        }
    }

    /// Pointer to the start of the host memory.
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

/// Access rights of a tensor to borrowed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only: a write first copies the data to memory owned by the tensor.
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
