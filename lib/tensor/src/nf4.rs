//! 4-bit NormalFloat (Dettmers et al. 2023, "QLoRA: efficient finetuning of quantized LLMs", section 3 and appendix E), as
//! bitsandbytes stores it.
//!
//! A tensor is quantised in row-major order in blocks of [`BLOCK`] elements: each block has a scale, its largest magnitude,
//! and each element the code of the number of [`CODES`] that is closest to its quotient by the scale. A byte holds two
//! codes, the first in its upper half. Scales are f32 or, with double quantisation, 8-bit codes of their differences from
//! their mean, with a scale of their own for each [`NESTED_BLOCK`] of them.

use crate::dtype::{Dtype, Float, bf16};
use crate::parallel::{BLOCK_ELEMENTS, Shared, row_blocks};
use crate::tensor::Tensor;
use crate::updates::adamw8bit::signed;
use crate::vectorize;

/// Elements that share a scale.
pub const BLOCK: usize = 64;
/// Scales that share a scale of their own.
pub const NESTED_BLOCK: usize = 256;
/// Elements that a thread dequantises at a time.
const PART: usize = BLOCK_ELEMENTS / BLOCK * BLOCK;

/// The numbers that codes stand for: quantiles of the normal distribution, -1, 0 and 1.
pub const CODES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// What is not in the tensors of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nf4 {
    /// Shape [outputs, inputs] of the weight.
    pub shape: [usize; 2],
    /// The floating-point dtype of the weight.
    pub dtype: Dtype,
    /// The mean of the scales if they are quantised too.
    pub offset: Option<f32>,
}

impl Nf4 {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Shapes and dtypes of the tensors of the weight: the codes, the scales, the numbers of the codes and, if scales are
    /// quantised, their scales and the numbers of their codes.
    pub fn pieces(&self) -> Vec<(Vec<usize>, Dtype)> {
        let scales = self.len().div_ceil(BLOCK);
        let dtype = if self.offset.is_some() { Dtype::U8 } else { Dtype::F32 };
        let mut pieces = vec![
            (vec![self.len().div_ceil(2), 1], Dtype::U8),
            (vec![scales], dtype),
            (vec![CODES.len()], Dtype::F32),
        ];
        if self.offset.is_some() {
            pieces.push((vec![scales.div_ceil(NESTED_BLOCK)], Dtype::F32));
            pieces.push((vec![256], Dtype::F32));
        }
        pieces
    }

    /// Returns the weight in any floating-point dtype, on the host.
    ///
    /// # Panics
    /// If the tensors are not those of [`Self::pieces`].
    pub fn dequantised(&self, pieces: &[&Tensor], dtype: Dtype) -> Tensor {
        let mut values = Tensor::empty(&self.shape, Dtype::F32);
        self.dequantise(pieces, values.write::<f32>());
        values.to_dtype(dtype)
    }

    /// Writes the values of the weight in f32 or f64 to `out`.
    ///
    /// # Panics
    /// If the tensors are not those of [`Self::pieces`] on the host, or `out` has another length.
    pub fn dequantise<T: Float>(&self, pieces: &[&Tensor], out: &mut [T]) {
        assert_eq!(out.len(), self.len(), "elements of a dequantised weight");
        row_blocks((out, 1), PART, |range, out| self.dequantise_part(pieces, range.start, out));
    }

    /// Writes the values from element `start` on, a multiple of [`BLOCK`], to `out`, on this thread.
    ///
    /// # Panics
    /// As for [`Self::dequantise`].
    pub(crate) fn dequantise_part<T: Float>(
        &self,
        pieces: &[&Tensor],
        start: usize,
        out: &mut [T],
    ) {
        let (codes, numbers) = (pieces[0].read::<u8>(), pieces[2].read::<f32>());
        let pairs: [[f32; 2]; 256] =
            std::array::from_fn(|byte| [numbers[byte >> 4], numbers[byte & 15]]);
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let first = start + block * BLOCK;
            let scale = self.scale(pieces, first / BLOCK);
            let codes = &codes[first / 2..(first + out.len()).div_ceil(2)];
            let mut values = [0.0_f32; BLOCK];
            for (two, code) in values.chunks_exact_mut(2).zip(codes) {
                two.copy_from_slice(&pairs[usize::from(*code)]);
            }
            vectorize!({
                for (out, x) in out.iter_mut().zip(&values) {
                    *out = T::of(f64::from(*x * scale));
                }
            });
        }
    }

    /// The scale of a block.
    fn scale(&self, pieces: &[&Tensor], block: usize) -> f32 {
        let Some(offset) = self.offset else { return pieces[1].read::<f32>()[block] };
        let (codes, largest) = (pieces[1].read::<u8>(), pieces[3].read::<f32>());
        pieces[4].read::<f32>()[usize::from(codes[block])] * largest[block / NESTED_BLOCK] + offset
    }
}

/// Writes a dense tensor on the host, of any floating-point dtype, to `out`.
pub(crate) fn widen<T: Float>(from: &Tensor, out: &mut [T]) {
    row_blocks((out, 1), PART, |range, out| widen_part(from, range.start, out));
}

