//! The numbers of an array as they lie in a file.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Type and byte order of a number in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Element {
    F16,
    Bf16,
    F32,
    F64,
    F32Big,
    F64Big,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Element {
    /// What NumPy calls it: `<f4`, `|u1`, …
    pub fn from_numpy(name: &str) -> Option<Self> {
        Some(match name {
            "<f2" => Self::F16,
            "<f4" => Self::F32,
            "<f8" => Self::F64,
            ">f4" => Self::F32Big,
            ">f8" => Self::F64Big,
            "|i1" => Self::I8,
            "<i2" => Self::I16,
            "<i4" => Self::I32,
            "<i8" => Self::I64,
            "|u1" | "|b1" => Self::U8,
            "<u2" => Self::U16,
            "<u4" => Self::U32,
            "<u8" => Self::U64,
            _ => return None,
        })
    }

    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::F32Big | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::F64Big | Self::I64 | Self::U64 => 8,
        }
    }

    /// The number in the first bytes of `bytes`, which has at least [`size`](Self::size).
    pub fn read(self, bytes: &[u8]) -> f64 {
        fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
            std::array::from_fn(|i| bytes[i])
        }
        match self {
            Self::F16 => f16::from_le_bytes(first(bytes)).into(),
            Self::Bf16 => bf16::from_le_bytes(first(bytes)).into(),
            Self::F32 => f32::from_le_bytes(first(bytes)).into(),
            Self::F64 => f64::from_le_bytes(first(bytes)),
            Self::F32Big => f32::from_be_bytes(first(bytes)).into(),
            Self::F64Big => f64::from_be_bytes(first(bytes)),
            Self::I8 => i8::from_le_bytes(first(bytes)).into(),
            Self::I16 => i16::from_le_bytes(first(bytes)).into(),
            Self::I32 => i32::from_le_bytes(first(bytes)).into(),
            Self::I64 => i64::from_le_bytes(first(bytes)) as f64,
            Self::U8 => u8::from_le_bytes(first(bytes)).into(),
            Self::U16 => u16::from_le_bytes(first(bytes)).into(),
            Self::U32 => u32::from_le_bytes(first(bytes)).into(),
            Self::U64 => u64::from_le_bytes(first(bytes)) as f64,
        }
    }

    /// Fills `out` with neighbours, the first of them at the start of `bytes`. Tells a number that f32 cannot
    /// hold.
    pub fn fill(self, bytes: &[u8], out: &mut [f32]) -> Option<f64> {
        if let (Self::F16, Ok(bits)) = (self, bytemuck::try_cast_slice::<u8, u16>(bytes)) {
            bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
            return None;
        }
        let mut beyond = None;
        for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(self.size())) {
            let value = self.read(bytes);
            *out = narrow(value, &mut beyond);
        }
        beyond
    }
}

/// The nearest f32; keeps in `beyond` a number that becomes infinite.
pub(super) fn narrow(value: f64, beyond: &mut Option<f64>) -> f32 {
    let narrow = value as f32;
    if narrow.is_infinite() && value.is_finite() {
        beyond.get_or_insert(value);
    }
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_in_every_type_and_what_f32_cannot_hold_is_told() {
        let values = [0.0f32, 1.5, -2.0, 96.0, 0.25];
        type Write = fn(f32) -> Vec<u8>;
        let cases: [(Element, Write); 6] = [
            (Element::F16, |v| f16::from_f32(v).to_le_bytes().into()),
            (Element::Bf16, |v| bf16::from_f32(v).to_le_bytes().into()),
            (Element::F32, |v| v.to_le_bytes().into()),
            (Element::F32Big, |v| v.to_be_bytes().into()),
            (Element::F64, |v| f64::from(v).to_le_bytes().into()),
            (Element::F64Big, |v| f64::from(v).to_be_bytes().into()),
        ];
        for (element, write) in cases {
            // From an odd address as well.
            for skip in [0, 1] {
                let bytes: Vec<u8> =
                    vec![0; skip].into_iter().chain(values.into_iter().flat_map(write)).collect();
                let mut out = [9.0; 5];
                assert_eq!(element.fill(&bytes[skip..], &mut out), None, "{element:?}");
                assert_eq!(out, values, "{element:?}");
            }
        }
        let large = [f64::INFINITY, 1e38, -1e39, 1e300].map(f64::to_le_bytes).concat();
        let mut out = [0.0; 4];
        assert_eq!(Element::F64.fill(&large, &mut out), Some(-1e39));
        assert_eq!(out[..2], [f32::INFINITY, 1e38]);
    }
}
