//! Dtypes of arrays in files, including dtypes that tensors do not support but other programs write.

use crate::dtype::{Dtype, bf16, f16};
use std::fmt;

/// Dtype and byte order of a number in a file; little-endian unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs)] // the names are self-explanatory
pub enum FileDtype {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    F64Big,
    F32Big,
    F16Big,
    I64Big,
    I32Big,
    I16Big,
    U64Big,
    U32Big,
    U16Big,
}

/// The safetensors name of each dtype. Big-endian NumPy dtypes have none.
const NAMES: [(FileDtype, &str); 13] = [
    (FileDtype::F64, "F64"),
    (FileDtype::F32, "F32"),
    (FileDtype::F16, "F16"),
    (FileDtype::Bf16, "BF16"),
    (FileDtype::I64, "I64"),
    (FileDtype::I32, "I32"),
    (FileDtype::I16, "I16"),
    (FileDtype::I8, "I8"),
    (FileDtype::U64, "U64"),
    (FileDtype::U32, "U32"),
    (FileDtype::U16, "U16"),
    (FileDtype::U8, "U8"),
    (FileDtype::Bool, "BOOL"),
];

impl FileDtype {
    /// The dtype with this safetensors name, e.g. `BF16`.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, other)| *other == name).map(|(dtype, _)| *dtype)
    }

    /// Whether the dtype is floating-point.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::F64Big | Self::F32Big)
    }

    /// Bytes per number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 | Self::F64Big | Self::I64Big | Self::U64Big => 8,
            Self::F32 | Self::I32 | Self::U32 | Self::F32Big | Self::I32Big | Self::U32Big => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F16Big | Self::I16Big | Self::U16Big => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The tensor dtype that stores these numbers without conversion, if any.
    pub fn dtype(self) -> Option<Dtype> {
        Some(match self {
            Self::F64 => Dtype::F64,
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
            Self::I32 => Dtype::I32,
            Self::U8 => Dtype::U8,
            _ => return None,
        })
    }

    /// Decodes the number at the start of `bytes`, which must hold at least [`bytes`](Self::bytes) bytes. Exact in f64
    /// except for large I64 and U64.
    pub fn read(self, bytes: &[u8]) -> f64 {
        fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
            std::array::from_fn(|i| bytes[i])
        }
        match self {
            Self::F64 => f64::from_le_bytes(first(bytes)),
            Self::F32 => f32::from_le_bytes(first(bytes)).into(),
            Self::F16 => f16::from_le_bytes(first(bytes)).into(),
            Self::Bf16 => bf16::from_le_bytes(first(bytes)).into(),
            Self::I64 => i64::from_le_bytes(first(bytes)) as f64,
            Self::I32 => i32::from_le_bytes(first(bytes)).into(),
            Self::I16 => i16::from_le_bytes(first(bytes)).into(),
            Self::I8 => i8::from_le_bytes(first(bytes)).into(),
            Self::U64 => u64::from_le_bytes(first(bytes)) as f64,
            Self::U32 => u32::from_le_bytes(first(bytes)).into(),
            Self::U16 => u16::from_le_bytes(first(bytes)).into(),
            Self::U8 => bytes[0].into(),
            Self::Bool => (bytes[0] != 0).into(),
            Self::F64Big => f64::from_be_bytes(first(bytes)),
            Self::F32Big => f32::from_be_bytes(first(bytes)).into(),
            Self::F16Big => f16::from_be_bytes(first(bytes)).into(),
            Self::I64Big => i64::from_be_bytes(first(bytes)) as f64,
            Self::I32Big => i32::from_be_bytes(first(bytes)).into(),
            Self::I16Big => i16::from_be_bytes(first(bytes)).into(),
            Self::U64Big => u64::from_be_bytes(first(bytes)) as f64,
            Self::U32Big => u32::from_be_bytes(first(bytes)).into(),
            Self::U16Big => u16::from_be_bytes(first(bytes)).into(),
        }
    }
}

impl From<Dtype> for FileDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F64 => Self::F64,
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::I32 => Self::I32,
            Dtype::U8 => Self::U8,
        }
    }
}

/// Writes the safetensors name or, for a big-endian dtype, e.g. `I16 (big-endian)`.
impl fmt::Display for FileDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(dtype, _)| dtype == self) {
            Some((_, name)) => f.write_str(name),
            None => {
                let name = format!("{self:?}");
                write!(f, "{} (big-endian)", name.trim_end_matches("Big"))
            }
        }
    }
}
