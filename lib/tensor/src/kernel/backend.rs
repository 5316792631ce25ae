//! The operations of a device that runs kernels: one interface to GPUs and the emulator.

use super::graph::{self, StreamOp};
use super::{Grid, Source, Value};
use crate::device::Device;
use crate::dtype::Dtype;
use unix::{Error, Result};

/// Allocates device memory, aligned to 256 bytes; returns its address. Errors: out of memory.
pub(crate) fn allocate(device: Device, bytes: usize) -> Result<u64> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => super::cuda::Gpu::open(n)?.allocate(bytes),
        Device::Emu => super::emu::allocate(bytes),
    }
}

/// Frees device memory.
pub(crate) fn free(device: Device, address: u64) {
    match device {
        Device::Cpu => {}
        Device::Cuda(n) => {
            if let Ok(gpu) = super::cuda::Gpu::open(n) {
                gpu.free(address);
            }
        }
        Device::Emu => super::emu::free(address),
    }
}

/// Copies from the host, in stream order.
pub(crate) fn copy_in(device: Device, to: u64, from: &[u8]) -> Result<()> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => graph::outside(|| super::cuda::Gpu::open(n)?.copy_in(to, from)),
        Device::Emu => graph::outside(|| super::emu::copy_in(to, from)),
    }
}

/// Copies to the host, after all earlier launches.
pub(crate) fn copy_out(device: Device, to: &mut [u8], from: u64) -> Result<()> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => graph::outside(|| super::cuda::Gpu::open(n)?.copy_out(to, from)),
        Device::Emu => graph::outside(|| super::emu::copy_out(to, from)),
    }
}

/// Starts an asynchronous copy to the host of up to 4096 bytes, after all earlier launches.
pub(crate) fn copy_out_async(device: Device, from: u64, bytes: usize) -> Result<AsyncCopy> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => {
            let gpu = super::cuda::Gpu::open(n)?;
            graph::outside(|| gpu.copy_out_async(from, bytes)).map(AsyncCopy::Cuda)
        }
        Device::Emu => {
            let mut here = vec![0; bytes];
            copy_out(device, &mut here, from)?;
            Ok(AsyncCopy::Emu(here))
        }
    }
}

/// An asynchronous copy to the host.
#[derive(Debug)]
pub(crate) enum AsyncCopy {
    Cuda(super::cuda::AsyncCopy),
    Emu(Vec<u8>),
}

impl AsyncCopy {
    /// Waits for the copy, but not for anything launched after it.
    pub(crate) fn arrive(self, to: &mut [u8]) -> Result<()> {
        match self {
            AsyncCopy::Cuda(bytes) => bytes.arrive(to),
            AsyncCopy::Emu(bytes) => {
                to.copy_from_slice(&bytes);
                Ok(())
            }
        }
    }
}

/// Copies within the device, in stream order.
pub(crate) fn copy(device: Device, to: u64, from: u64, bytes: usize) -> Result<()> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => super::cuda::Gpu::open(n)?.copy(to, from, bytes),
        Device::Emu if graph::keep(|| StreamOp::Copy { to, from, bytes }) => Ok(()),
        Device::Emu => super::emu::copy(to, from, bytes),
    }
}

/// Fills with zero bytes, in stream order.
pub(crate) fn zero(device: Device, address: u64, bytes: usize) -> Result<()> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => super::cuda::Gpu::open(n)?.zero(address, bytes),
        Device::Emu if graph::keep(|| StreamOp::Zero { address, bytes }) => Ok(()),
        Device::Emu => super::emu::zero(address, bytes),
    }
}

/// Launches a kernel.
pub(crate) fn launch(
    device: Device,
    source: &'static Source,
    element: Dtype,
    kernel: &'static str,
    grid: Grid,
    args: &[Value],
) -> Result<()> {
    match device {
        Device::Cpu => Err(host()),
        Device::Cuda(n) => super::cuda::Gpu::open(n)?.launch(source, element, kernel, grid, args),
        Device::Emu
            if graph::keep(|| StreamOp::Launch(source, element, kernel, grid, args.to_vec())) =>
        {
            Ok(())
        }
        Device::Emu => super::emu::launch(source, element, kernel, grid, args),
    }
}

/// Maximum shared memory per block in bytes.
pub(crate) fn most_shared(device: Device) -> usize {
    match device {
        // A missing GPU is reported on launch.
        Device::Cuda(n) => super::cuda::Gpu::open(n).map_or(usize::MAX, |gpu| gpu.most_shared()),
        Device::Emu => super::emu::most_shared(),
        Device::Cpu => usize::MAX,
    }
}

/// Whether the device supports Hopper instructions (sm_90a).
pub(crate) fn has_warpgroups(device: Device) -> bool {
    match device {
        Device::Cuda(n) => {
            super::cuda::Gpu::open(n).is_ok_and(|gpu| gpu.architecture() == "sm_90a")
        }
        Device::Emu => super::emu::has_warpgroups(),
        Device::Cpu => false,
    }
}

/// Number of multiprocessors. The emulator has 2, so that persistent blocks process more than one part each; while
/// launches are only traced for time models, it has as many as an H100.
pub(crate) fn multiprocessors(device: Device) -> usize {
    match device {
        // A missing GPU is reported on launch.
        Device::Cuda(n) => super::cuda::Gpu::open(n).map_or(1, |gpu| gpu.multiprocessors()),
        Device::Emu if super::trace::is_on() => super::product::MULTIPROCESSORS,
        Device::Emu => 2,
        Device::Cpu => 1,
    }
}

/// Waits until the device has finished all work.
pub(crate) fn synchronise(device: Device) -> Result<()> {
    match device {
        Device::Cpu | Device::Emu => Ok(()),
        Device::Cuda(n) => super::cuda::Gpu::open(n)?.synchronise(),
    }
}

fn host() -> Error {
    Error::bug("kernels cannot run on the host")
}
