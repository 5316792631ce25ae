//! Where a tensor lives.

use std::fmt;
use std::str::FromStr;
use unix::Error;

/// A device is a value, not a type parameter, so that one binary serves every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// Host memory, computed on by the threads of this process.
    #[default]
    Cpu,
}

impl FromStr for Device {
    type Err = Error;

    /// `cpu`, or `auto`: the best device this build can drive, which is the CPU.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "auto" | "cpu" => Ok(Device::Cpu),
            other => Err(Error::usage(format!(
                "device \"{other}\" is unknown to this build: use auto or cpu"
            ))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
        }
    }
}
