//! The k largest elements of each row, in descending order: values [R, k] and their indices, i32 [R, k]. x [R, N].
//!
//! Among equal elements, that with the lowest index comes first. NaN counts as larger than any number. The work on a
//! GPU grows with N + k·N/threads, so k is at most 64.

mod cpu;
pub(crate) mod cuda;

use super::{Case, Function};
use crate::tensor::Tensor;
use crate::{Device, Dtype, with_float};
use unix::Result;

/// Largest k.
pub const MOST: usize = 64;

/// Finds the k largest elements of each row; input x.
#[derive(Clone, Copy, Debug)]
pub struct TopK(pub usize);

/// Returns values [R, k] and indices [R, k] of the `k` largest elements of each row of `x` [R, N]. Errors: a bug if k
/// is 0, larger than N, or larger than [`MOST`].
pub fn top_k(x: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    TopK(k).find(x)
}

impl TopK {
    fn find(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        self.check(&[x])?;
        let rows = match x.shape() {
            [rows, n] if (1..=MOST.min(*n)).contains(&self.0) => *rows,
            _ => {
                return Err(self.misuse(
                    &[x],
                    &format!("takes x [R, N] and k from 1 to min(N, {MOST}), not {self:?}"),
                ));
            }
        };
        let empty = |dtype| Tensor::empty_on(x.device(), &[rows, self.0], dtype);
        let (mut values, mut index) = (empty(x.dtype()), empty(Dtype::I32));
        match x.device() {
            Device::Cpu => with_float!(x.dtype(), T => {
                cpu::find::<T>(self.0, x, values.write(), index.write());
            }),
            _ => cuda::find(self.0, x, &mut values, &mut index),
        }
        Ok((values, index))
    }
}

impl Function for TopK {
    fn apply(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => self.find(x).map(|(values, index)| vec![values, index]),
            _ => Err(self.misuse(inputs, "takes x")),
        }
    }
}

/// Returns test cases: one element, all elements, odd widths, the largest k.
pub fn cases() -> Vec<Case> {
    let case = |rows, width, k| Case::rows(TopK(k), rows, width);
    vec![
        case(1, 1, 1),
        case(3, 7, 7),
        case(40, 33, 5),
        case(9, 264, 64),
        case(4, 1543, 10),
        case(2, 50_257, 40),
    ]
}
