//! Converts values to the dtype of a file.

use half::{bf16, f16};
use tensor::Dtype;

/// Returns the bytes of `values` as little-endian `dtype`; `buffer` holds converted values. The error is the index of
/// the first finite value that becomes infinite.
pub(super) fn encode_as<'a>(
    values: &'a [f32],
    dtype: Dtype,
    buffer: &'a mut Vec<u8>,
) -> Result<&'a [u8], usize> {
    buffer.clear();
    for (at, &value) in values.iter().enumerate() {
        let (bytes, is_finite) = match dtype {
            Dtype::F16 => (f16::from_f32(value).to_le_bytes(), f16::from_f32(value).is_finite()),
            Dtype::Bf16 => (bf16::from_f32(value).to_le_bytes(), bf16::from_f32(value).is_finite()),
            Dtype::F32 | Dtype::F64 | Dtype::I32 | Dtype::U8 => {
                return Ok(bytemuck::cast_slice(values));
            }
        };
        if value.is_finite() && !is_finite {
            return Err(at);
        }
        buffer.extend(bytes);
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_do_not_fit_are_reported_with_their_index() {
        let mut buffer = Vec::new();
        // 65519 is the largest integer that rounds to 65504.
        let values = [1.5, -65519.0, f32::INFINITY, f32::NAN, 65520.0, 1e30];
        let bytes = encode_as(&values[..4], Dtype::F16, &mut buffer).unwrap();
        assert_eq!(bytes[..4], [0x00, 0x3e, 0xff, 0xfb]);
        assert_eq!(encode_as(&values, Dtype::F16, &mut buffer), Err(4));
        assert_eq!(encode_as(&values, Dtype::Bf16, &mut buffer).map(<[u8]>::len), Ok(12));
        assert_eq!(encode_as(&[0.0, f32::MAX], Dtype::Bf16, &mut buffer), Err(1));
        assert_eq!(
            encode_as(&[f32::MAX], Dtype::F32, &mut buffer),
            Ok(&f32::MAX.to_le_bytes()[..])
        );
    }
}
