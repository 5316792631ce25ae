//! Asynchronous copies of device values to the host.

use super::backend::{self, AsyncCopy};
use super::state;
use crate::device::Device;
use crate::tensor::Tensor;
use unix::Result;

/// An asynchronous copy to the host whose result is read later.
#[derive(Debug)]
pub struct PendingRead {
    /// `None` if there is nothing to wait for: the source is on the host, or an error occurred.
    async_copy: Option<AsyncCopy>,
    /// Keeps the source memory alive until the copy has finished.
    source: Tensor,
}

/// Starts copying the current values of a tensor to the host, up to 4096 bytes.
pub fn read_async(tensor: &Tensor) -> PendingRead {
    let (device, mut async_copy) = (tensor.device(), None);
    if device != Device::Cpu {
        state::run(device, || {
            let (from, bytes) = (tensor.address(), tensor.bytes());
            async_copy = Some(backend::copy_out_async(device, from, bytes)?);
            Ok(())
        });
    }
    PendingRead { async_copy, source: tensor.clone() }
}

impl PendingRead {
    /// Waits for the copy, but not for anything submitted to the device after it. Errors: the first failure on the
    /// device since its errors were last read.
    pub fn wait(self) -> Result<Tensor> {
        let device = self.source.device();
        if device == Device::Cpu {
            return Ok(self.source);
        }
        let mut here = Tensor::empty(self.source.shape(), self.source.dtype());
        if let Some(async_copy) = self.async_copy {
            state::run(device, || async_copy.arrive(here.as_bytes_mut()));
        }
        state::take_error(device)?;
        Ok(here)
    }
}
