//! The largest logit of each row: index = argmax_v x_v over the candidates, and its log-probability
//! x_index - log Σ_v exp(x_v). x [R, V].
//!
//! Among equal logits the lowest index is chosen. NaN counts as larger than any number, so a row with NaN gives the
//! index of the first; its log-probability is NaN, as it is for rows with +∞ and for rows of only -∞.

mod cpu;
pub(crate) mod cuda;

use super::{Candidates, Case, Choice, Function};
use crate::tensor::Tensor;
use crate::{Device, with_float};
use unix::Result;

/// Chooses the largest logit of each row; input x.
#[derive(Clone, Copy, Debug)]
pub struct Argmax(pub Candidates);

/// Returns the largest logit of each row of `logits` [R, V]. Errors: a bug if no column is a candidate.
pub fn argmax(logits: &Tensor, candidates: Candidates) -> Result<Choice> {
    Argmax(candidates).choose(logits)
}

impl Argmax {
    fn choose(&self, x: &Tensor) -> Result<Choice> {
        self.check(&[x])?;
        self.0.check(self, &[x])?;
        let mut choice = Choice::empty(x);
        match x.device() {
            Device::Cpu => with_float!(x.dtype(), T => cpu::choose::<T>(&self.0, x, &mut choice)),
            _ => cuda::choose(&self.0, x, &mut choice),
        }
        Ok(choice)
    }
}

impl Function for Argmax {
    fn apply(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(self.choose(x)?.outputs()),
            _ => Err(self.misuse(inputs, "takes logits")),
        }
    }
}

/// Returns test cases: one column, odd widths, a hidden first, middle and last column, padded vocabularies.
pub fn cases() -> Vec<Case> {
    let case = |rows, width, columns, hidden: Option<i32>| {
        Case::rows(Argmax(Candidates { columns, hidden }), rows, width)
    };
    vec![
        case(1, 1, 1, None),
        case(3, 7, 7, Some(0)),
        case(40, 33, 20, None),
        case(17, 264, 261, Some(260)),
        case(9, 1543, 1543, Some(700)),
        case(5, 50_257, 50_257, Some(-1)),
    ]
}
