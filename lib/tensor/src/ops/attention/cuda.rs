//! Host side of the kernels: tiles, shared memory, arguments. Tiles depend on the head size and, for heads larger than
//! 64, on whether a block has the shared memory of a data center GPU. Otherwise results are bit-identical on every GPU.
//!
//! A separate kernel normalizes queries and keys into temporary tensors. If this were fused, keys would be normalized
//! again for every tile of queries.

use super::layout::{Segment, SegmentRole, Sizes, segments};
use super::rows::{aligned, delta, normalize, normalize_backward};
use super::warpgroups;
use super::{Attention, LARGEST_HEAD};
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::{Arg, Grid, ONLY_F32, Source, fail, most_shared, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::dropout::Dropout;
use crate::tensor::Tensor;
use unix::Error;

pub(super) const HALF: &[Dtype] = &[Dtype::Bf16, Dtype::F16];

/// Forward kernels on tensor cores. Each pass has its own source so that NVRTC compiles them in parallel.
pub static FORWARD: Source = source!("attention_forward", HALF);
/// Query gradient kernels on tensor cores; see [`FORWARD`].
pub static QUERY_GRADIENT: Source = source!("attention_query_gradient", HALF);
/// Key and value gradient kernels on tensor cores; see [`FORWARD`].
pub static KEY_GRADIENT: Source = source!("attention_key_gradient", HALF);

/// Forward kernels that use f32 multiply-adds instead of tensor cores.
pub static FORWARD_F32: Source = source!("attention_f32_forward", ONLY_F32);
/// Query gradient kernels for f32; see [`FORWARD_F32`].
pub static QUERY_GRADIENT_F32: Source = source!("attention_f32_query_gradient", ONLY_F32);
/// Key and value gradient kernels for f32; see [`FORWARD_F32`].
pub static KEY_GRADIENT_F32: Source = source!("attention_f32_key_gradient", ONLY_F32);

/// Sources of each pass: [16-bit dtypes, f32].
const SOURCES: [[&Source; 2]; 3] = [
    [&FORWARD, &FORWARD_F32],
    [&QUERY_GRADIENT, &QUERY_GRADIENT_F32],
    [&KEY_GRADIENT, &KEY_GRADIENT_F32],
];

/// A kernel for one padded head size: name, warps per block, rows of the tile that a block keeps, rows of the tiles
/// that it iterates over.
type Tile = (&'static str, usize, usize, usize);

/// Kernels for one padded head size: forward, query gradient, key gradient.
struct Kernels {
    size: usize,
    half: [Tile; 3],
    single: [Tile; 3],
}

/// Builds the [`Kernels`] of one head size. The numbers must match the instantiations at the end of the sources.
macro_rules! kernels {
    ($kind:literal, $size:literal, $forward:expr, $query:expr, $key:expr) => {
        kernels!($kind, $size, $forward, $query, $key, [[8, 64, 64]; 3])
    };
    ($kind:literal, $size:literal, $forward:expr, $query:expr, $key:expr, $single:expr) => {
        Kernels {
            size: $size,
            half: [
                tile(concat!("attention_forward", $kind, $size), $forward),
                tile(concat!("attention_query_gradient", $kind, $size), $query),
                tile(concat!("attention_key_gradient", $kind, $size), $key),
            ],
            single: [
                tile(concat!("attention_f32_forward", $kind, $size), $single[0]),
                tile(concat!("attention_f32_query_gradient", $kind, $size), $single[1]),
                tile(concat!("attention_f32_key_gradient", $kind, $size), $single[2]),
            ],
        }
    };
}

const fn tile(name: &'static str, [warps, rows, others]: [usize; 3]) -> Tile {
    (name, warps, rows, others)
}

/// f32 tiles for the largest head size, small enough for 99 KB of shared memory.
const LARGE_SINGLE: [[usize; 3]; 3] = [[4, 32, 16], [2, 16, 16], [2, 16, 16]];

/// Kernels by head size, first without and then with dropout. Dropout uses smaller tiles to limit register use.
const KERNELS: [[Kernels; 5]; 2] = [
    [
        kernels!("_", 16, [4, 64, 64], [4, 64, 64], [4, 64, 64]),
        kernels!("_", 32, [4, 64, 64], [4, 64, 64], [4, 64, 64]),
        kernels!("_", 64, [4, 128, 64], [4, 128, 32], [4, 128, 32]),
        kernels!("_", 128, [8, 128, 64], [8, 128, 64], [8, 128, 64]),
        kernels!("_", 256, [8, 128, 32], [4, 64, 16], [4, 64, 16], LARGE_SINGLE),
    ],
    [
        kernels!("_dropout_", 16, [4, 64, 64], [4, 64, 64], [4, 64, 64]),
        kernels!("_dropout_", 32, [4, 64, 64], [4, 64, 64], [4, 64, 64]),
        kernels!("_dropout_", 64, [4, 64, 64], [4, 64, 32], [8, 128, 32]),
        kernels!("_dropout_", 128, [8, 128, 32], [8, 128, 32], [8, 128, 16]),
        kernels!("_dropout_", 256, [8, 128, 16], [4, 64, 16], [4, 64, 16], LARGE_SINGLE),
    ],
];

/// Kernels for head sizes 65 to 128 on GPUs with 99 KB of shared memory per block (sm_86, sm_89, sm_120).
const SMALL: [Kernels; 2] = [
    Kernels {
        size: 128,
        half: [
            tile("attention_forward_128", [8, 128, 64]),
            tile("attention_query_gradient_small_128", [8, 128, 32]),
            tile("attention_key_gradient_small_128", [8, 128, 32]),
        ],
        single: [
            tile("attention_f32_forward_small_128", [8, 64, 16]),
            tile("attention_f32_query_gradient_small_128", [8, 64, 16]),
            tile("attention_f32_key_gradient_small_128", [8, 64, 16]),
        ],
    },
    Kernels {
        size: 128,
        half: KERNELS[1][3].half,
        single: [
            tile("attention_f32_forward_small_dropout_128", [8, 64, 16]),
            tile("attention_f32_query_gradient_small_dropout_128", [8, 64, 16]),
            tile("attention_f32_key_gradient_small_dropout_128", [8, 64, 16]),
        ],
    },
];

/// Kernel passes, in the order of [`SOURCES`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    QueryGradient,
    KeyGradient,
}

/// Queries, keys or values as kernel operands: one tensor, or two for joined sequences.
pub(super) struct Operand {
    pub(super) first: Tensor,
    pub(super) second: Option<Tensor>,
    pub(super) start: usize,
    pub(super) stride: usize,
}

/// Operands and parameters of one call, shared by forward and backward.
pub(super) struct Call<'a> {
    pub(super) op: &'a Attention,
    pub(super) s: Sizes,
    pub(super) element: Dtype,
    pub(super) operands: [Operand; 3],
    /// Rows per sample of the first query tensor and of the first key tensor.
    splits: [usize; 2],
    pub(super) lengths: Option<&'a Tensor>,
    pub(super) dropped: Option<(Dropout, &'a Tensor)>,
}

const PARTS: [SegmentRole; 3] = [SegmentRole::Queries, SegmentRole::Keys, SegmentRole::Values];

impl<'a> Call<'a> {
    /// Prepares the operands; normalizes queries and keys if requested.
    fn new(op: &'a Attention, inputs: &'a [&'a Tensor]) -> Self {
        let s = Sizes::of(op, inputs);
        let operands = PARTS.map(|part| {
            let segments = segments(op, s, part, inputs);
            let heads = if part == SegmentRole::Queries { s.heads } else { s.kv_heads };
            let tensor = |at: &Segment| match at.weight {
                Some(weight) => normalize(op, s, heads, at, [inputs[at.input], inputs[weight]]),
                None => inputs[at.input].clone(),
            };
            let dense = segments[0].weight.is_some();
            Operand {
                first: tensor(&segments[0]),
                second: segments.get(1).map(tensor),
                start: if dense { 0 } else { segments[0].start },
                stride: if dense { heads * s.dim } else { segments[0].stride },
            }
        });
        Call {
            op,
            s,
            element: inputs[0].dtype(),
            splits: [SegmentRole::Queries, SegmentRole::Keys]
                .map(|p| segments(op, s, p, inputs)[0].rows),
            operands,
            lengths: op.mask.padding.then(|| inputs[op.differentiated()]),
            dropped: op.dropped(inputs),
        }
    }

    /// Returns the last arguments of every kernel (DROPOUT_PARAMETERS).
    pub(super) fn dropout(&self) -> [Arg<'a>; 4] {
        let (op, counter) = self.dropped.unzip();
        let numbers = op.map(|op| (op.site, op.threshold(), op.scale() as f32));
        let (site, threshold, scale) = numbers.unwrap_or_default();
        [counter.into(), site.into(), threshold.into(), scale.into()]
    }

    /// Launches a kernel with the common arguments, `rest` and the dropout arguments.
    fn launch(&self, pass: Pass, rest: &[Arg]) {
        let s = self.s;
        let half = self.element != Dtype::F32;
        let drops = usize::from(self.dropped.is_some());
        let kernels = &KERNELS[drops];
        let kernels = &kernels[kernels.iter().filter(|k| s.dim > k.size).count()];
        let of = |kernels: &Kernels| {
            let tiles = if half { &kernels.half } else { &kernels.single };
            let (name, warps, rows, others) = tiles[pass as usize];
            let shared = shared_bytes(pass, self.element, kernels.size, rows, others);
            (name, warps, rows, others, shared)
        };
        let most = most_shared(self.operands[0].first.device());
        let (name, warps, rows, others, shared) = match of(kernels) {
            (.., shared) if shared > most && kernels.size == 128 => of(&SMALL[drops]),
            fits => fits,
        };
        // Rows of scores that are distributed over blocks, columns of scores, heads, and products per tile of scores.
        let (length, width, heads, products) = match pass {
            Pass::Forward => (s.queries, s.keys, s.heads, 2),
            Pass::QueryGradient => (s.queries, s.keys, s.heads, 3),
            Pass::KeyGradient => (s.keys, s.queries * s.group(), s.kv_heads, 4),
        };
        let scores = rows * width.next_multiple_of(others);
        let scores = if self.op.mask.causal { scores / 2 } else { scores };
        let [q, k, v] = &self.operands;
        let tensors = self.operands.iter().flat_map(|x| [Some(&x.first), x.second.as_ref()]);
        let strides = [q.stride, q.start, k.stride, k.start, v.stride, v.start];
        let aligned = aligned(self.element, &[&[s.dim], &strides[..]].concat());
        let [query_split, key_split] = self.splits;
        let sizes = [s.queries, query_split, s.keys, key_split, s.heads, s.group(), s.dim];
        let mut args: Vec<Arg> = tensors.chain([self.lengths]).map(Arg::from).collect();
        args.extend(sizes.into_iter().chain(strides).map(Arg::from));
        args.extend_from_slice(args![self.op.mask.causal, aligned, 1.0 / (s.dim as f32).sqrt()]);
        args.extend_from_slice(rest);
        args.extend(self.dropout());
        let source = SOURCES[pass as usize][usize::from(!half)];
        // For the largest head size, gradient columns are also distributed over blocks to limit register use.
        let parts = match (half, pass, kernels.size) {
            (true, Pass::KeyGradient, 256) => [2, 4][drops],
            _ => 1,
        };
        let blocks = length.div_ceil(rows) * heads * s.batch * parts;
        let operations = 2 * products * scores * kernels.size;
        let grid = Grid::new(blocks, 32 * warps).shared(shared).flops(operations);
        source.launch(self.element, name, grid, &args);
    }
}

/// Returns the bytes of dynamic shared memory per block; must match the layout at the start of each kernel.
fn shared_bytes(pass: Pass, element: Dtype, size: usize, rows: usize, others: usize) -> usize {
    if element == Dtype::F32 {
        // Rows are padded by four elements to avoid bank conflicts; scores go through shared memory.
        let tile = |rows: usize| rows * (size + 4) * 4;
        let scores = rows * (others + 4) * 4;
        return scores
            + match pass {
                Pass::Forward => tile(rows) + 2 * tile(others),
                Pass::QueryGradient | Pass::KeyGradient => 2 * tile(rows) + 2 * tile(others),
            };
    }
    let tile = |rows: usize| rows * size * element.bytes();
    match pass {
        Pass::Forward => tile(rows) + 2 * tile(others),
        Pass::QueryGradient => 2 * tile(rows) + 4 * tile(others),
        Pass::KeyGradient => 2 * tile(rows) + 4 * tile(others) + 4 * others * 4,
    }
}

/// Returns whether kernels support this head size; if not, records an error on the device.
fn supported(s: Sizes, device: Device) -> bool {
    if s.dim > LARGEST_HEAD {
        let why = format!(
            "attention kernels support head sizes of at most {LARGEST_HEAD}, not {}; increase the number of \
             heads",
            s.dim
        );
        fail(device, Error::usage(why));
    }
    s.dim <= LARGEST_HEAD
}

impl Launch for Attention {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let s = Sizes::of(self, inputs);
        let shape = [s.batch, s.heads, s.queries];
        let mut log_sums = Tensor::empty_on(out.device(), &shape, Dtype::F32);
        if supported(s, out.device()) {
            let call = Call::new(self, inputs);
            if warpgroups::apply(&call) {
                warpgroups::forward(&call, out, &mut log_sums);
            } else {
                call.launch(Pass::Forward, args![&mut *out, &mut log_sums]);
            }
        }
        let mut saved: Saved = inputs.iter().map(|x| (*x).clone()).collect();
        saved.extend([out.clone(), log_sums]);
        saved
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        backward(self, saved, &dy, grads);
    }
}

/// Destination of a gradient: the kernel argument and whether to accumulate.
type Target<'a> = Option<(Arg<'a>, bool)>;

