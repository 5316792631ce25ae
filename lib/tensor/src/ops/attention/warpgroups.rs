//! Launches of the Hopper attention kernels, which use warpgroup MMA and, where they apply, outperform the generic
//! ones.

use super::cuda::{Call, HALF};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Arg, Grid, Source, has_warpgroups, multiprocessors, product, source};
use crate::tensor::Tensor;

/// Forward kernels.
pub static FORWARD: Source = source!("attention_wgmma_forward", HALF, Some("sm_90a"));
/// Query gradient kernels.
pub static QUERY_GRADIENT: Source = source!("attention_wgmma_query_gradient", HALF, Some("sm_90a"));
/// Key and value gradient kernels.
pub static KEY_GRADIENT: Source = source!("attention_wgmma_key_gradient", HALF, Some("sm_90a"));

/// Rows and threads per block: ROWS and THREADS in attention_wgmma.cuh.
const ROWS: usize = 128;
const THREADS: usize = 384;
/// Rows of the key and value tiles in the forward pass; shared memory holds two tiles of each.
const KEYS: usize = 128;

/// Returns the number of rows of the tiles that a gradient kernel iterates over; registers limit this number.
fn inner_tile_rows(call: &Call) -> usize {
    if call.s.dim == 64 && call.dropped.is_none() { 128 } else { 64 }
}

/// Returns the bytes of shared memory for tiles with `rows` rows in total, plus space for alignment.
fn shared(rows: usize, dim: usize) -> usize {
    1024 + 2 * rows * dim
}

/// Returns whether the kernels apply: a 16-bit dtype, one sequence, head size 64, or 128 without dropout, and wgmma
/// available and allowed.
pub(super) fn apply(call: &Call) -> bool {
    let Call { s, operands, .. } = call;
    call.element != Dtype::F32
        && (s.dim == 64 || s.dim == 128 && call.dropped.is_none())
        && operands.iter().all(|operand| operand.second.is_none())
        && product::allows_wgmma()
        && has_warpgroups(operands[0].first.device())
}

/// Returns a tensor map with boxes of `rows` × 64 elements over a tensor [batch, count, heads, dim].
fn map<'a>(call: &Call, x: &'a Tensor, stride: usize, count: usize, rows: usize) -> Arg<'a> {
    let dim = call.s.dim;
    let extents = [dim, stride / dim, count, call.s.batch];
    Arg::tensor_map(x, extents, [dim, stride, count * stride], [64, 1, rows, 1])
}

/// Returns the arguments shared by all kernels (CALL_PARAMETERS).
fn numbers<'a>(call: &Call<'a>) -> Vec<Arg<'a>> {
    let (s, scale) = (call.s, 1.0 / (call.s.dim as f32).sqrt());
    let [q, k, v] = [0, 1, 2].map(|i| call.operands[i].start / s.dim);
    let mut all = vec![Arg::from(call.lengths)];
    all.extend([s.batch, s.queries, s.keys, s.heads, s.group(), q, k, v].map(Arg::from));
    all.extend_from_slice(args![call.op.mask.causal, scale, scale * std::f32::consts::LOG2_E]);
    all
}

/// Returns the FLOPs of `products` matrix products between a block's tile and `width` rows of the other sequence.
fn operations(call: &Call, products: usize, width: usize, rows: usize) -> usize {
    let scores = ROWS * width.next_multiple_of(rows);
    2 * products * call.s.dim * if call.op.mask.causal { scores / 2 } else { scores }
}

