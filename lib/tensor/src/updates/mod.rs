//! In-place updates of parameters, averages and gradients: never recorded on the tape, so they have no gradient.
//!
//! `apply` works on one tensor and `apply_all` on all of them, which on a device is a single launch.

pub mod adafactor;
pub mod adamw;
pub mod decision;
pub mod ema;
pub mod lamb;
pub mod lion;
pub mod muon;
pub mod norm;
pub mod sgd;
pub mod sum;

use crate::tensor::Tensor;

/// A parameter in a step of an optimizer that keeps N state tensors per parameter.
pub struct Parameter<'a, const N: usize> {
    /// Factor of the learning rate for this parameter.
    pub rate: f64,
    /// λ, weight decay.
    pub weight_decay: f64,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// Its value.
    pub value: &'a mut Tensor,
    /// The optimizer state, in the order of its documentation.
    pub moments: [&'a mut Tensor; N],
}

/// Element counts of the tensors of an update, for checks: one, none, odd, several pieces of a launch, and more tensors
/// than any small table would hold.
pub fn cases() -> Vec<Vec<usize>> {
    let many = (0..70).map(|i| (i * i * 7) % 601 + usize::from(i != 13)).collect();
    vec![vec![1], vec![0], vec![5, 0, 4096, 1], vec![4097, 3, 9001], many]
}
