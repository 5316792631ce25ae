use super::{Coefficients, Depth, Form, Sizes, Width};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::reduce_rows::{self, Target, zeroed};
use crate::kernel::{ALL_DTYPES, Arg, Grid, ONLY_F32, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::normalization::NormKind;
use crate::tensor::Tensor;

/// Source of the kernels for the coefficients and for the input of a branch.
pub static SOURCE: Source = source!("hyper_connection", ALL_DTYPES);
/// Source of the kernels for the normalized input of a branch.
pub static NORM: Source = source!("hyper_connection_norm", ALL_DTYPES);
/// Source of the kernels for the streams after a branch.
pub static DEPTH: Source = source!("hyper_connection_depth", ALL_DTYPES);
/// Source of the kernels for the coefficients of tokens and for the parameters.
pub static TOKENS: Source = source!("hyper_connection_tokens", ONLY_F32);

/// Threads per block with one token per warp, and with one column of parameters per thread.
const THREADS: usize = 256;
/// Threads per block with one token per thread.
const TOKEN_THREADS: usize = 64;
/// Blocks that sum the gradient of the weights: four for each of 132 multiprocessors.
const COLUMN_BLOCKS: usize = 528;
/// Minimum number of tokens over which a block sums.
const TOKENS_PER_PART: usize = 4;

const DOTS: [&str; 4] = [
    "hyper_connection_dots_1",
    "hyper_connection_dots_2",
    "hyper_connection_dots_3",
    "hyper_connection_dots_4",
];
const COLUMNS: [&str; 4] = [
    "hyper_connection_columns_1",
    "hyper_connection_columns_2",
    "hyper_connection_columns_3",
    "hyper_connection_columns_4",
];
const DEPTH_BACKWARD: [&str; 4] = [
    "hyper_connection_depth_backward_1",
    "hyper_connection_depth_backward_2",
    "hyper_connection_depth_backward_3",
    "hyper_connection_depth_backward_4",
];

/// A grid with one warp per token.
fn warps(tokens: usize) -> Grid {
    Grid::new(tokens.div_ceil(THREADS / 32), THREADS)
}

/// The arguments for a gradient that may not be needed: its tensor, and whether to add to it.
fn gradient(grad: Option<&mut GradBuffer>) -> [Arg<'_>; 2] {
    let add = grad.as_ref().is_some_and(|grad| grad.accumulate);
    [Arg::from(grad.map(|grad| &mut grad.tensor)), Arg::from(add)]
}

impl Coefficients {
    /// The arguments that kernels for tokens share: features, α, β⁰, p, r and q, and whether the form is
    /// [`Form::Manifold`].
    fn args<'a>(self, inputs: &[&'a Tensor], features: &'a Tensor) -> Vec<Arg<'a>> {
        let scales = self.scales().map(|i| Arg::from(inputs[i]));
        let first = args![features, inputs[3], inputs[5]];
        [first, &scales, args![self.0 == Form::Manifold]].concat()
    }
}

/// Sums over tokens for vectors of m: the blocks of a kernel do not cross groups of tokens, and each writes its own sums.
struct BlockSums {
    /// f32 [groups, parts, vectors, H], if the gradient is needed.
    tensor: Option<Tensor>,
    groups: usize,
    /// Blocks of a group.
    parts: usize,
}

impl BlockSums {
    fn new(x: &Tensor, tokens: usize, rows: usize, vectors: usize, is_wanted: bool) -> Self {
        let (groups, parts) = (tokens / rows.max(1), rows.div_ceil(THREADS / 32));
        let shape = [groups, parts, vectors, x.width()];
        let tensor = is_wanted.then(|| Tensor::empty_on(x.device(), &shape, Dtype::F32));
        Self { tensor, groups, parts }
    }

    fn grid(&self) -> Grid {
        Grid::new(self.groups * self.parts, THREADS)
    }

    /// Adds each sum to the vector of dm that begins at one of `starts`.
    fn add_to(&self, dm: Option<&mut GradBuffer>, starts: &[usize]) {
        let Some((dm, partials)) = dm.zip(self.tensor.as_ref()) else { return };
        let (element, stride) = (dm.tensor.dtype(), dm.tensor.width());
        // The other vectors of m get a zero gradient.
        let out = Arg::from(zeroed(dm));
        let target = |i: usize| starts.get(i).map(|start| Target { out, start: *start, add: true });
        reduce_rows::sum(partials, element, stride, [target(0), target(1)]);
    }
}

/// Where kernels find the scale and shift of each token in m.
struct TokenGroups {
    scale: usize,
    shift: usize,
    stride: usize,
    /// Tokens of a group.
    rows: usize,
}

