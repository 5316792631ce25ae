//! Rows of a table: y[.., :] = table[index[..], :]. table [N, H], index [..] (I32), y [.., H].
//!
//! The forward pass of [`crate::ops::embedding`] without a tape, with its kernel: an index outside 0..N gives a row of
//! NaN.

use super::{Case, Function};
use crate::op::Draw;
use crate::ops::embedding;
use crate::tensor::Tensor;
use crate::{Device, Element, with_float};
use unix::Result;

/// Gathers rows; inputs table, index.
#[derive(Clone, Copy, Debug)]
pub struct Gather;

/// Returns the rows of `table` [N, H] at `index` [..], [.., H]. Errors: a bug if the table is no matrix.
pub fn gather(table: &Tensor, index: &Tensor) -> Result<Tensor> {
    let inputs = [table, index];
    Gather.check(&inputs)?;
    let [_, h] = table.shape() else {
        return Err(Gather.misuse(&inputs, "takes table [N, H] and index [..]"));
    };
    let mut out = Tensor::empty_on(table.device(), &[index.shape(), &[*h]].concat(), table.dtype());
    match table.device() {
        Device::Cpu => with_float!(table.dtype(), T => {
            embedding::cpu::gather::<T>(table, index.read(), out.write(), T::of(f64::NAN), false);
        }),
        _ => embedding::cuda::gather(table, index, &mut out, f32::NAN, false),
    }
    Ok(out)
}

impl Function for Gather {
    fn apply(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [table, index] => Ok(vec![gather(table, index)?]),
            _ => Err(self.misuse(inputs, "takes table and index")),
        }
    }
}

/// Returns test cases: one row, odd and even widths, an index with two axes.
pub fn cases() -> Vec<Case> {
    let case = |n: usize, h, index: &[usize]| Case {
        function: Box::new(Gather),
        inputs: vec![(vec![n, h], Draw::Normal), (index.to_vec(), Draw::RandInt(n as u64))],
    };
    vec![case(1, 1, &[1]), case(40, 7, &[3, 5]), case(300, 24, &[131])]
}
