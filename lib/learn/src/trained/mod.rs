//! Trained models as programs use them: opened from a checkpoint, complete with their buffers,
//! applied to plain numbers.

mod codec;
mod operator;
mod parts;
mod steady;

pub use codec::TrainedCodec;
pub use operator::TrainedOperator;
pub use parts::{Origin, Parts};
pub use steady::TrainedSteady;

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Which weights of a checkpoint are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// Their moving average, where the checkpoint has one.
    #[default]
    Average,
    /// As the optimizer left them.
    Raw,
}

impl FromStr for Weights {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ema" => Ok(Self::Average),
            "raw" => Ok(Self::Raw),
            _ => Err(format!("no weights `{text}`; there are ema and raw")),
        }
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Average => "ema",
            Self::Raw => "raw",
        })
    }
}

impl Serialize for Weights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
