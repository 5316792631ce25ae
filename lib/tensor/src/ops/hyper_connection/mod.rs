//! Hyper-connections (Zhu et al. 2024, algorithm 2) and manifold-constrained hyper-connections (Xie et al. 2025), as in
//! the package hyper-connections: S residual streams R [.., S, H] per token instead of one, S in 1..=4.
//!
//! A branch f reads u = Σ_s a_s·R_s, and the streams become R'_t = Σ_s P_st·R_s + β_t·f(u). Three ops:
//! - [`Coefficients`]: C [.., S·(S + 2)], which are a [S], P [S, S] and β [S] of each token, in f32. With the rows
//!   n_s = √H·R_s/‖R_s‖ ∘ (1 + γ), the products z_s = n_s·A [S + 1] and y_s = n_s·b, and learned scales p, r and q:
//!   - [`Form::Manifold`]: a_s = σ(p·z_s0 + α_s0), P = sinkhorn(r·z_s,1.. + α_s,1..), β_s = 2·σ(q·y_s + β⁰_s);
//!   - [`Form::Plain`]: (a_s, P_s) = α_s + p·tanh(z_s), β_s = β⁰_s + q·tanh(y_s).
//! - [`Width`]: u [.., H] from R and C, or its adaptive layer normalization.
//! - [`Depth`]: R' from R, C and f(u) [.., H], which may be scaled by 1 + g, a vector of each sample, as in adaptive
//!   blocks (Peebles & Xie 2023).
//!
//! The Sinkhorn-Knopp iteration exponentiates the logits minus the maximum of their column and divides 20 times each
//! column, then each row, by its sum, which counts at least 1e-12.
//!
//! Elements moved per token, in multiples of H: forward S + (S + 1) + (2S + 1) = 4S + 2, backward (3S + 2) + (3S + 1) +
//! 3S = 9S + 3, where the later two add to the gradient of R; coefficients are negligible. A single pass over the tokens
//! between two branches would move 2S + 2 forward.

mod cpu;
mod cuda;
mod mixing;

pub use cuda::{DEPTH, NORM, SOURCE, TOKENS};

use crate::dtype::Dtype;
use crate::op::{Case, Draw, GradBuffer, Grads, Op, Saved};
use crate::ops::normalization::{NormKind, Normalization};
use crate::ops::residual::Gain;
use crate::tensor::Tensor;
use crate::with_float;

/// Maximum number of streams.
pub const MOST_STREAMS: usize = 4;
/// Sinkhorn-Knopp iterations.
pub const ITERATIONS: usize = 20;
/// What a norm or a sum counts at least (PyTorch's `normalize`).
const LEAST: f64 = 1e-12;

/// How coefficients depend on the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// tanh, without constraint (mmdit 0.2.2).
    Plain,
    /// Doubly stochastic P, a in (0, 1) and β in (0, 2) (mmdit 0.3.0).
    Manifold,
}

/// The coefficients C [.., S·(S + 2)] of each token, in f32: a [S], P [S, S] by source and target, β [S].
///
/// Inputs: R [.., S, H], and in f32 γ [H], A [H, S + 1], α [S, S + 1], b [H], β⁰ [S], p [1], for [`Form::Manifold`] r [1],
/// and q [1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coefficients(pub Form);

/// The input u = Σ_s a_s·R_s [.., H] of a branch. Inputs: R [.., S, H], C [.., S·(S + 2)] in f32.
#[derive(Clone, Copy, Debug)]
pub struct Width {
    /// An adaptive normalization of u, with m as the third input.
    pub norm: Option<Normalization>,
}

/// The streams R'_t = Σ_s P_st·R_s + β_t·w ∘ o [.., S, H] after a branch with output o. Inputs: R [.., S, H],
/// C [.., S·(S + 2)] in f32, o [.., H]. Without a gain, w is 1.
///
/// With a gain, R [G.., S, H] has groups of rows as in [`Residual::Gated`](crate::ops::residual::Residual), and a fourth
/// input m [G, n·H] has w = 1 + g for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Index of g among the vectors of m.
    pub gain: Option<usize>,
}

