//! Copies, sums and products of strided tensors: the implementation of `binary`, `concat`, `narrow`, `permute` and
//! `reduce`.
//!
//! An index space is a list of axis sizes. A [`View`] maps it to the elements of a tensor: an offset and, for each
//! axis, a stride in elements, which is 0 along a broadcast axis. Adjacent axes along which all views of an operation
//! are contiguous are merged, so that most operations run over one to three axes; at most [`AXES`] may remain, which
//! [`Op::shape`] checks.

mod cpu;
pub(crate) mod cuda;

use super::binary::Binary;
use crate::device::Device;
use crate::op::{Grads, Launch, Op, Saved};
use crate::tensor::{Shape, Tensor};
use crate::with_float;

/// Marks an op that this module implements on every device.
pub(crate) trait Strided {}

impl<T: Op + Strided> Launch for T {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        self.forward(inputs, out)
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        self.backward(saved, dy, grads);
    }
}

/// Unwraps the space or sum for shapes that [`Op::shape`] has accepted.
pub(crate) fn checked<S>(space: Result<S, String>) -> S {
    space.unwrap_or_else(|why| unreachable!("an accepted shape {why}"))
}

/// Maximum number of axes of a merged index space; must match `strided.cu`.
pub(crate) const AXES: usize = 6;

/// Maximum number of kept axes and maximum number of reduced axes in a sum.
const HALF: usize = AXES / 2;

/// Maps an index space to the elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    start: usize,
    strides: Shape,
}

impl View {
    /// Returns a view of all elements of a contiguous tensor.
    pub(crate) fn contiguous(shape: &[usize]) -> Self {
        let mut strides = Shape::from_elem(1, shape.len());
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        Self { start: 0, strides }
    }

    /// Returns a view with the given strides that starts at the first element of a tensor.
    pub(crate) fn strided(strides: &[usize]) -> Self {
        Self { start: 0, strides: strides.into() }
    }

    /// Returns a view of a tensor of `shape`, broadcast to an index space of `sizes` by NumPy's rules.
    pub(crate) fn broadcast(shape: &[usize], sizes: &[usize]) -> Self {
        let missing = sizes.len() - shape.len();
        let mut strides = Shape::from_elem(0, sizes.len());
        for (axis, stride) in Self::contiguous(shape).strides.into_iter().enumerate() {
            if shape[axis] == sizes[missing + axis] {
                strides[missing + axis] = stride;
            }
        }
        Self { start: 0, strides }
    }

    /// Returns a view of the same elements with permuted axes: axis `i` is axis `order[i]` of this view.
    pub(crate) fn permuted(&self, order: &[usize]) -> Self {
        Self { start: self.start, strides: order.iter().map(|axis| self.strides[*axis]).collect() }
    }

    /// Returns a view of the elements starting at index `first` of `axis`.
    pub(crate) fn narrowed(&self, axis: usize, first: usize) -> Self {
        Self { start: self.start + first * self.strides[axis], strides: self.strides.clone() }
    }
}

/// A merged index space with `N` views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space<const N: usize> {
    sizes: [usize; AXES],
    starts: [usize; N],
    strides: [[usize; AXES]; N],
}

impl<const N: usize> Space<N> {
    /// Merges contiguous axes. Errors: more than [`AXES`] axes remain after merging.
    pub(crate) fn new(sizes: &[usize], views: [View; N]) -> Result<Self, String> {
        let mut merged: Vec<(usize, [usize; N])> = Vec::new();
        for (axis, size) in sizes.iter().enumerate().filter(|(_, size)| **size != 1) {
            let strides = views.each_ref().map(|view| view.strides[axis]);
            match merged.last_mut() {
                Some((outer, before)) if (0..N).all(|i| before[i] == strides[i] * size) => {
                    (*outer, *before) = (*outer * size, strides);
                }
                _ => merged.push((*size, strides)),
            }
        }
        Self::padded(&merged, AXES, views.map(|view| view.start))
    }

    /// Places `axes` at the end of the first `end` axes; all other axes get size 1.
    fn padded(
        axes: &[(usize, [usize; N])],
        end: usize,
        starts: [usize; N],
    ) -> Result<Self, String> {
        let Some(first) = end.checked_sub(axes.len()) else {
            return Err(format!("needs more than {end} axes after merging contiguous ones"));
        };
        let mut space = Self { sizes: [1; AXES], starts, strides: [[0; AXES]; N] };
        for (axis, (size, strides)) in (first..).zip(axes) {
            space.sizes[axis] = *size;
            (0..N).for_each(|i| space.strides[i][axis] = strides[i]);
        }
        Ok(space)
    }

    /// Returns the number of indices in the space.
    fn len(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the position in each tensor of the `n`-th index over `axes`.
    fn positions(&self, axes: std::ops::Range<usize>, mut n: usize) -> [usize; N] {
        let mut positions = self.starts;
        for axis in axes.rev() {
            let index = n % self.sizes[axis];
            n /= self.sizes[axis];
            (0..N).for_each(|i| positions[i] += index * self.strides[i][axis]);
        }
        positions
    }
}

/// Returns the shape to which both shapes are broadcast. Errors: two sizes differ and neither is 1.
pub(crate) fn broadcast_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |own| shape[own])
    };
    (0..rank)
        .map(|axis| match (size(a, axis), size(b, axis)) {
            (a, b) if a == b => Ok(a),
            (1, size) | (size, 1) => Ok(size),
            (a, b) => Err(format!("sizes {a} and {b} of axis {axis} cannot be broadcast")),
        })
        .collect()
}