fn target(grad: &mut GradBuffer) -> Target<'_> {
    Some((Arg::from(&mut grad.tensor), grad.accumulate))
}

/// Returns the kernel arguments for the targets of one or two segments: addresses, then accumulate flags.
fn addresses<'a>(targets: &[Target<'a>]) -> ([Arg<'a>; 2], [Arg<'a>; 2]) {
    let at = |i: usize| targets.get(i).copied().flatten();
    let null = Arg::from(None::<&Tensor>);
    let pointer = |i: usize| at(i).map_or(null, |(address, _)| address);
    let add = |i: usize| Arg::from(at(i).is_some_and(|(_, add)| add));
    ([pointer(0), pointer(1)], [add(0), add(1)])
}

fn backward(op: &Attention, saved: &Saved, dy: &Tensor, grads: &mut Grads) {
    let inputs: Vec<&Tensor> = saved.iter().take(saved.len() - 2).collect();
    let s = Sizes::of(op, &inputs);
    if !supported(s, dy.device()) {
        return;
    }
    let (out, log_sums) = (&saved[saved.len() - 2], &saved[saved.len() - 1]);
    let call = Call::new(op, &inputs);
    let delta = delta(s, out, dy, log_sums);
    let mut buffers = grads.buffers([0, 1, 2, 3, 4, 5]);
    let parts = PARTS.map(|part| segments(op, s, part, &inputs));
    // Gradients of normalized queries and keys are first written to temporary tensors.
    let mut dense = [0, 1].map(|i| {
        let Operand { first, second, .. } = &call.operands[i];
        let tensors = [Some(first), second.as_ref()].into_iter().flatten();
        let like = |x: &Tensor| Tensor::empty_on(x.device(), x.shape(), x.dtype());
        let grad = |x: &Tensor| GradBuffer { tensor: like(x), accumulate: false };
        if op.weights() > 0 { tensors.map(grad).collect() } else { vec![] }
    });
    {
        let buffers: Vec<Target> =
            buffers.iter_mut().map(|grad| grad.as_deref_mut().and_then(target)).collect();
        let of_inputs = |i: usize| parts[i].iter().map(|at| buffers[at.input]).collect::<Vec<_>>();
        let mut targets = [0, 1, 2].map(of_inputs);
        for (targets, dense) in targets.iter_mut().zip(&mut dense) {
            if !dense.is_empty() {
                *targets = dense.iter_mut().map(target).collect();
            }
        }
        let wanted = |i: usize| targets[i].iter().any(Option::is_some);
        let [(q, q_add), (k, k_add), (v, v_add)] = [0, 1, 2].map(|i| addresses(&targets[i]));
        let given: &[Arg] = args![dy, log_sums, &delta];
        let by_warpgroups =
            warpgroups::apply(&call).then_some(warpgroups::Given { dy, log_sums, delta: &delta });
        if wanted(0) {
            match &by_warpgroups {
                Some(given) => warpgroups::query_gradient(&call, given, q[0], q_add[0]),
                None => call.launch(Pass::QueryGradient, &[given, &q[..], &q_add].concat()),
            }
        }
        if let Some(given) = by_warpgroups.filter(|_| wanted(1) || wanted(2)) {
            warpgroups::key_gradient(&call, &given, [k[0], v[0]], [k_add[0], v_add[0]]);
        } else if wanted(1) || wanted(2) {
            call.launch(Pass::KeyGradient, &[given, &k[..], &v, &k_add, &v_add].concat());
        }
    }
    for (part, dense) in parts.iter().zip(&dense) {
        for (at, dn) in part.iter().zip(dense) {
            let Some(weight) = at.weight else { continue };
            let x = [inputs[at.input], inputs[weight], &dn.tensor];
            let heads = dn.tensor.width() / s.dim;
            let (operands, weights) = buffers.split_at_mut(op.operands());
            let dx = operands[at.input].as_deref_mut();
            let dw = weights[weight - op.operands()].as_deref_mut();
            normalize_backward(op, s, heads, at, x, dx, dw);
        }
    }
}
