//! Sum or mean over an axis, which is kept with size 1: x [.., n, ..], y [.., 1, ..].
//!
//! dx is dy broadcast along the axis, divided by n for the mean. The order of summation depends only on the sizes.

use super::strided::{self, Space, Strided, Sum, View, checked};
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Sum or mean over one axis; input x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Σ x over this axis.
    Sum(usize),
    /// The mean of x over this axis.
    Mean(usize),
}

impl Reduce {
    fn axis(self) -> usize {
        match self {
            Reduce::Sum(axis) | Reduce::Mean(axis) => axis,
        }
    }

    /// Returns the factor of the sum over an axis of size `n`.
    fn scale(self, n: usize) -> f64 {
        match self {
            Reduce::Sum(_) => 1.0,
            Reduce::Mean(_) => 1.0 / n as f64,
        }
    }
}

/// Returns the index space of the gradient of x, with views of dy and dx.
fn gradient_space(x: &[usize], y: &[usize]) -> Result<Space<2>, String> {
    Space::new(x, [View::broadcast(y, x), View::contiguous(x)])
}

impl Strided for Reduce {}

impl Op for Reduce {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [x] = inputs else { return Err("takes one input".into()) };
        let mut y = x.to_vec();
        match y.get_mut(self.axis()) {
            Some(0) if matches!(self, Reduce::Mean(_)) => {
                return Err("the mean of an empty axis".into());
            }
            Some(size) => *size = 1,
            None => return Err(format!("has no axis {}", self.axis())),
        }
        Sum::new(x, &y, View::contiguous(x))?;
        gradient_space(x, &y)?;
        Ok(y)
    }

    fn kept(&self, _inputs: &[&Tensor], _out: &Tensor) -> Saved {
        vec![]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, n) = (inputs[0].shape(), inputs[0].shape()[self.axis()]);
        let sum = checked(Sum::new(x, out.shape(), View::contiguous(x)));
        strided::sum(&sum, inputs[0], None, out, self.scale(n), false);
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let scale = self.scale(grad.tensor.shape()[self.axis()]);
            let space = checked(gradient_space(grad.tensor.shape(), dy.shape()));
            strided::copy(&space, &dy, &mut grad.tensor, scale, grad.accumulate);
        }
    }
}

/// Returns test cases: the first, middle and last axis, of size one and larger; sums by threads and by warps, in one
/// and several chunks.
pub fn cases() -> Vec<Case> {
    let shapes: [(&[usize], usize); 12] = [
        (&[1], 0),
        (&[7], 0),
        (&[5000], 0),
        (&[3, 37], 1),
        (&[3, 5], 1),
        (&[5, 64], 1),
        (&[37, 24], 0),
        (&[5, 9, 7], 1),
        (&[3, 70, 16], 1),
        (&[2, 3, 1, 5], 2),
        (&[8, 512, 512], 1),
        (&[4096, 1024], 1),
    ];
    let both = |(shape, axis): (&[usize], usize)| {
        [Reduce::Sum(axis), Reduce::Mean(axis)].map(|op| Case::new(op, &[shape]))
    };
    shapes.into_iter().flat_map(both).collect()
}
