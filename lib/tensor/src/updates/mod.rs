//! In-place updates of parameters, averages, gradients and caches, which are not recorded on the tape.
//!
//! `apply` updates one tensor, and `apply_all` updates all tensors, with a single launch on a device where possible.

pub mod adafactor;
pub mod adamw;
pub mod adamw8bit;
pub mod append;
pub mod decision;
pub mod ema;
pub mod lamb;
pub mod lion;
pub mod muon;
pub mod norm;
pub mod sgd;
pub mod sum;

use crate::tensor::Tensor;

/// One parameter in a step of an optimizer that keeps N state tensors per parameter.
pub struct Parameter<'a, const N: usize> {
    /// Learning-rate multiplier of this parameter.
    pub rate: f64,
    /// Weight decay λ.
    pub weight_decay: f64,
    /// Gradient of the parameter.
    pub gradient: &'a Tensor,
    /// Value of the parameter.
    pub value: &'a mut Tensor,
    /// Optimizer state, in the order that the optimizer documents.
    pub moments: [&'a mut Tensor; N],
}

/// Returns element counts of the tensors of an update, for checks: one element, none, odd counts, several pieces of a
/// launch, and more tensors than a small table can hold.
pub fn cases() -> Vec<Vec<usize>> {
    let many = (0..70).map(|i| (i * i * 7) % 601 + usize::from(i != 13)).collect();
    vec![vec![1], vec![0], vec![5, 0, 4096, 1], vec![4097, 3, 9001], many]
}
