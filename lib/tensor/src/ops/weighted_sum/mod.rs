//! L = Σ_i weight_i·x_i for scalars x_i [1], used to combine loss terms.

pub(crate) mod cuda;

use crate::dtype::Dtype;
use crate::kernel::ONLY_F32;
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Weighted sum of scalars, one weight per input.
#[derive(Clone, Debug)]
pub struct WeightedSum(pub Vec<f64>);

impl Op for WeightedSum {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        if inputs.len() != self.0.len() || inputs.iter().any(|x| **x != [1]) {
            return Err(format!("takes {} scalars", self.0.len()));
        }
        Ok(vec![1])
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let total = inputs.iter().zip(&self.0).map(|(x, w)| w * x.item()).sum();
        *out = Tensor::full(&[1], total, out.dtype());
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        for (i, weight) in self.0.iter().enumerate() {
            grads.accumulate(i, Tensor::full(&[1], weight * dy.item(), dy.dtype()));
        }
    }

    fn dtypes(&self) -> &'static [Dtype] {
        ONLY_F32
    }
}

/// Returns test cases: one term, three terms, and more terms than fit in one launch.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(WeightedSum(vec![2.5]), &[&[1]]),
        Case::new(WeightedSum(vec![1.0, -0.5, 3.0]), &[&[1], &[1], &[1]]),
        Case::new(WeightedSum((1..12).map(|i| f64::from(i) - 4.5).collect()), &[&[1][..]; 11]),
    ]
}
