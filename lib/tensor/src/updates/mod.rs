//! What changes parameters in place: never on the tape, so no gradient exists.
//!
//! Each works on one tensor (`apply`) and on all at once (`apply_all`): on devices that is one launch.

pub mod adamw;
pub mod decision;
pub mod ema;
pub mod norm;
pub mod sgd;
pub mod sum;

use crate::tensor::Tensor;

/// A parameter in a step of an optimiser that keeps N tensors for each.
pub struct Parameter<'a, const N: usize> {
    /// Factor of the learning rate.
    pub rate: f64,
    /// λ, weight decay.
    pub weight_decay: f64,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// Its value.
    pub value: &'a mut Tensor,
    /// What the optimiser keeps, in the order of its documentation.
    pub moments: [&'a mut Tensor; N],
}

/// Numbers of elements of the tensors of an update, for checks: one, none, odd, several pieces of a
/// launch, and more tensors than any small table would hold.
pub fn cases() -> Vec<Vec<usize>> {
    let many = (0..70).map(|i| (i * i * 7) % 601 + usize::from(i != 13)).collect();
    vec![vec![1], vec![0], vec![5, 0, 4096, 1], vec![4097, 3, 9001], many]
}