/// Picks a kernel name from those for head size 64, head size 128, and head size 64 with dropout.
fn pick(call: &Call, names: [&'static str; 3]) -> &'static str {
    let [small, large, dropout] = names;
    match (call.dropped, call.s.dim) {
        (Some(_), _) => dropout,
        (None, 64) => small,
        _ => large,
    }
}

pub(super) fn forward(call: &Call, out: &mut Tensor, log_sums: &mut Tensor) {
    let (s, [q, k, v]) = (call.s, &call.operands);
    let tiles = s.queries.div_ceil(ROWS) * s.heads * s.batch;
    // Persistent blocks, one per multiprocessor.
    let blocks = tiles.min(multiprocessors(out.device()));
    let operations = operations(call, 2, s.keys, KEYS) * tiles.div_ceil(blocks.max(1));
    let grid = Grid::new(blocks, THREADS).shared(shared(ROWS + 4 * KEYS, s.dim));
    let maps = [(q, s.queries, ROWS), (k, s.keys, KEYS), (v, s.keys, KEYS)]
        .map(|(x, count, rows)| map(call, &x.first, x.stride, count, rows));
    let args = [&maps[..], &numbers(call), args![out, log_sums], &call.dropout()].concat();
    let name = pick(
        call,
        [
            "attention_wgmma_forward_64",
            "attention_wgmma_forward_128",
            "attention_wgmma_forward_dropout_64",
        ],
    );
    FORWARD.launch(call.element, name, grid.flops(operations), &args);
}

/// Tensors from which the gradients are computed.
pub(super) struct Given<'a> {
    /// Gradient of the output.
    pub(super) dy: &'a Tensor,
    pub(super) log_sums: &'a Tensor,
    pub(super) delta: &'a Tensor,
}

impl Given<'_> {
    /// Returns the common arguments of a gradient kernel with tiles of `queries` rows of queries and `keys` of keys.
    fn args<'a>(&'a self, call: &'a Call, queries: usize, keys: usize) -> Vec<Arg<'a>> {
        let (s, [q, k, v]) = (call.s, &call.operands);
        let mut all = vec![
            map(call, &q.first, q.stride, s.queries, queries),
            map(call, self.dy, s.heads * s.dim, s.queries, queries),
            map(call, &k.first, k.stride, s.keys, keys),
            map(call, &v.first, v.stride, s.keys, keys),
        ];
        all.extend(numbers(call));
        all.extend_from_slice(args![self.log_sums, self.delta]);
        all
    }
}

fn gradient_grid(call: &Call, blocks: usize, products: usize, width: usize, others: usize) -> Grid {
    Grid::new(blocks, THREADS)
        .shared(shared(2 * ROWS + 4 * others, call.s.dim))
        .flops(operations(call, products, width, others))
}

/// Writes the query gradient to `dq`, or accumulates if `add` is set.
pub(super) fn query_gradient(call: &Call, given: &Given, dq: Arg, add: Arg) {
    let (s, others) = (call.s, inner_tile_rows(call));
    let blocks = s.queries.div_ceil(ROWS) * s.heads * s.batch;
    let grid = gradient_grid(call, blocks, 3, s.keys, others);
    let target = [dq, Arg::from(call.operands[0].stride), add];
    let args = [&given.args(call, ROWS, others)[..], &target, &call.dropout()].concat();
    let name = pick(
        call,
        [
            "attention_wgmma_query_gradient_64",
            "attention_wgmma_query_gradient_128",
            "attention_wgmma_query_gradient_dropout_64",
        ],
    );
    QUERY_GRADIENT.launch(call.element, name, grid, &args);
}

/// Writes or accumulates the key and value gradients; a null target is skipped.
pub(super) fn key_gradient(
    call: &Call,
    given: &Given,
    [dk, dv]: [Arg; 2],
    [k_add, v_add]: [Arg; 2],
) {
    let (s, others) = (call.s, inner_tile_rows(call));
    let blocks = s.keys.div_ceil(ROWS) * s.kv_heads * s.batch;
    let grid = gradient_grid(call, blocks, 4, s.queries * s.group(), others);
    let [k_stride, v_stride] = [1, 2].map(|i| Arg::from(call.operands[i].stride));
    let targets = [dk, dv, k_stride, v_stride, k_add, v_add];
    let args = [&given.args(call, others, ROWS)[..], &targets, &call.dropout()].concat();
    let name = pick(
        call,
        [
            "attention_wgmma_key_gradient_64",
            "attention_wgmma_key_gradient_128",
            "attention_wgmma_key_gradient_dropout_64",
        ],
    );
    KEY_GRADIENT.launch(call.element, name, grid, &args);
}
