//! Concatenation along an axis; all other axes must match. The gradient of each input is its slice of dy.

use super::narrow::part_space;
use super::strided::{self, Strided, checked};
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Concatenates any number of inputs along an axis.
#[derive(Clone, Copy, Debug)]
pub struct Concat {
    /// Axis along which the inputs are concatenated.
    pub axis: usize,
}

impl Strided for Concat {}

impl Op for Concat {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let axis = self.axis;
        let Some(mut y) = inputs.first().map(|x| x.to_vec()).filter(|x| axis < x.len()) else {
            return Err(format!("takes one or more inputs with an axis {axis}"));
        };
        for x in &inputs[1..] {
            let others = |shape: &[usize]| [&shape[..axis], &shape[axis + 1..]].concat();
            if x.len() != y.len() || others(x) != others(&y) {
                return Err(format!("inputs differ in more than axis {axis}"));
            }
            y[axis] += x[axis];
        }
        inputs.iter().try_for_each(|x| part_space(&y, x, axis, 0).map(drop))?;
        Ok(y)
    }

    fn kept(&self, _inputs: &[&Tensor], _out: &Tensor) -> Saved {
        vec![]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let mut start = 0;
        for x in inputs {
            let [_, space] = checked(part_space(out.shape(), x.shape(), self.axis, start));
            strided::copy(&space, x, out, 1.0, false);
            start += x.shape()[self.axis];
        }
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let mut start = 0;
        let shapes: Vec<Vec<usize>> = grads.shapes().map(<[usize]>::to_vec).collect();
        for (i, shape) in shapes.iter().enumerate() {
            if let Some(grad) = grads.buffer(i) {
                let [space, _] = checked(part_space(dy.shape(), shape, self.axis, start));
                strided::copy(&space, &dy, &mut grad.tensor, 1.0, grad.accumulate);
            }
            start += shape[self.axis];
        }
    }
}

/// Returns test cases: each axis, one to four inputs, sizes 1 and 0, offsets that do and do not allow vector access.
pub fn cases() -> Vec<Case> {
    let case = |axis: usize, shapes: &[&[usize]]| Case::new(Concat { axis }, shapes);
    vec![
        case(0, &[&[5]]),
        case(0, &[&[2, 7], &[3, 7], &[1, 7]]),
        case(1, &[&[5, 1], &[5, 3], &[5, 0], &[5, 1]]),
        case(1, &[&[2, 9, 24], &[2, 4, 24]]),
        case(2, &[&[2, 9, 24], &[2, 9, 16]]),
        case(2, &[&[2, 3, 1], &[2, 3, 1]]),
        case(2, &[&[2, 3, 5, 8], &[2, 3, 2, 8]]),
        case(1, &[&[4096, 512], &[4096, 256]]),
    ]
}
