//! Adafactor (Shazeer & Stern 2018, algorithms 4 and 5) without momentum, relative steps and parameter scaling, like
//! `Adafactor` in transformers with `scale_parameter=False` and `relative_step=False`.
//!
//! For matrices, with β = 1 - tᵃ in step t: r ← βr + (1-β)·(mean of g² over each row + ε); c likewise over columns;
//! u = g/√(r·c/mean(r)). Other parameters have v ← βv + (1-β)(g² + ε); u = g/√v. Then
//! θ ← θ·(1 - η·λ) - η·u/max(1, RMS(u)/d). All axes but the first are flattened into columns, whereas transformers has
//! one matrix per index of the leading axes. The state of a matrix has rows + columns elements.

use super::Parameter;
use super::decision::{DeviceStepControl, StepControl};
use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::divisor::divisor;
use crate::kernel::table::{PIECE, THREADS};
use crate::kernel::{Arg, Grid, ONLY_F32, Source, source};
use crate::parallel::{BLOCK_ELEMENTS, reduce, row_blocks, rows_per_block};
use crate::tensor::Tensor;
use crate::with_float;

/// Source of the Adafactor kernels.
pub(crate) static SOURCE: Source = source!("adafactor", ONLY_F32);

/// Rows per partial sum; must match adafactor.cu.
const CHUNK: usize = 64;

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    /// Learning rate η.
    pub learning_rate: f64,
    /// Exponent a of the decay of the averages; negative.
    pub beta2_decay: f64,
    /// d, the maximum root mean square of the update direction u of a parameter.
    pub clip_threshold: f64,
    /// ε, added to the mean squares of the gradient.
    pub epsilon: f64,
}

/// Scalars of a step for one parameter.
struct StepFactors {
    /// Factors by which the parameter and its update direction are multiplied.
    keep: f64,
    step: f64,
    rows: usize,
    width: usize,
}

impl Adafactor {
    /// Returns the shapes of a parameter's state: row and column averages for a matrix, otherwise v.
    pub fn state_shapes(shape: &[usize]) -> Vec<Vec<usize>> {
        match shape {
            [rows, columns @ ..] if !columns.is_empty() => {
                vec![vec![*rows], vec![columns.iter().product()]]
            }
            _ => vec![shape.to_vec()],
        }
    }

