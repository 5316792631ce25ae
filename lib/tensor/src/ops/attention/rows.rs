//! Host side of `attention_rows.cu`: per-head row operations before and after the attention kernels.

use super::Attention;
use super::layout::{Segment, Sizes};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, reduce_rows, source};
use crate::op::GradBuffer;
use crate::tensor::Tensor;

/// Kernels that process the rows of each head independently.
pub static SOURCE: Source = source!("attention_rows", ALL_DTYPES);

/// Threads per block of the kernels in [`SOURCE`].
const ROW_THREADS: usize = 256;
/// Row elements per lane.
const CHUNK: usize = 8;

/// Maximum number of partial sums of a weight gradient.
const MOST_PARTIALS: usize = 256;

/// Returns the number of lanes per row of a head (a power of two) and the number of blocks for `count` rows.
fn lanes(dim: usize, count: usize) -> (usize, usize) {
    let lanes = dim.div_ceil(CHUNK).next_power_of_two();
    (lanes, count.div_ceil(ROW_THREADS / lanes))
}

/// Returns whether all `sizes`, in elements, are multiples of 16 bytes, which vector access requires.
pub(super) fn aligned(element: Dtype, sizes: &[usize]) -> bool {
    sizes.iter().all(|n| n.is_multiple_of(16 / element.bytes()))
}

/// Returns the scalar arguments shared by the forward and backward normalization kernels.
fn numbers(
    op: &Attention,
    s: Sizes,
    heads: usize,
    at: &Segment,
    lanes: usize,
    element: Dtype,
) -> [Arg<'static>; 7] {
    let aligned = usize::from(aligned(element, &[s.dim, at.stride, at.start]));
    let epsilon = Arg::from(op.qk_norm.unwrap_or_default() as f32);
    let [heads, dim, lanes, stride, start, aligned] =
        [heads, s.dim, lanes, at.stride, at.start, aligned].map(Arg::from);
    [heads, dim, lanes, stride, start, epsilon, aligned]
}

/// Returns the normalized queries or keys of one tensor: [B, T, heads·D].
pub(super) fn normalize(
    op: &Attention,
    s: Sizes,
    heads: usize,
    at: &Segment,
    [x, w]: [&Tensor; 2],
) -> Tensor {
    let element = x.dtype();
    let mut y = Tensor::empty_on(x.device(), &[s.batch, at.rows, heads * s.dim], element);
    let count = s.batch * at.rows * heads;
    let (lanes, blocks) = lanes(s.dim, count);
    let args = [args![x, w, &mut y, count as i64], &numbers(op, s, heads, at, lanes, element)];
    let grid = Grid::new(blocks, ROW_THREADS);
    SOURCE.launch(element, "attention_rows_normalize", grid, &args.concat());
    y
}

/// Computes the gradients of `x` and of the weight from `dn`, the gradient of the normalized queries or keys.
pub(super) fn normalize_backward(
    op: &Attention,
    s: Sizes,
    heads: usize,
    at: &Segment,
    [x, w, dn]: [&Tensor; 3],
    dx: Option<&mut GradBuffer>,
    dw: Option<&mut GradBuffer>,
) {
    let element = x.dtype();
    let count = s.batch * at.rows * heads;
    let (lanes, blocks) = lanes(s.dim, count);
    let blocks = blocks.div_ceil(4).min(MOST_PARTIALS);
    let mut partial = Tensor::empty_on(x.device(), &[blocks, s.dim], Dtype::F32);
    let add = dx.as_ref().is_some_and(|grad| grad.accumulate);
    let (dx, count) = (dx.map(|grad| &mut grad.tensor), count as i64);
    let tensors = args![x, w, dn, dx, &mut partial, count];
    let args = [tensors, &numbers(op, s, heads, at, lanes, element), args![add]].concat();
    let grid = Grid::new(blocks, ROW_THREADS);
    SOURCE.launch(element, "attention_rows_normalize_backward", grid, &args);
    if let Some(dw) = dw {
        reduce_rows::sum_to(&partial, dw);
    }
}

/// Returns the dot product of O and dO for every query and head: f32 [B, heads, queries].
pub(super) fn delta(s: Sizes, out: &Tensor, dy: &Tensor, log_sums: &Tensor) -> Tensor {
    let element = dy.dtype();
    let mut delta = Tensor::empty_on(dy.device(), log_sums.shape(), Dtype::F32);
    let count = delta.len();
    let (lanes, blocks) = lanes(s.dim, count);
    let (grid, aligned) = (Grid::new(blocks, ROW_THREADS), aligned(element, &[s.dim]));
    let args = args![out, dy, &mut delta, count as i64, s.queries, s.heads, s.dim, lanes, aligned];
    SOURCE.launch(element, "attention_rows_delta", grid, args);
    delta
}
