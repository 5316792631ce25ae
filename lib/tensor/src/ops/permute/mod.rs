//! Permutation of axes, like `permute` in PyTorch and `transpose` in NumPy: axis `i` of y is axis `axes[i]` of x. The
//! gradient is dy with the inverse permutation.

use super::strided::{self, Space, Strided, View, checked};
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Permutes axes; input x. Holds the input axis of each output axis.
#[derive(Clone, Debug)]
pub struct Permute(pub Vec<usize>);

/// Returns the output shape and index space for the axis order `order`.
fn space(order: &[usize], x: &[usize]) -> Result<(Vec<usize>, Space<2>), String> {
    let y: Vec<usize> = order.iter().map(|axis| x[*axis]).collect();
    let views = [View::contiguous(x).permuted(order), View::contiguous(&y)];
    let space = Space::new(&y, views)?;
    Ok((y, space))
}

impl Permute {
    fn inverse(&self) -> Vec<usize> {
        let mut inverse = vec![0; self.0.len()];
        for (i, axis) in self.0.iter().enumerate() {
            inverse[*axis] = i;
        }
        inverse
    }
}

impl Strided for Permute {}

impl Op for Permute {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [x] = inputs else { return Err("takes one input".into()) };
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.len()) {
            return Err(format!("{:?} is not a permutation of {} axes", self.0, x.len()));
        }
        Ok(space(&self.0, x)?.0)
    }

    fn kept(&self, _inputs: &[&Tensor], _out: &Tensor) -> Saved {
        vec![]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (_, space) = checked(space(&self.0, inputs[0].shape()));
        strided::copy(&space, inputs[0], out, 1.0, false);
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let (_, space) = checked(space(&self.inverse(), dy.shape()));
            strided::copy(&space, &dy, &mut grad.tensor, 1.0, grad.accumulate);
        }
    }
}

/// Returns test cases: transposed matrices, heads before tokens, channels first, image patches, the identity.
pub fn cases() -> Vec<Case> {
    let case = |axes: &[usize], shape: &[usize]| Case::new(Permute(axes.to_vec()), &[shape]);
    vec![
        case(&[0], &[5]),
        case(&[1, 0], &[3, 37]),
        case(&[1, 0], &[64, 96]),
        case(&[0, 2, 1, 3], &[2, 5, 3, 16]),
        case(&[0, 3, 1, 2], &[2, 5, 7, 3]),
        case(&[0, 1, 3, 2, 4, 5], &[2, 3, 4, 2, 4, 8]),
        case(&[2, 0, 1], &[7, 1, 9]),
        case(&[0, 2, 1, 3], &[8, 512, 8, 64]),
        case(&[1, 0], &[1537, 1025]),
    ]
}
