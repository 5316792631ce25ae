//! Devices that store tensors and run ops.

use crate::kernel;
use crate::memory::{self, Usage};
use std::fmt;
use std::str::FromStr;
use unix::{Error, Result};

/// The device that stores a tensor. It is a value rather than a type parameter, so that one binary runs on every
/// machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// Host memory; ops run on the threads of this process.
    #[default]
    Cpu,
    /// A GPU, by its index among the GPUs visible to the process.
    Cuda(u32),
    /// The GPU emulator: runs kernels compiled for the host and checks every memory access; slow, for tests.
    Emu,
}

impl Device {
    /// Current tensor memory counters of this device.
    pub fn usage(self) -> Usage {
        match self {
            Device::Cpu => memory::usage(),
            device => kernel::memory::usage(device),
        }
    }

    /// Resets the peak to the current usage.
    pub fn reset_peak(self) {
        match self {
            Device::Cpu => memory::reset_peak(),
            device => kernel::memory::reset_peak(device),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
            Device::Emu => f.write_str("emu"),
        }
    }
}

/// The device requested by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if there is one, otherwise the CPU.
    Auto,
    /// This device.
    Exactly(Device),
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Exactly(Device::Cpu)),
            "cuda" => Ok(DeviceChoice::Exactly(Device::Cuda(0))),
            "emu" => Ok(DeviceChoice::Exactly(Device::Emu)),
            other => match other.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(n)) => Ok(DeviceChoice::Exactly(Device::Cuda(n))),
                _ => Err(Error::usage(format!(
                    "device \"{other}\" is unknown: use auto, cpu, cuda, cuda:N or emu"
                ))),
            },
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Exactly(device) => device.fmt(f),
        }
    }
}

impl DeviceChoice {
    /// Returns the device for rank `local_rank` of this host: GPU indices count up from the requested one, modulo the
    /// number of GPUs.
    pub fn of_rank(self, local_rank: usize) -> Self {
        let first = match self {
            DeviceChoice::Auto => 0,
            DeviceChoice::Exactly(Device::Cuda(n)) => n,
            other => return other,
        };
        match (kernel::cuda::Gpu::count(), u32::try_from(local_rank)) {
            (Ok(count @ 1..), Ok(rank)) if rank > 0 => {
                DeviceChoice::Exactly(Device::Cuda(first.wrapping_add(rank) % count))
            }
            _ => self,
        }
    }

    /// Opens the device; returns it with the reason for the choice. Errors: the device is not available.
    pub fn open(self) -> Result<(Device, String)> {
        match self {
            DeviceChoice::Exactly(Device::Cpu) => Ok((Device::Cpu, "as asked".into())),
            DeviceChoice::Exactly(Device::Emu) => {
                crate::kernel::emu::require()?;
                Ok((Device::Emu, "as asked".into()))
            }
            DeviceChoice::Exactly(Device::Cuda(n)) => {
                let gpu = crate::kernel::cuda::Gpu::open(n)?;
                Ok((Device::Cuda(n), format!("as asked: {}", gpu.name())))
            }
            DeviceChoice::Auto => match crate::kernel::cuda::Gpu::open(0) {
                Ok(gpu) => Ok((Device::Cuda(0), gpu.name().to_string())),
                // The advice after `;` is for users who asked for a GPU explicitly.
                Err(why) => {
                    let why = why.to_string();
                    Ok((Device::Cpu, why.split(';').next().unwrap_or(&why).to_string()))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_written_as_it_is_read() {
        for device in ["auto", "cpu", "cuda:0", "cuda:13", "emu"] {
            assert_eq!(device.parse::<DeviceChoice>().unwrap().to_string(), device);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().unwrap(), DeviceChoice::Exactly(Device::Cuda(0)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
        }
    }
}