/// Sizes of R [tokens, streams, width].
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tokens: usize,
    streams: usize,
    width: usize,
}

impl Sizes {
    fn of(x: &Tensor) -> Self {
        let streams = x.shape()[x.shape().len() - 2];
        Sizes { tokens: x.rows() / streams, streams, width: x.width() }
    }

    /// Coefficients of a token.
    fn coefficients(self) -> usize {
        self.streams * (self.streams + 2)
    }

    /// Features of a token: z and y of each stream, and the factor √H/‖R_s‖.
    fn features(self) -> usize {
        self.streams * (self.streams + 3)
    }

    /// Gradients of α, β⁰, p, r and q.
    fn sums(self) -> usize {
        self.streams * (self.streams + 2) + 3
    }

    /// Where P and β begin among the coefficients; a begins at 0.
    fn starts(self) -> [usize; 2] {
        [self.streams, self.streams * (self.streams + 1)]
    }
}

/// f32, or f64 when the op computes in it.
fn wide(compute: Dtype) -> Dtype {
    if compute == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
}

/// Splits the shape of R into leading axes, S and H.
fn streams_of(x: &[usize]) -> Result<(&[usize], usize, usize), String> {
    match x {
        [rows @ .., s @ 1..=MOST_STREAMS, h] => Ok((rows, *s, *h)),
        _ => Err(format!("takes streams [.., S, H] with S in 1..={MOST_STREAMS}")),
    }
}

impl Coefficients {
    /// Index of each scale p, r, q among the inputs.
    fn scales(self) -> [usize; 3] {
        if self.0 == Form::Plain { [6, 6, 7] } else { [6, 7, 8] }
    }
}

impl Op for Coefficients {
    fn name(&self) -> &'static str {
        "hyper_coefficients"
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (rows, s, h) = streams_of(inputs.first().copied().unwrap_or_default())?;
        let scales = if self.0 == Form::Plain { 2 } else { 3 };
        match &inputs[1..] {
            [gamma, a, alpha, b, beta, rest @ ..]
                if **gamma == [h]
                    && **a == [h, s + 1]
                    && **alpha == [s, s + 1]
                    && **b == [h]
                    && **beta == [s]
                    && rest.len() == scales
                    && rest.iter().all(|scale| **scale == [1]) =>
            {
                Ok([rows, &[s * (s + 2)]].concat())
            }
            _ => Err(format!(
                "takes R [.., S, H], γ [H], A [H, S + 1], α [S, S + 1], b [H], β [S] and {scales} scales [1]"
            )),
        }
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 0 { compute } else { wide(compute) }
    }

    fn output_dtype(&self, compute: Dtype) -> Dtype {
        wide(compute)
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        let s = inputs[0][inputs[0].len() - 2];
        2 * (s + 3) * inputs[0].iter().product::<usize>()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let dtype = out.dtype();
        with_float!(dtype, T => cpu::coefficients::<T>(*self, inputs, out))
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        with_float!(dy.dtype(), T => cpu::coefficients_backward::<T>(*self, saved, dy.read(), grads));
    }
}

