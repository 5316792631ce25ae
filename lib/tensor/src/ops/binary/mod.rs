//! y = a + b and y = a·b with NumPy broadcasting: shapes are aligned at the last axis, and missing axes or axes of size
//! 1 are repeated.
//!
//! Gradients: da = dy for the sum and da = dy·b for the product, each summed over the axes along which a is repeated.

use super::strided::{self, Space, Strided, Sum, View, checked};
use crate::op::{Case, GradBuffer, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Elementwise binary operation; inputs a, b.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// a + b.
    Add,
    /// a·b.
    Multiply,
}

/// Returns the index space of the output with views of both inputs and the output.
fn output_space(a: &[usize], b: &[usize], y: &[usize]) -> Result<Space<3>, String> {
    Space::new(y, [View::broadcast(a, y), View::broadcast(b, y), View::contiguous(y)])
}

impl Binary {
    /// Returns the reduction of dy, or of dy·other for a product, to the gradient of an input.
    fn reduction(self, input: &[usize], other: &[usize], y: &[usize]) -> Result<Sum, String> {
        let factor = match self {
            Binary::Add => View::contiguous(y),
            Binary::Multiply => View::broadcast(other, y),
        };
        Sum::new(y, input, factor)
    }

    /// Computes the gradient of an input; `other` is the other factor of a product.
    fn gradient(self, dy: &Tensor, other: Option<&Tensor>, grad: &mut GradBuffer) {
        let (GradBuffer { tensor: dx, accumulate }, y) = (grad, dy.shape());
        match other {
            Some(other) if dx.len() == dy.len() => {
                let space = checked(output_space(y, other.shape(), y));
                strided::binary(&space, Binary::Multiply, [dy, other], dx, *accumulate);
            }
            _ => {
                let other_shape = other.map_or(y, Tensor::shape);
                let sum = checked(self.reduction(dx.shape(), other_shape, y));
                strided::sum(&sum, dy, other, dx, 1.0, *accumulate);
            }
        }
    }
}

impl Strided for Binary {}

impl Op for Binary {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [a, b] = inputs else { return Err("takes two inputs".into()) };
        let y = strided::broadcast_shape(a, b)?;
        output_space(a, b, &y)?;
        for [input, other] in [[a, b], [b, a]] {
            if input.iter().product::<usize>() != y.iter().product::<usize>() {
                self.reduction(input, other, &y)?;
            }
        }
        Ok(y)
    }

    fn kept(&self, inputs: &[&Tensor], _out: &Tensor) -> Saved {
        if *self == Binary::Add { vec![] } else { vec![inputs[0].clone(), inputs[1].clone()] }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [a, b] = [inputs[0], inputs[1]];
        let space = checked(output_space(a.shape(), b.shape(), out.shape()));
        strided::binary(&space, *self, [a, b], out, false);
        if *self == Binary::Add { vec![] } else { vec![a.clone(), b.clone()] }
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let lengths: Vec<usize> = grads.shapes().map(|shape| shape.iter().product()).collect();
        for (i, length) in lengths.into_iter().enumerate() {
            if *self == Binary::Add && length == dy.len() {
                grads.accumulate(i, dy.clone());
            } else if let Some(grad) = grads.buffer(i) {
                self.gradient(&dy, saved.get(1 - i), grad);
            }
        }
    }
}

/// Returns test cases: equal shapes, some larger than a block of work, a bias, a per-sample gate, a column, a scalar,
/// two broadcast inputs, three and more axes, sums in several chunks over rows and over columns, vectors, single
/// elements.
pub fn cases() -> Vec<Case> {
    let shapes: [[&[usize]; 2]; 14] = [
        [&[1], &[1]],
        [&[3, 37], &[3, 37]],
        [&[41, 999], &[41, 999]],
        [&[5, 7, 16], &[16]],
        [&[3], &[9, 1, 3]],
        [&[2, 9, 24], &[2, 1, 24]],
        [&[2, 9, 24], &[2, 9, 1]],
        [&[4, 1, 3], &[1, 5, 1]],
        [&[2, 3, 4, 5], &[3, 1, 5]],
        [&[2, 3, 2, 3, 8], &[3, 1, 3, 1]],
        [&[6, 40], &[6, 1]],
        [&[3, 2500], &[1]],
        [&[500, 96], &[96]],
        [&[4096, 1024], &[1024]],
    ];
    let both =
        |[a, b]: [&[usize]; 2]| [Binary::Add, Binary::Multiply].map(|op| Case::new(op, &[a, b]));
    shapes.into_iter().flat_map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_numpys_rules() {
        let shape = |a: &[usize], b: &[usize]| Binary::Add.shape(&[a, b]);
        assert_eq!(shape(&[4, 1, 3], &[5, 1]).unwrap(), [4, 5, 3]);
        assert_eq!(shape(&[], &[2, 3]).unwrap(), [2, 3]);
        assert_eq!(shape(&[0, 3], &[1]).unwrap(), [0, 3]);
        assert!(shape(&[4, 2], &[3]).unwrap_err().contains("2 and 3 of axis 1"));
        assert!(shape(&[2], &[0]).is_err());
    }
}