/// Writes the elements from `start` on to `out`, on this thread.
pub(crate) fn widen_part<T: Float>(from: &Tensor, start: usize, out: &mut [T]) {
    let range = start..start + out.len();
    match from.dtype() {
        Dtype::Bf16 => {
            let from = &from.read::<bf16>()[range];
            vectorize!({
                for (out, x) in out.iter_mut().zip(from) {
                    *out = T::of(f64::from(f32::from_bits(u32::from(x.to_bits()) << 16)));
                }
            });
        }
        dtype => crate::with_element!(dtype, S => {
            for (out, x) in out.iter_mut().zip(&from.read::<S>()[range]) {
                *out = T::of(crate::Element::f64(*x));
            }
        }),
    }
}

/// Quantises a weight [outputs, inputs] of any floating-point dtype, on the host; with `nested`, its scales too. Returns the
/// layout and the tensors of [`Nf4::pieces`]. The weight must be finite.
pub fn quantise(weight: &Tensor, nested: bool) -> (Nf4, Vec<Tensor>) {
    let shape = [0, 1].map(|axis| weight.shape()[axis]);
    let parts = [Ok::<_, std::convert::Infallible>(weight.clone())];
    let Ok(quantised) = quantise_parts(shape, weight.dtype(), nested, parts);
    quantised
}

/// The same for a weight of a shape and dtype that comes in consecutive parts, of a multiple of [`BLOCK`] elements except for
/// the last. Errors: those of a part.
pub fn quantise_parts<E>(
    shape: [usize; 2],
    dtype: Dtype,
    nested: bool,
    parts: impl IntoIterator<Item = Result<Tensor, E>>,
) -> Result<(Nf4, Vec<Tensor>), E> {
    let len: usize = shape.iter().product();
    let mut codes = Tensor::zeros(&[len.div_ceil(2), 1], Dtype::U8);
    let mut scales = Tensor::zeros(&[len.div_ceil(BLOCK)], Dtype::F32);
    let (mut codes_left, mut scales_left) = (codes.write::<u8>(), scales.write::<f32>());
    for part in parts {
        let part = part?;
        let part = match part.dtype() {
            Dtype::F32 => part,
            _ => {
                let mut wide = Tensor::empty(part.shape(), Dtype::F32);
                widen(&part, wide.write::<f32>());
                wide
            }
        };
        let values = part.read::<f32>();
        let (codes, scales);
        (codes, codes_left) = codes_left.split_at_mut(values.len().div_ceil(2));
        (scales, scales_left) = scales_left.split_at_mut(values.len().div_ceil(BLOCK));
        quantise_blocks(values, codes, scales);
    }
    assert!(scales_left.is_empty(), "{shape:?}: {} blocks are missing", scales_left.len());
    let numbers = Tensor::from_slice(&CODES, &[CODES.len()]);
    let layout = Nf4 { shape, dtype, offset: None };
    if !nested || len == 0 {
        return Ok((layout, vec![codes, scales, numbers]));
    }
    let mean = scales.read::<f32>().iter().map(|x| f64::from(*x)).sum::<f64>();
    let offset = (mean / scales.len() as f64) as f32;
    let [scale_codes, largest] = quantised_scales(scales.read(), offset);
    let map = Tensor::from_slice(signed().values(), &[256]);
    let pieces = vec![codes, scale_codes, numbers, largest, map];
    Ok((Nf4 { offset: Some(offset), ..layout }, pieces))
}

/// Quantises consecutive values: codes, two in a byte, and the scale of each block.
fn quantise_blocks(values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let limits: [f32; 15] = std::array::from_fn(|i| f32::midpoint(CODES[i], CODES[i + 1]));
    // A value halfway between two numbers gets the lower one.
    let code = |x: f32| limits.iter().map(|limit| u8::from(x > *limit)).sum::<u8>();
    let all_codes = Shared::new(codes);
    row_blocks((scales, 1), PART / BLOCK, |range, scales| {
        let (first, last) = (range.start * BLOCK, (range.end * BLOCK).min(values.len()));
        // SAFETY: a part has the codes of its own blocks, whose length is even but for the last.
        let codes = unsafe { all_codes.slice(first / 2..last.div_ceil(2)) };
        let blocks = values[first..last].chunks(BLOCK).zip(codes.chunks_mut(BLOCK / 2));
        for ((block, codes), scale) in blocks.zip(scales) {
            *scale = block.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            let factor = 1.0 / scale.max(1e-38);
            for (byte, two) in codes.iter_mut().zip(block.chunks(2)) {
                let second = two.get(1).copied().unwrap_or(0.0);
                *byte = code(two[0] * factor) << 4 | code(second * factor);
            }
        }
    });
}

/// Returns the codes of scales, relative to their mean `offset`, and the scale of each block of them.
fn quantised_scales(scales: &[f32], offset: f32) -> [Tensor; 2] {
    let (mut codes, mut largest) = (Vec::with_capacity(scales.len()), Vec::new());
    for block in scales.chunks(NESTED_BLOCK) {
        let most = block.iter().fold(0.0, |most: f32, x| most.max((x - offset).abs()));
        let factor = 1.0 / most.max(1e-38);
        codes.extend(block.iter().map(|x| signed().code((x - offset) * factor, 1.0)));
        largest.push(most);
    }
    [Tensor::from_slice(&codes, &[codes.len()]), Tensor::from_slice(&largest, &[largest.len()])]
}

#[cfg(test)]
mod tests;
