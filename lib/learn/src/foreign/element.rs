//! Types of numbers in files of weights.

use half::{bf16, f16};
use std::fmt;

/// A type of number, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // they say themselves
pub enum Element {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The number at the start of `bytes`, which must hold one; every type but large I64 is exact in f64.
    pub(super) fn value(self, bytes: &[u8]) -> f64 {
        fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.first_chunk().copied().unwrap_or([0; N])
        }
        match self {
            Self::F64 => f64::from_le_bytes(first(bytes)),
            Self::F32 => f64::from(f32::from_le_bytes(first(bytes))),
            Self::F16 => f64::from(f16::from_le_bytes(first(bytes))),
            Self::BF16 => f64::from(bf16::from_le_bytes(first(bytes))),
            Self::I64 => i64::from_le_bytes(first(bytes)) as f64,
            Self::I32 => f64::from(i32::from_le_bytes(first(bytes))),
            Self::I16 => f64::from(i16::from_le_bytes(first(bytes))),
            Self::I8 => f64::from(i8::from_le_bytes(first(bytes))),
            Self::U8 => f64::from(first::<1>(bytes)[0]),
            Self::Bool => f64::from(u8::from(first::<1>(bytes)[0] != 0)),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
