//! Samples a column of each row by the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014):
//! index = argmax_v x_v/τ + g_v over the candidates is a sample of softmax(x/τ), with g_v = -log(-log u_v). x [R, V].
//!
//! The log-probability is that of the model, at temperature 1: x_index - log Σ_v exp(x_v). With τ = 0 the largest logit
//! is chosen, as by [`super::argmax`], whose rules for equal logits, NaN and infinities apply here too.
//!
//! Word `v % 4` of the Philox block with key (seed low, seed high) and counter (⌊v/4⌋, row, step, site) gives the noise
//! of column v: v' = (word + ½)·2⁻³² is 1 - u, at most 1 - 2⁻²⁴, and -log u = -log(1 - v'), whose series is used for
//! small v', where u itself would round to 1. Noise is the same f32 number for every dtype of x.
//!
//! In f32, u is finite where the noise is large: g lies in [-2.9, 22.9]. A column whose logit, divided by τ, is more
//! than 25.8 below the largest is therefore never chosen, and the probabilities of columns near that limit are wrong by
//! up to 2⁻³² each. With u itself in f32, the limit would be 16.6, which lowers the effective temperature (Zheng et al.
//! 2024, arXiv 2409.02908, section 5).

mod cpu;
pub(crate) mod cuda;

use super::argmax::argmax;
use super::{Candidates, Case, Choice, Function};
use crate::random::Philox;
use crate::tensor::Tensor;
use crate::{Device, with_float};
use unix::Result;

/// Distinguishes the sites of samples from those of dropout, which may use the same counter.
const SITE: u32 = 1 << 31;
/// Lowest temperature above 0.
const LOWEST: f64 = 1e-6;

/// Samples a column of each row; inputs x, counter.
///
/// The counter [4] (I32) holds the two words of the key, e.g. [`Philox::key`] of [`crate::random::Purpose::Sampling`],
/// the step, and the global index of the first row of x. It is a device tensor, so that replays of a captured graph
/// draw other samples. The counter of dropout has this form.
#[derive(Clone, Copy, Debug)]
pub struct Categorical {
    /// Columns that may be chosen.
    pub candidates: Candidates,
    /// Temperature τ: 0, or at least 10⁻⁶.
    pub temperature: f64,
    /// Identifies this sample among those with the same counter; below 2³¹.
    pub site: u32,
}

/// Samples a column of each row of `logits` [R, V]; see [`Categorical`]. Errors: a bug if no column is a candidate, or
/// if the temperature is out of range.
pub fn categorical(logits: &Tensor, counter: &Tensor, by: Categorical) -> Result<Choice> {
    by.choose(logits, counter)
}

/// Returns the noise of a column, given the contents of a counter; `row` counts from the first row of x.
pub fn noise(counter: [i32; 4], site: u32, row: u32, column: u32) -> f32 {
    let [low, high, step, first] = counter.map(i32::cast_unsigned);
    let counter = [column / 4, first.wrapping_add(row), step, site | SITE];
    cpu::gumbel(Philox::from_key([low, high]).block(counter)[column as usize % 4])
}

impl Categorical {
    fn choose(&self, x: &Tensor, counter: &Tensor) -> Result<Choice> {
        let inputs = [x, counter];
        self.check(&inputs)?;
        self.candidates.check(self, &inputs)?;
        let t = self.temperature;
        if counter.shape() != [4] || self.site >= SITE || !(t == 0.0 || (LOWEST..1e30).contains(&t))
        {
            let why = "takes a counter [4], a temperature of 0 or at least 1e-6, a site below 2^31";
            return Err(self.misuse(&inputs, &format!("{why}, not {self:?}")));
        }
        if t == 0.0 {
            return argmax(x, self.candidates);
        }
        let mut choice = Choice::empty(x);
        match x.device() {
            Device::Cpu => {
                with_float!(x.dtype(), T => cpu::choose::<T>(self, x, counter.read(), &mut choice))
            }
            _ => cuda::choose(self, x, counter, &mut choice),
        }
        Ok(choice)
    }
}

impl Function for Categorical {
    fn apply(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, counter] => Ok(self.choose(x, counter)?.outputs()),
            _ => Err(self.misuse(inputs, "takes logits and a counter")),
        }
    }
}

/// Returns test cases: one column, odd widths, a hidden first, middle and last column, padded vocabularies, low and
/// high temperatures.
pub fn cases() -> Vec<Case> {
    let case = |rows, width, columns, hidden: Option<i32>, temperature| {
        let by = Categorical { candidates: Candidates { columns, hidden }, temperature, site: 3 };
        Case::rows(by, rows, width).integers(&[4], 1 << 31)
    };
    vec![
        case(1, 1, 1, None, 1.0),
        case(3, 7, 7, Some(0), 1.0),
        case(40, 33, 20, None, 0.0),
        case(17, 264, 261, Some(260), 0.7),
        case(9, 1543, 1543, Some(700), 2.0),
        case(5, 50_257, 50_257, Some(-1), 0.1),
    ]
}
