//! The host side of `attention_rows.cu`: per-head row operations before and after the attention kernels.

use super::Attention;
use super::layout::{Segment, Sizes};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Grid, Source, columns};
use crate::op::GradBuffer;
use crate::tensor::Tensor;

/// Operations on single rows of heads.
pub static SOURCE: Source =
    Source { name: "attention_rows", text: include_str!("attention_rows.cu"), dtypes: ALL_DTYPES };

/// Threads of the kernels of [`SOURCE`].
const ROW_THREADS: usize = 256;

/// Maximum number of partial sums of a weight gradient.
const MOST_PARTIALS: usize = 256;

/// How rows of heads are assigned to lanes: lanes per row (a power of two), and blocks for `count` rows.
fn lanes(dim: usize, element: Dtype, count: usize) -> (usize, usize) {
    let lanes = dim.div_ceil(16 / element.bytes()).next_power_of_two();
    (lanes, count.div_ceil(ROW_THREADS / lanes))
}

/// Whether rows whose offsets are multiples of all `sizes` are aligned to 16 bytes.
pub(super) fn aligned(element: Dtype, sizes: &[usize]) -> bool {
    sizes.iter().all(|n| n.is_multiple_of(16 / element.bytes()))
}

/// The normalized queries or keys of one tensor: [B, T, heads·D].
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
    let (lanes, blocks) = lanes(s.dim, element, count);
    SOURCE.launch(
        element,
        "attention_rows_normalize",
        Grid::new(blocks, ROW_THREADS),
        args![
            x,
            w,
            &mut y,
            count as i64,
            heads,
            s.dim,
            lanes,
            at.stride,
            at.start,
            op.qk_norm.unwrap_or_default() as f32,
            aligned(element, &[s.dim, at.stride, at.start]),
        ],
    );
    y
}

/// Given the gradient of normalized queries or keys, the gradient of `x` (into `dx`) and of the weight.
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
    let (lanes, blocks) = lanes(s.dim, element, count);
    let blocks = blocks.div_ceil(4).min(MOST_PARTIALS);
    let mut partial = Tensor::empty_on(x.device(), &[blocks, s.dim], Dtype::F32);
    let add = dx.as_ref().is_some_and(|grad| grad.accumulate);
    SOURCE.launch(
        element,
        "attention_rows_normalize_backward",
        Grid::new(blocks, ROW_THREADS),
        args![
            x,
            w,
            dn,
            dx.map(|grad| &mut grad.tensor),
            &mut partial,
            count as i64,
            heads,
            s.dim,
            lanes,
            at.stride,
            at.start,
            op.qk_norm.unwrap_or_default() as f32,
            aligned(element, &[s.dim, at.stride, at.start]),
            add,
        ],
    );
    if let Some(dw) = dw {
        columns::sum_rows(&partial, dw);
    }
}

/// O . dO of every query and head: f32 [B, heads, queries].
pub(super) fn delta(s: Sizes, out: &Tensor, dy: &Tensor, log_sums: &Tensor) -> Tensor {
    let element = dy.dtype();
    let mut delta = Tensor::empty_on(dy.device(), log_sums.shape(), Dtype::F32);
    let count = delta.len();
    let (lanes, blocks) = lanes(s.dim, element, count);
    SOURCE.launch(
        element,
        "attention_rows_delta",
        Grid::new(blocks, ROW_THREADS),
        args![
            out,
            dy,
            &mut delta,
            count as i64,
            s.queries,
            s.heads,
            s.dim,
            lanes,
            aligned(element, &[s.dim]),
        ],
    );
    delta
}