impl Op for Width {
    fn name(&self) -> &'static str {
        if self.norm.is_some() { "adaptive_hyper_width" } else { "hyper_width" }
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let (rows, s, h) = streams_of(inputs.first().copied().unwrap_or_default())?;
        let u = [rows, &[h]].concat();
        match (self.norm, &inputs[1..]) {
            (None, [[leading @ .., n]]) if leading == rows && *n == s * (s + 2) => Ok(u),
            (Some(norm), [[leading @ .., n], m])
                if leading == rows && *n == s * (s + 2) && norm.is_adaptive() =>
            {
                norm.shape(&[&u, m])
            }
            (None, _) => Err("takes R [.., S, H] and C [.., S·(S + 2)]".into()),
            _ => Err("takes R [.., S, H], C [.., S·(S + 2)] and m of an adaptive norm".into()),
        }
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 1 { wide(compute) } else { compute }
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, c) = (inputs[0], inputs[1]);
        let Some(norm) = self.norm else {
            with_float!(out.dtype(), T => cpu::width::<T>(x, c.read(), out.write()));
            return vec![x.clone(), c.clone()];
        };
        let u = cpu::input(x, c, out.shape());
        // Computed again in the backward pass.
        let [_, m, stats] = <[Tensor; 3]>::try_from(norm.forward(&[&u, inputs[2]], out))
            .unwrap_or_else(|saved| unreachable!("a normalization saves {} tensors", saved.len()));
        vec![x.clone(), c.clone(), m, stats]
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let ([dx, dc, dm], (x, c)) = (grads.buffers([0, 1, 2]), (&saved[0], &saved[1]));
        let Some(norm) = self.norm else {
            with_float!(dy.dtype(), T => {
                cpu::width_backward::<T>(x, c.read(), dy.read(), [dx, dc]);
            });
            return;
        };
        let (u, empty) = (cpu::input(x, c, dy.shape()), Tensor::empty(dy.shape(), dy.dtype()));
        let mut du = GradBuffer { tensor: empty, accumulate: false };
        norm.backward_on_cpu([&u, &saved[2], &saved[3]], &dy, [Some(&mut du), dm]);
        with_float!(dy.dtype(), T => {
            cpu::width_backward::<T>(x, c.read(), du.tensor.read(), [dx, dc]);
        });
    }
}

impl Depth {
    /// The gain and m, given the inputs.
    fn gain<'a>(self, inputs: &[&'a Tensor]) -> Option<(Gain, &'a Tensor)> {
        let m = *inputs.get(3)?;
        Some((Gain::of_vector(self.gain?, inputs[2].width(), m), m))
    }

    /// Whether the inputs after o are right for rows of `h` elements.
    fn fits(self, rows: &[usize], h: usize, rest: &[&[usize]]) -> bool {
        match (self.gain, rest) {
            (None, []) => true,
            (Some(gain), [[groups, n]]) => {
                rows.first().is_some_and(|first| first % groups == 0) && n % h == 0 && gain < n / h
            }
            _ => false,
        }
    }
}

impl Op for Depth {
    fn name(&self) -> &'static str {
        if self.gain.is_some() { "gated_hyper_depth" } else { "hyper_depth" }
    }

    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let x = inputs.first().copied().unwrap_or_default();
        let (rows, s, h) = streams_of(x)?;
        match &inputs[1..] {
            [[leading @ .., n], branch, m @ ..]
                if leading == rows
                    && *n == s * (s + 2)
                    && **branch == [rows, &[h]].concat()
                    && self.fits(rows, h, m) =>
            {
                Ok(x.to_vec())
            }
            _ if self.gain.is_none() => {
                Err("takes R [.., S, H], C [.., S·(S + 2)] and o [.., H]".into())
            }
            _ => Err(
                "takes R [G.., S, H], C [.., S·(S + 2)], o [.., H] and m [G, n·H], which holds the gain for groups that divide R's first axis"
                    .into(),
            ),
        }
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 1 { wide(compute) } else { compute }
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        let s = inputs[0][inputs[0].len() - 2];
        2 * (s + 1) * inputs[0].iter().product::<usize>()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, c, branch] = [inputs[0], inputs[1], inputs[2]];
        let gain = self.gain(inputs);
        with_float!(out.dtype(), T => cpu::depth::<T>(x, c.read(), branch.read(), gain, out.write()));
        inputs.iter().map(|input| (*input).clone()).collect()
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (inputs, buffers) = (saved.iter().collect::<Vec<_>>(), grads.buffers([0, 1, 2, 3]));
        with_float!(dy.dtype(), T => {
            let (c, branch) = (saved[1].read(), saved[2].read());
            cpu::depth_backward::<T>(&saved[0], c, branch, self.gain(&inputs), dy.read(), buffers);
        });
    }
}

/// Shapes of R in test cases: every number of streams, one token, odd widths, more tokens than a block or a part of them
/// has, and rows that exceed a warp.
const SHAPES: [&[usize]; 8] = [
    &[1, 1, 3],
    &[5, 2, 7],
    &[2, 3, 3, 17],
    &[3, 4, 24],
    &[150, 2, 33],
    &[70, 4, 264],
    &[9, 2, 1032],
    &[4096, 2, 1024],
];