/// Writes scale·x to `out`, or accumulates; `space` has views of x and out.
pub(crate) fn copy(space: &Space<2>, x: &Tensor, out: &mut Tensor, scale: f64, accumulate: bool) {
    match out.device() {
        Device::Cpu => with_float!(out.dtype(), T => {
            cpu::copy::<T>(space, x.read(), out.write(), scale, accumulate);
        }),
        _ => cuda::copy(space, x, out, scale, accumulate),
    }
}

/// Writes f(a, b) to `out`, or accumulates; `space` has views of a, b and out.
pub(crate) fn binary(
    space: &Space<3>,
    function: Binary,
    [a, b]: [&Tensor; 2],
    out: &mut Tensor,
    accumulate: bool,
) {
    match out.device() {
        Device::Cpu => with_float!(out.dtype(), T => {
            cpu::binary::<T>(space, function, [a.read(), b.read()], out.write(), accumulate);
        }),
        _ => cuda::binary(space, function, [a, b], out, accumulate),
    }
}

/// An index space that is reduced over some axes. The kept axes come first, in the order of a contiguous result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Kept axes end at [`HALF`], reduced axes at [`AXES`]; views of x and of its factor.
    space: Space<2>,
    kept: usize,
    reduced: usize,
    /// Whether adjacent elements of x belong to the same sum.
    rows: bool,
}

impl Sum {
    /// Creates the sum of x, of shape `sizes`, to the shape `kept`, which broadcasts to `sizes`; `factor` is a view of
    /// an optional elementwise factor. Errors: kept and reduced axes alternate too often.
    pub(crate) fn new(sizes: &[usize], kept: &[usize], factor: View) -> Result<Self, String> {
        let views = [View::contiguous(sizes), factor, View::broadcast(kept, sizes)];
        let space = Space::new(sizes, views)?;
        let axes = |reduced: bool| -> Vec<(usize, [usize; 2])> {
            let [x, factor, out] = &space.strides;
            let axes = (0..AXES).filter(|i| space.sizes[*i] != 1 && (out[*i] == 0) == reduced);
            axes.map(|i| (space.sizes[i], [x[i], factor[i]])).collect()
        };
        let rows = space.sizes[AXES - 1] != 1 && space.strides[2][AXES - 1] == 0;
        let starts = [space.starts[0], space.starts[1]];
        let mut sum = Space::padded(&axes(false), HALF, starts)?;
        let reduced = axes(true);
        let inner = Space::padded(&reduced, HALF, starts)?;
        for axis in 0..HALF {
            sum.sizes[HALF + axis] = inner.sizes[axis];
            (0..2).for_each(|i| sum.strides[i][HALF + axis] = inner.strides[i][axis]);
        }
        let len = |axes: std::ops::Range<usize>| sum.sizes[axes].iter().product();
        Ok(Self { kept: len(0..HALF), reduced: len(HALF..AXES), space: sum, rows })
    }
}

/// Writes scale·Σ x or scale·Σ x·factor to `out`, or accumulates; the order of summation depends only on the sizes.
pub(crate) fn sum(
    sum: &Sum,
    x: &Tensor,
    factor: Option<&Tensor>,
    out: &mut Tensor,
    scale: f64,
    accumulate: bool,
) {
    match out.device() {
        Device::Cpu => with_float!(out.dtype(), T => {
            let factor = factor.map(Tensor::read);
            cpu::sum::<T>(sum, x.read(), factor, out.write(), scale, accumulate);
        }),
        _ => cuda::sum(sum, x, factor, out, scale, accumulate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_axes_are_merged() {
        let shape = [2, 3, 1, 4, 5];
        let same = View::contiguous(&shape);
        let space = Space::new(&shape, [same.clone(), same.clone()]).unwrap();
        assert_eq!((space.sizes, space.strides[0]), ([1, 1, 1, 1, 1, 120], [0, 0, 0, 0, 0, 1]));
        let row = View::broadcast(&[4, 5], &shape);
        let space = Space::new(&shape, [same.clone(), row]).unwrap();
        assert_eq!((space.sizes, space.strides[1]), ([1, 1, 1, 1, 6, 20], [0, 0, 0, 0, 0, 1]));
        assert_eq!((space.len(), space.positions(0..AXES, 47)), (120, [47, 7]));
        let part = same.narrowed(1, 2).permuted(&[1, 0, 2, 3, 4]);
        assert_eq!((part.start, &part.strides[..2]), (40, &[20, 60][..]));
    }

    #[test]
    fn an_index_space_of_too_many_axes_is_refused() {
        let sizes = [2; 7];
        let (x, reversed) = (View::contiguous(&sizes), View::contiguous(&sizes));
        let reversed = reversed.permuted(&[6, 5, 4, 3, 2, 1, 0]);
        let why = Space::new(&sizes, [x, reversed]).unwrap_err();
        assert!(why.contains("more than 6 axes"), "{why}");
    }
}