impl TokenGroups {
    /// Returns `None` without a normalization; m is the third of `inputs`.
    fn of_norm(op: Width, inputs: &[&Tensor], tokens: usize) -> Option<Self> {
        let NormKind::Adaptive { shift, scale } = op.norm?.kind else { return None };
        let (m, width) = (*inputs.get(2)?, inputs[0].width());
        let rows = (tokens / m.rows().max(1)).max(1);
        Some(Self { scale: scale * width, shift: shift * width, stride: m.width(), rows })
    }
}

impl Launch for Coefficients {
    /// Saves the inputs, the folded weights [S + 2, H] and the features [T, S, S + 3].
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, sizes) = (inputs[0], Sizes::of(inputs[0]));
        let Sizes { tokens, streams, width } = sizes;
        let mut weights = Tensor::empty_on(x.device(), &[streams + 2, width], Dtype::F32);
        let shape = [tokens, streams, streams + 3];
        let mut features = Tensor::empty_on(x.device(), &shape, Dtype::F32);
        let args = args![inputs[1], inputs[2], inputs[4], &mut weights, streams, width];
        let grid = Grid::new(width.div_ceil(THREADS), THREADS);
        TOKENS.launch(Dtype::F32, "hyper_connection_tokens_fold", grid, args);
        let args = args![x, &weights, &mut features, tokens, width];
        SOURCE.launch(x.dtype(), DOTS[streams - 1], warps(tokens), args);
        let grid = Grid::new(tokens.div_ceil(TOKEN_THREADS), TOKEN_THREADS);
        let args = [self.args(inputs, &features), args![out, tokens, streams].to_vec()].concat();
        TOKENS.launch(Dtype::F32, "hyper_connection_tokens_mix", grid, &args);
        inputs.iter().map(|input| (*input).clone()).chain([weights, features]).collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let count = saved.len() - 2;
        let inputs: Vec<&Tensor> = saved[..count].iter().collect();
        let (weights, features) = (&saved[count], &saved[count + 1]);
        let (x, sizes) = (inputs[0], Sizes::of(inputs[0]));
        let Sizes { tokens, streams, width } = sizes;
        let empty = |shape: &[usize]| Tensor::empty_on(x.device(), shape, Dtype::F32);
        let fresh = |shape: &[usize]| GradBuffer { tensor: empty(shape), accumulate: false };

        let blocks = tokens.div_ceil(TOKEN_THREADS);
        let mut gradients = empty(&[tokens, streams, streams + 3]);
        let mut partials = empty(&[blocks, sizes.sums()]);
        let sized = args![&dy, &mut gradients, &mut partials, tokens, streams, width];
        let args = [self.args(&inputs, features), sized.to_vec()].concat();
        let grid = Grid::new(blocks, TOKEN_THREADS);
        TOKENS.launch(Dtype::F32, "hyper_connection_tokens_backward", grid, &args);
        let mut sums = fresh(&[sizes.sums()]);
        reduce_rows::sum_to(&partials, &mut sums);

        let is_manifold = self.0 == Form::Manifold;
        let [dx, dgamma, da, dalpha, db, dbeta, dp, second, third] =
            grads.buffers([0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let (dr, dq) = if is_manifold { (second, third) } else { (None, second) };
        let each = [dalpha, dbeta, dp, dr, dq].map(gradient).concat();
        let args = [args![&sums.tensor], &each, args![is_manifold, streams]].concat();
        TOKENS.launch(Dtype::F32, "hyper_connection_tokens_scales", Grid::new(1, 64), &args);

        let vector = 16 / x.dtype().bytes();
        let units = if width.is_multiple_of(vector) { width / vector } else { width };
        let threads = units.next_multiple_of(32).min(THREADS);
        let columns = units.div_ceil(threads);
        let most = (COLUMN_BLOCKS / columns).max(1);
        let parts = tokens.div_ceil(TOKENS_PER_PART).clamp(1, most);
        let is_wanted = dgamma.is_some() || da.is_some() || db.is_some();
        let mut partials = is_wanted.then(|| empty(&[parts, streams + 2, width]));
        let [dx, add] = gradient(dx);
        let args = args![x, weights, &gradients, dx, add, partials.as_mut(), tokens, width, parts];
        SOURCE.launch(x.dtype(), COLUMNS[streams - 1], Grid::new(parts * columns, threads), args);
        let Some(partials) = partials else { return };
        let mut sums = fresh(&[streams + 2, width]);
        reduce_rows::sum_to(&partials, &mut sums);
        let first = args![&sums.tensor, inputs[1], inputs[2], inputs[4]];
        let each = [dgamma, da, db].map(gradient).concat();
        let args = [first, &each, args![streams, width]].concat();
        let grid = Grid::new(width.div_ceil(THREADS), THREADS);
        TOKENS.launch(Dtype::F32, "hyper_connection_tokens_weights", grid, &args);
    }
}