/// A vector of m, the shape of R and the number of groups in test cases with m: one and several groups, groups of one row
/// and of more rows than a block has, unused vectors in m, odd widths.
const GROUPED: [(usize, &[usize], usize); 7] = [
    (0, &[1, 2, 3], 1),
    (1, &[5, 2, 7], 5),
    (0, &[4, 3, 3, 17], 2),
    (2, &[3, 9, 4, 24], 3),
    (0, &[2, 70, 2, 264], 2),
    (1, &[3, 21, 4, 33], 3),
    (0, &[4, 1024, 2, 1024], 4),
];

/// Returns test cases of [`Coefficients`]: both forms, at scales where tanh, the sigmoid and the iteration bend.
pub fn coefficient_cases() -> Vec<Case> {
    let case = |form: Form, x: &[usize]| {
        let [.., s, h] = *x else { unreachable!("streams have two axes") };
        let scales = if form == Form::Plain { 2 } else { 3 };
        let bound = (3.0 / h as f64).sqrt();
        let parameters: [&[usize]; 5] = [&[h], &[h, s + 1], &[s, s + 1], &[h], &[s]];
        let shapes = [&[x][..], &parameters, &vec![&[1][..]; scales]].concat();
        let case = Case::new(Coefficients(form), &shapes);
        let case = case.draw(1, Draw::Uniform(-0.5, 0.5)).draw(2, Draw::Uniform(-bound, bound));
        let case = case.draw(4, Draw::Uniform(-bound, bound));
        (6..6 + scales).fold(case, |case, i| case.draw(i, Draw::Uniform(0.3, 1.5)))
    };
    let forms = [Form::Plain, Form::Manifold];
    let all = forms.into_iter().flat_map(|form| SHAPES.map(|x| case(form, x)));
    // Logits so far apart that some sums count as the least.
    let apart = case(Form::Manifold, &[7, 3, 5]).draw(3, Draw::Uniform(-20.0, 20.0));
    all.chain([apart]).collect()
}

/// Returns test cases of [`Width`].
pub fn width_cases() -> Vec<Case> {
    let case = |x: &[usize]| Case::new(Width { norm: None }, &[x, &coefficients_of(x)]);
    SHAPES.map(case).into()
}

/// Returns test cases of [`Width`] with a normalization. With one stream, the gradient of its coefficient vanishes.
pub fn adaptive_width_cases() -> Vec<Case> {
    let case = |first: usize, x: &[usize], groups| {
        let kind = NormKind::Adaptive { shift: first, scale: first + 1 };
        let m = [groups, (first + 3) * x[x.len() - 1]];
        let norm = Some(Normalization { kind, epsilon: 1e-5 });
        Case::new(Width { norm }, &[x, &coefficients_of(x), &m])
    };
    GROUPED.map(|(first, x, groups)| case(first, x, groups)).into()
}

/// Returns test cases of [`Depth`].
pub fn depth_cases() -> Vec<Case> {
    let case = |x: &[usize]| {
        let branch = [&x[..x.len() - 2], &x[x.len() - 1..]].concat();
        Case::new(Depth { gain: None }, &[x, &coefficients_of(x), &branch])
    };
    SHAPES.map(case).into()
}

/// Returns test cases of [`Depth`] with a gain.
pub fn gated_depth_cases() -> Vec<Case> {
    let case = |gain, x: &[usize], groups| {
        let (width, vectors) = (x[x.len() - 1], gain + 2);
        let branch = [&x[..x.len() - 2], &[width]].concat();
        let inputs: [&[usize]; 4] = [x, &coefficients_of(x), &branch, &[groups, vectors * width]];
        Case::new(Depth { gain: Some(gain) }, &inputs)
    };
    let all = GROUPED.map(|(gain, x, groups)| case(gain, x, groups));
    all.into_iter().chain([case(1, &[6, 1, 9], 2)]).collect()
}

/// The shape of C for streams of shape `x`.
fn coefficients_of(x: &[usize]) -> Vec<usize> {
    let s = x[x.len() - 2];
    [&x[..x.len() - 2], &[s * (s + 2)]].concat()
}
