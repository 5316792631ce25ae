//! Values of a device on their way to the host.

use super::backend::{self, AsyncCopy};
use super::state;
use crate::device::Device;
use crate::tensor::Tensor;
use unix::Result;

/// Values that left for the host, where they are wanted later.
#[derive(Debug)]
pub struct Late {
    /// None where there is nothing to wait for: on the host, or when something went wrong.
    async_copy: Option<AsyncCopy>,
    /// The memory they left from is nobody else's until they are here.
    source: Tensor,
}

/// Sends the values that a tensor has now to the host: up to 4096 bytes.
pub fn later(tensor: &Tensor) -> Late {
    let (device, mut async_copy) = (tensor.device(), None);
    if device != Device::Cpu {
        state::run(device, || {
            let (from, bytes) = (tensor.address(), tensor.bytes());
            async_copy = Some(backend::copy_out_later(device, from, bytes)?);
            Ok(())
        });
    }
    Late { async_copy, source: tensor.clone() }
}

impl Late {
    /// Waits until they are here, and for nothing that was given to the device since. Errors: the first
    /// thing that went wrong there since it was last asked.
    pub fn wait(self) -> Result<Tensor> {
        let device = self.source.device();
        if device == Device::Cpu {
            return Ok(self.source);
        }
        let mut here = Tensor::arbitrary(self.source.shape(), self.source.dtype());
        if let Some(async_copy) = self.async_copy {
            state::run(device, || async_copy.arrive(here.as_bytes_mut()));
        }
        state::error(device)?;
        Ok(here)
    }
}