impl Launch for Width {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let ([x, c], dtype) = ([inputs[0], inputs[1]], out.dtype());
        let Sizes { tokens, streams, width } = Sizes::of(x);
        if let Some((norm, groups)) = self.norm.zip(TokenGroups::of_norm(*self, inputs, tokens)) {
            let mut stats = Tensor::empty_on(x.device(), &[tokens, 2], Dtype::F32);
            let m = inputs[2];
            let TokenGroups { scale, shift, stride, rows } = groups;
            let [scale, shift, stride] = [scale, shift, stride].map(|n| n as i64);
            let first = args![x, c, m, scale, shift, stride, rows, norm.epsilon as f32];
            let args = [first, args![&mut stats, out, tokens, streams, width]].concat();
            NORM.launch(dtype, "hyper_connection_norm", warps(tokens), &args);
            return vec![x.clone(), c.clone(), m.clone(), stats];
        }
        let args = args![x, c, out, tokens, streams, width];
        let grid = units::grid(dtype, tokens, width);
        SOURCE.launch(dtype, "hyper_connection_width", grid, args);
        vec![x.clone(), c.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, c] = [&saved[0], &saved[1]];
        let Sizes { tokens, streams, width } = Sizes::of(x);
        let all: Vec<&Tensor> = saved.iter().collect();
        if let Some(groups) = TokenGroups::of_norm(*self, &all, tokens) {
            let [dx, dc, dm] = grads.buffers([0, 1, 2]);
            let mut partials = BlockSums::new(x, tokens, groups.rows, 2, dm.is_some());
            let TokenGroups { scale, shift, stride, rows } = groups;
            let first = args![x, c, &saved[2], scale as i64, stride as i64, rows, &saved[3], &dy];
            let each = [dx, dc].map(gradient).concat();
            let grid = partials.grid();
            let sized = args![partials.tensor.as_mut(), partials.parts, streams, width];
            let args = [first, &each, sized].concat();
            NORM.launch(x.dtype(), "hyper_connection_norm_backward", grid, &args);
            return partials.add_to(dm, &[scale, shift]);
        }
        let each = grads.buffers([0, 1]).map(gradient).concat();
        let args = [args![x, c, &dy], &each, args![tokens, streams, width]].concat();
        SOURCE.launch(x.dtype(), "hyper_connection_width_backward", warps(tokens), &args);
    }
}

/// Where kernels find the gain of each token.
struct TokenGains<'a> {
    m: Option<&'a Tensor>,
    start: usize,
    stride: usize,
    /// Tokens of a group.
    rows: usize,
}

impl<'a> TokenGains<'a> {
    fn new(op: Depth, inputs: &[&'a Tensor], tokens: usize) -> Self {
        match op.gain(inputs) {
            Some((gain, m)) => {
                let (start, stride, rows) = (gain.start, gain.stride, gain.group(tokens));
                Self { m: Some(m), start, stride, rows }
            }
            None => Self { m: None, start: 0, stride: 0, rows: tokens },
        }
    }

    fn args(&self) -> Vec<Arg<'a>> {
        args![self.m, self.start as i64, self.stride as i64, self.rows].to_vec()
    }
}

impl Launch for Depth {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let ([x, c, branch], dtype) = ([inputs[0], inputs[1], inputs[2]], out.dtype());
        let Sizes { tokens, streams, width } = Sizes::of(x);
        let gain = TokenGains::new(*self, inputs, tokens);
        let args = [args![x, c, branch], &gain.args(), args![out, tokens, streams, width]].concat();
        let grid = units::grid(dtype, tokens, width);
        DEPTH.launch(dtype, "hyper_connection_depth", grid, &args);
        inputs.iter().map(|input| (*input).clone()).collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, c, branch] = [0, 1, 2].map(|i| &saved[i]);
        let Sizes { tokens, streams, width } = Sizes::of(x);
        let gain = TokenGains::new(*self, &saved.iter().collect::<Vec<_>>(), tokens);
        let [dx, dc, dbranch, dm] = grads.buffers([0, 1, 2, 3]);
        let mut partials = BlockSums::new(x, tokens, gain.rows, 1, dm.is_some());
        let each = [dx, dc, dbranch].map(gradient).concat();
        let grid = partials.grid();
        let sized = args![partials.tensor.as_mut(), partials.parts, width];
        let args = [args![x, c, branch], &gain.args(), args![&dy], &each, sized].concat();
        DEPTH.launch(x.dtype(), DEPTH_BACKWARD[streams - 1], grid, &args);
        partials.add_to(dm, &[gain.start]);
    }
}
