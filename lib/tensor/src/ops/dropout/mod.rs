//! Inverted dropout (Srivastava et al. 2014): y = x/(1 - p) for kept elements, 0 for dropped elements.
//!
//! The mask is never stored: it depends only on the position of an element, and is the same in the backward pass, in
//! recomputation, on every device and for every division of the samples over ranks and micro-batches. Word `i % 4` of
//! the Philox block with key (seed low, seed high) and counter (⌊i/4⌋, sample, micro-batch, site) belongs to element i
//! of a sample, which is kept if the word is at least p·2³².

mod cpu;
pub(crate) mod cuda;

use crate::dtype::{Dtype, Float};
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::random::{Philox, WORDS};
use crate::tensor::Tensor;
use crate::with_float;

/// Zeroes elements with probability `p`; inputs x, counter.
///
/// The counter [4] (I32) holds the two words of the key ([`Philox::key`] of [`crate::random::Purpose::Dropout`]), the
/// index of the micro-batch, and the global index of the first sample of x. It is a device tensor, so that replays of a
/// captured graph use different masks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element is zeroed, in [0, 1); with 0, the op is the identity.
    pub p: f64,
    /// Identifies this dropout layer in the model, so that each layer has its own masks.
    pub site: u32,
    /// Number of samples in x, along its leading axes.
    pub samples: usize,
}

impl Dropout {
    /// Returns the smallest random word for which an element is kept.
    pub(crate) fn threshold(&self) -> u32 {
        (self.p * 2.0_f64.powi(32)) as u32
    }

    /// Returns the scale of kept elements, 1/(1 - p).
    pub(crate) fn scale(&self) -> f64 {
        1.0 / (1.0 - self.p)
    }
}

/// Dropout mask, generated on the fly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    philox: Philox,
    micro_batch: u32,
    first: u32,
    site: u32,
    threshold: u32,
}

impl Mask {
    /// Creates the mask from the contents of the counter.
    pub(crate) fn new(op: &Dropout, counter: &[i32]) -> Self {
        let [low, high, micro_batch, first] = [0, 1, 2, 3].map(|i| counter[i] as u32);
        let philox = Philox::from_key([low, high]);
        Self { philox, micro_batch, first, site: op.site, threshold: op.threshold() }
    }

    /// Replaces the elements x of a sample, in several slices at once and starting at element 4·block, with
    /// f(x, whether the element is kept).
    #[inline(always)]
    pub(crate) fn combine<T: Float, const N: usize>(
        &self,
        sample: usize,
        block: usize,
        slices: [&mut [T]; N],
        f: impl Fn([T; N], bool) -> [T; N],
    ) {
        let rest = [self.first.wrapping_add(sample as u32), self.micro_batch, self.site];
        let words = |chunk: usize| self.philox.words((block + chunk * WORDS / 4) as u32, rest);
        // Chunks of fixed length are vectorized.
        let mut parts = slices.map(|x| x.as_chunks_mut::<WORDS>());
        let whole = parts.iter().map(|(chunks, _)| chunks.len()).min().unwrap_or(0);
        for chunk in 0..whole {
            let words = words(chunk);
            let mut own = parts.each_mut().map(|(chunks, _)| &mut chunks[chunk]);
            for i in 0..WORDS {
                let new = f(own.each_ref().map(|x| x[i]), words[i] >= self.threshold);
                own.iter_mut().zip(new).for_each(|(x, new)| x[i] = new);
            }
        }
        let tail = parts.iter().map(|(_, tail)| tail.len()).min().unwrap_or(0);
        if tail > 0 {
            for (i, word) in words(whole).iter().enumerate().take(tail) {
                let new = f(parts.each_ref().map(|(_, tail)| tail[i]), *word >= self.threshold);
                parts.iter_mut().zip(new).for_each(|((_, tail), new)| tail[i] = new);
            }
        }
    }
}

impl Op for Dropout {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [x, [4]] = inputs else { return Err("takes x and a counter [4]".into()) };
        if !(0.0..1.0).contains(&self.p) {
            return Err(format!("a probability of {} is not in [0, 1)", self.p));
        }
        if self.samples == 0 || !x.iter().product::<usize>().is_multiple_of(self.samples) {
            return Err(format!("x cannot be divided into {} samples", self.samples));
        }
        Ok(x.to_vec())
    }

    fn constants(&self) -> &'static [usize] {
        &[1]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 1 { Dtype::I32 } else { compute }
    }

    fn kept(&self, inputs: &[&Tensor], _out: &Tensor) -> Saved {
        inputs[1..].iter().map(|x| (*x).clone()).collect()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, counter] = [inputs[0], inputs[1]];
        if self.p == 0.0 {
            *out = x.clone();
            return vec![];
        }
        with_float!(out.dtype(), T => {
            cpu::apply::<T>(self, counter.read(), x.read(), out.write(), false);
        });
        vec![counter.clone()]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if self.p == 0.0 {
            grads.accumulate(0, dy);
        } else if let Some(grad) = grads.buffer(0) {
            with_float!(dy.dtype(), T => {
                let (dx, add) = (grad.tensor.write::<T>(), grad.accumulate);
                cpu::apply::<T>(self, saved[0].read(), dy.read(), dx, add);
            });
        }
    }
}

/// Returns test cases: one element, samples that are not a multiple of a vector or block, one and many samples, p = 0.
pub fn cases() -> Vec<Case> {
    let case = |p: f64, samples: usize, shape: &[usize]| {
        let op = Dropout { p, site: 3, samples };
        Case::new(op, &[shape, &[4]]).draw(1, Draw::RandInt(1 << 31))
    };
    vec![
        case(0.5, 1, &[1]),
        case(0.1, 3, &[3, 37]),
        case(0.0, 3, &[3, 37]),
        case(0.25, 6, &[6, 5, 8]),
        case(0.9, 2, &[2, 7, 36]),
        case(0.1, 64, &[64, 128, 512]),
    ]
}

#[cfg(test)]
mod tests;
