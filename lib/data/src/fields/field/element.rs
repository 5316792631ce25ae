//! Conversion of stored values to f32.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use tensor::FileDtype;
use tensor::dtype::f16;

/// Returns the dtype for a NumPy type name: `<f4`, `|u1`, …
pub(super) fn from_numpy(name: &str) -> Option<FileDtype> {
    Some(match name {
        "<f2" => FileDtype::F16,
        "<f4" => FileDtype::F32,
        "<f8" => FileDtype::F64,
        ">f2" => FileDtype::F16Big,
        ">f4" => FileDtype::F32Big,
        ">f8" => FileDtype::F64Big,
        ">i2" => FileDtype::I16Big,
        ">i4" => FileDtype::I32Big,
        ">i8" => FileDtype::I64Big,
        ">u2" => FileDtype::U16Big,
        ">u4" => FileDtype::U32Big,
        ">u8" => FileDtype::U64Big,
        "|i1" => FileDtype::I8,
        "<i2" => FileDtype::I16,
        "<i4" => FileDtype::I32,
        "<i8" => FileDtype::I64,
        "|u1" | "|b1" => FileDtype::U8,
        "<u2" => FileDtype::U16,
        "<u4" => FileDtype::U32,
        "<u8" => FileDtype::U64,
        _ => return None,
    })
}

/// Returns the size in bytes of an integer dtype; `None` for other dtypes.
pub(super) fn integer_bytes(dtype: FileDtype) -> Option<usize> {
    use FileDtype::{Bf16, F16, F16Big, F32, F32Big, F64, F64Big};
    let is_float = matches!(dtype, F16 | Bf16 | F32 | F64 | F16Big | F32Big | F64Big);
    (!is_float).then(|| dtype.bytes())
}

/// Converts consecutive values from the start of `bytes` into `out`. Returns the first value that is too large for f32,
/// if there is one.
pub(super) fn fill(dtype: FileDtype, bytes: &[u8], out: &mut [f32]) -> Option<f64> {
    if let (FileDtype::F16, Ok(bits)) = (dtype, bytemuck::try_cast_slice::<u8, u16>(bytes)) {
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
        return None;
    }
    let mut beyond = None;
    for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(dtype.bytes())) {
        *out = to_f32(dtype.read(bytes), &mut beyond);
    }
    beyond
}

/// Rounds to the nearest f32; a finite value that becomes infinite is stored in `beyond`.
pub(super) fn to_f32(value: f64, beyond: &mut Option<f64>) -> f32 {
    let nearest = value as f32;
    if nearest.is_infinite() && value.is_finite() {
        beyond.get_or_insert(value);
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::dtype::bf16;

    #[test]
    fn values_of_every_dtype_are_read_and_overflows_of_f32_are_reported() {
        let values = [0.0f32, 1.5, -2.0, 96.0, 0.25];
        type Write = fn(f32) -> Vec<u8>;
        let cases: [(FileDtype, Write); 7] = [
            (FileDtype::F16Big, |v| f16::from_f32(v).to_be_bytes().into()),
            (FileDtype::F16, |v| f16::from_f32(v).to_le_bytes().into()),
            (FileDtype::Bf16, |v| bf16::from_f32(v).to_le_bytes().into()),
            (FileDtype::F32, |v| v.to_le_bytes().into()),
            (FileDtype::F32Big, |v| v.to_be_bytes().into()),
            (FileDtype::F64, |v| f64::from(v).to_le_bytes().into()),
            (FileDtype::F64Big, |v| f64::from(v).to_be_bytes().into()),
        ];
        for (dtype, write) in cases {
            // Also from an unaligned address.
            for skip in [0, 1] {
                let bytes: Vec<u8> =
                    vec![0; skip].into_iter().chain(values.into_iter().flat_map(write)).collect();
                let mut out = [9.0; 5];
                assert_eq!(fill(dtype, &bytes[skip..], &mut out), None, "{dtype:?}");
                assert_eq!(out, values, "{dtype:?}");
            }
        }
        let whole = [0i16, 1, -2, 300, i16::MIN];
        let big = whole.map(i16::to_be_bytes).concat();
        let mut out = [9.0; 5];
        assert_eq!(fill(FileDtype::I16Big, &big, &mut out), None);
        assert_eq!(out, whole.map(f32::from));
        for (name, bytes) in [
            (">i4", (-70_000i32).to_be_bytes().to_vec()),
            (">i8", (-70_000i64).to_be_bytes().to_vec()),
            ("<i4", (-70_000i32).to_le_bytes().to_vec()),
        ] {
            assert_eq!(from_numpy(name).unwrap().read(&bytes), -70_000.0, "{name}");
        }
        for (name, bytes) in [
            (">u2", 60_000u16.to_be_bytes().to_vec()),
            (">u4", 60_000u32.to_be_bytes().to_vec()),
            (">u8", 60_000u64.to_be_bytes().to_vec()),
        ] {
            assert_eq!(from_numpy(name).unwrap().read(&bytes), 60_000.0, "{name}");
        }
        let large = [f64::INFINITY, 1e38, -1e39, 1e300].map(f64::to_le_bytes).concat();
        let mut out = [0.0; 4];
        assert_eq!(fill(FileDtype::F64, &large, &mut out), Some(-1e39));
        assert_eq!(out[..2], [f32::INFINITY, 1e38]);
    }
}