    /// Updates each parameter and its state (r and c for a matrix, otherwise v), on any device, if `decided` says to
    /// apply the update.
    pub fn apply_all<'a, const N: usize>(
        &self,
        decided: &DeviceStepControl,
        parameters: impl IntoIterator<Item = Parameter<'a, N>>,
    ) {
        for parameter in parameters {
            let Parameter { rate, weight_decay, gradient, value, mut moments } = parameter;
            let rate = self.learning_rate * rate;
            let len = value.len();
            let (rows, width) = match moments.as_slice() {
                [rows, columns] => (rows.len(), columns.len()),
                _ => (len, 1),
            };
            let step = StepFactors { keep: 1.0 - rate * weight_decay, step: -rate, rows, width };
            match value.device() {
                _ if len == 0 => {}
                Device::Cpu => {
                    let decision = decided.on_host();
                    if decision.applied {
                        with_float!(value.dtype(), T => {
                            self.on_cpu::<T>(&decision, &step, gradient, value, &mut moments);
                        });
                    }
                }
                _ => self.launch(decided, &step, gradient, value, &mut moments),
            }
        }
    }

    fn on_cpu<T: Float>(
        &self,
        decision: &StepControl,
        step: &StepFactors,
        gradient: &Tensor,
        value: &mut Tensor,
        moments: &mut [&mut Tensor],
    ) {
        let (rows, width) = (step.rows, step.width);
        let (g, p): (&[T], &mut [T]) = (gradient.read(), value.write());
        let scale = T::of(decision.scale);
        let square = |g: T| (scale * g).f64() * (scale * g).f64();
        let beta = 1.0 - (decision.steps as f64).powf(self.beta2_decay);
        let averaged =
            |old: T, now: f64| T::of(beta * old.f64() + (1.0 - beta) * (now + self.epsilon));
        let (first, columns) = moments.split_at_mut(1);
        let r: &mut [T] = first[0].write();
        row_blocks((&mut *r, 1), rows_per_block(width), |range, r| {
            for (r, row) in r.iter_mut().zip(g[range.start * width..].chunks_exact(width)) {
                *r = averaged(*r, row.iter().map(|g| square(*g)).sum::<f64>() / width as f64);
            }
        });
        let c: &[T] = match columns.first_mut() {
            None => &[],
            Some(columns) => {
                let mut sums = vec![0.0; width];
                reduce(rows, rows_per_block(width), &mut sums, |range, sums| {
                    for row in g[range.start * width..range.end * width].chunks_exact(width) {
                        sums.iter_mut().zip(row).for_each(|(sum, g)| *sum += square(*g));
                    }
                });
                let c: &mut [T] = columns.write();
                for (c, sum) in c.iter_mut().zip(sums) {
                    *c = averaged(*c, sum / rows as f64);
                }
                c
            }
        };
        let r = &*r;
        let mean = r.iter().map(|r| r.f64()).sum::<f64>() / rows as f64;
        let direction = |i: usize| match c {
            [] => scale * g[i] / r[i].sqrt(),
            c => {
                let row = T::of(r[i / width].f64() / mean);
                scale * g[i] / (row.sqrt() * c[i % width].sqrt())
            }
        };
        let mut squares = [0.0_f64];
        reduce(p.len(), BLOCK_ELEMENTS, &mut squares, |range, squares| {
            squares[0] += range.map(|i| direction(i).f64() * direction(i).f64()).sum::<f64>();
        });
        let excess = (squares[0] / p.len() as f64).sqrt() / self.clip_threshold;
        let [keep, factor] = [step.keep, step.step / excess.max(1.0)].map(T::of);
        row_blocks((p, 1), BLOCK_ELEMENTS, |range, p| {
            for (p, i) in p.iter_mut().zip(range) {
                *p = factor.mul_add(direction(i), keep * *p);
            }
        });
    }

    fn launch(
        &self,
        decided: &DeviceStepControl,
        step: &StepFactors,
        gradient: &Tensor,
        value: &mut Tensor,
        moments: &mut [&mut Tensor],
    ) {
        let (rows, width, len) = (step.rows, step.width, value.len());
        let device = value.device();
        let run = |name, blocks, args: &[Arg<'_>]| {
            SOURCE.launch(Dtype::F32, name, Grid::new(blocks, THREADS), args);
        };
        let (exponent, epsilon, control) = (self.beta2_decay, self.epsilon, decided.tensor());
        let empty = |n| Tensor::empty_on(device, &[n], Dtype::F64);
        let (first, columns) = moments.split_at_mut(1);
        let r = &mut *first[0];
        run("adafactor_rows", rows, args![gradient, &mut *r, control, width, exponent, epsilon]);
        let r = &*r;
        let mut mean = empty(1);
        let c = columns.first_mut().map(|c| {
            let (chunks, tiles) = (rows.div_ceil(CHUNK), width.div_ceil(THREADS));
            let mut partials = empty(chunks * width);
            let args = args![gradient, &mut partials, control, rows, width];
            run("adafactor_columns", chunks * tiles, args);
            let args = args![&partials, &mut **c, control, rows, width, exponent, epsilon];
            run("adafactor_averages", tiles, args);
            run("adafactor_mean", 1, args![r, &mut mean, control, rows]);
            &**c
        });
        let blocks = len.div_ceil(PIECE);
        let (n, mut sums, c) = (len as i64, empty(blocks), c.map(Arg::from));
        let width = divisor(width);
        let args = [args![gradient, r, c, &mean, &mut sums, control, n], &width].concat();
        run("adafactor_squares", blocks, &args);
        let (keep, step, limit) = (step.keep as f32, step.step, self.clip_threshold);
        let tensors = args![gradient, r, c, &mean, &sums, value, control, n];
        run("adafactor_step", blocks, &[tensors, &width, args![keep, step, limit]].concat());
    }
}
