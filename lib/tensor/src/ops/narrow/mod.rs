//! Slice along an axis: y = x[.., start..start+length, ..]. A split consists of several slices. The gradient is dy
//! inside the slice and 0 elsewhere.

use super::strided::{self, Space, Strided, View, checked};
use crate::op::{Case, Grads, Op, Saved};
use crate::tensor::Tensor;

/// Takes `length` indices of `axis`, starting at `start`; input x.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// Axis to slice.
    pub axis: usize,
    /// First index.
    pub start: usize,
    /// Number of indices.
    pub length: usize,
}

/// Returns the index spaces of a slice of shape `part` that begins at `start` of `axis` in a tensor of shape `whole`:
/// first with the views (whole, slice), then with (slice, whole).
pub(super) fn part_space(
    whole: &[usize],
    part: &[usize],
    axis: usize,
    start: usize,
) -> Result<[Space<2>; 2], String> {
    let [outer, inner] = [View::contiguous(whole).narrowed(axis, start), View::contiguous(part)];
    Ok([Space::new(part, [outer.clone(), inner.clone()])?, Space::new(part, [inner, outer])?])
}

impl Strided for Narrow {}

impl Op for Narrow {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let [x] = inputs else { return Err("takes one input".into()) };
        let Self { axis, start, length } = *self;
        match x.get(axis) {
            Some(size) if start.checked_add(length).is_some_and(|end| end <= *size) => {}
            Some(size) => {
                return Err(format!("cannot take {length} from {start} of an axis of size {size}"));
            }
            None => return Err(format!("has no axis {axis}")),
        }
        let mut y = x.to_vec();
        y[axis] = length;
        part_space(x, &y, axis, start)?;
        Ok(y)
    }

    fn kept(&self, _inputs: &[&Tensor], _out: &Tensor) -> Saved {
        vec![]
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let spaces = part_space(inputs[0].shape(), out.shape(), self.axis, self.start);
        let [space, _] = checked(spaces);
        strided::copy(&space, inputs[0], out, 1.0, false);
        vec![]
    }

    fn backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            if !grad.accumulate {
                grad.tensor.zero();
            }
            let spaces = part_space(grad.tensor.shape(), dy.shape(), self.axis, self.start);
            let [_, space] = checked(spaces);
            strided::copy(&space, &dy, &mut grad.tensor, 1.0, grad.accumulate);
        }
    }
}

/// Returns test cases along each axis: at the start, inside and at the end, one index, all indices; offsets that do and
/// do not allow vector access.
pub fn cases() -> Vec<Case> {
    let case = |shape: &[usize], axis: usize, start: usize, length: usize| {
        Case::new(Narrow { axis, start, length }, &[shape])
    };
    vec![
        case(&[5], 0, 1, 3),
        case(&[5, 7], 0, 4, 1),
        case(&[5, 7], 1, 6, 1),
        case(&[2, 9, 24], 1, 3, 5),
        case(&[2, 9, 24], 2, 8, 16),
        case(&[2, 9, 24], 2, 3, 7),
        case(&[2, 3, 1], 2, 0, 1),
        case(&[3, 4, 5, 8], 1, 1, 2),
        case(&[4096, 1536], 1, 512, 512),
    ]
}
