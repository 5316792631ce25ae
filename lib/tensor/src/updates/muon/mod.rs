//! Muon (Jordan et al. 2024) for matrices θ [rows, columns], in the form of `torch.optim.Muon`; all axes but the first
//! are flattened into columns:
//! m ← μm + (1-μ)g; u = μm + (1-μ)g; θ ← θ·(1 - η·λ) - η·√max(1, rows/columns)·orthogonalized(u).
//!
//! `orthogonalized` is a Newton-Schulz iteration X ← aX + b(XXᵀ)X + c(XXᵀ)²X from u/‖u‖, which moves all singular
//! values close to 1. A step of an m × n matrix costs 5·(4·r²·max(m, n) + 2·r³) FLOPs with r = min(m, n).

use super::Parameter;
use super::decision::{DeviceStepControl, StepControl};
use super::norm;
use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::{Arg, ONLY_F32, Source, flat, source};
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::product::{View, product};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;

/// Source of the Muon kernels.
pub(crate) static SOURCE: Source = source!("muon", ONLY_F32);

/// Number of Newton-Schulz iterations, their coefficients a, b and c, and the lower bound of the norm.
const ITERATIONS: usize = 5;
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const EPSILON: f64 = 1e-7;

/// Hyperparameters of a step.
#[derive(Clone, Copy, Debug)]
pub struct Muon {
    /// Learning rate η.
    pub learning_rate: f64,
    /// Momentum μ.
    pub momentum: f64,
}

impl Muon {
    /// Updates each matrix and its momentum m, on any device, if `decided` says to apply the update.
    ///
    /// # Panics
    /// If a parameter has no axes.
    pub fn apply_all<'a>(
        &self,
        decided: &DeviceStepControl,
        parameters: impl IntoIterator<Item = Parameter<'a, 1>>,
    ) {
        for parameter in parameters {
            let Some((&rows, rest)) = parameter.value.shape().split_first() else {
                panic!("Muon updates matrices")
            };
            let columns: usize = rest.iter().product();
            // θ ← keep·θ + step·u.
            let rate = self.learning_rate * parameter.rate;
            let keep = 1.0 - rate * parameter.weight_decay;
            let step = -rate * (rows as f64 / columns as f64).max(1.0).sqrt();
            match parameter.value.device() {
                _ if rows * columns == 0 => {}
                Device::Cpu => {
                    let StepControl { applied, scale, .. } = decided.on_host();
                    if applied {
                        with_float!(parameter.value.dtype(), T => {
                            self.on_cpu::<T>(scale, keep, step, [rows, columns], parameter);
                        });
                    }
                }
                _ => self.launch(decided, keep, step, [rows, columns], parameter),
            }
        }
    }

    fn on_cpu<T: Float>(
        &self,
        scale: f64,
        keep: f64,
        step: f64,
        shape: [usize; 2],
        parameter: Parameter<1>,
    ) {
        let Parameter { gradient, value, moments: [m], .. } = parameter;
        let g: &[T] = gradient.read();
        let mut u = Tensor::empty(&shape, value.dtype());
        let [momentum, rest, scale] = [self.momentum, 1.0 - self.momentum, scale].map(T::of);
        row_blocks(((m.write::<T>(), 1), (u.write::<T>(), 1)), BLOCK_ELEMENTS, |range, (m, u)| {
            vectorize!({
                for ((g, m), u) in g[range].iter().zip(m).zip(u) {
                    let g = scale * *g;
                    *m = rest.mul_add(g - *m, *m);
                    *u = momentum.mul_add(*m - g, g);
                }
            });
        });
        let norm = norm::on_host([&u]).max(EPSILON);
        let factor = T::of(1.0 / norm);
        row_blocks((u.write::<T>(), 1), BLOCK_ELEMENTS, |_, u| {
            u.iter_mut().for_each(|u| *u = factor * *u);
        });
        let u = orthogonalized::<T>(u.read().to_vec(), shape);
        let [keep, step] = [keep, step].map(T::of);
        row_blocks((value.write::<T>(), 1), BLOCK_ELEMENTS, |range, p| {
            vectorize!({
                for (p, u) in p.iter_mut().zip(&u[range]) {
                    *p = step.mul_add(*u, keep * *p);
                }
            });
        });
    }

    fn launch(
        &self,
        decided: &DeviceStepControl,
        keep: f64,
        step: f64,
        shape: [usize; 2],
        parameter: Parameter<1>,
    ) {
        let Parameter { gradient, value, moments: [m], .. } = parameter;
        let (device, len) = (value.device(), value.len());
        let run = |name, len, args: &[Arg<'_>]| {
            SOURCE.launch(Dtype::F32, name, flat::grid(len, Dtype::F32), args);
        };
        let mut u = Tensor::empty_on(device, &shape, Dtype::F32);
        let momentum = self.momentum as f32;
        run(
            "muon_momentum",
            len,
            args![gradient, m, &mut u, decided.tensor(), momentum, len as i64],
        );
        let square = norm::square(device, [&u]);
        run("muon_normalize", len, args![&mut u, &square, EPSILON as f32, len as i64]);
        let [rows, columns] = shape;
        let n = rows.min(columns);
        let [a, b, c] = COEFFICIENTS.map(|x| x as f32);
        let mut next = Tensor::empty_on(device, &shape, Dtype::F32);
        let [mut gram, mut gram2] = [(); 2].map(|()| Tensor::empty_on(device, &[n, n], Dtype::F32));
        fn write(lhs: Matrix<'_>, rhs: Matrix<'_>, out: &mut Tensor) {
            Product::new(lhs, rhs).write(out, Epilogue::default());
        }
        for _ in 0..ITERATIONS {
            let x = Matrix::new(&u, rows, columns);
            match rows <= columns {
                true => write(x, x.transposed(), &mut gram),
                false => write(x.transposed(), x, &mut gram),
            }
            let square = Matrix::new(&gram, n, n);
            write(square, square, &mut gram2);
            run("muon_polynomial", n * n, args![&mut gram, &gram2, a, b, c, n]);
            let polynomial = Matrix::new(&gram, n, n);
            match rows <= columns {
                true => write(polynomial, x, &mut next),
                false => write(x, polynomial, &mut next),
            }
            std::mem::swap(&mut u, &mut next);
        }
        let [keep, step] = [keep, step].map(|x| x as f32);
        run("muon_step", len, args![value, &u, decided.tensor(), keep, step, len as i64]);
    }
}

/// Returns the result of the Newton-Schulz iteration for a matrix whose norm is at most 1.
fn orthogonalized<T: Float>(mut x: Vec<T>, [rows, columns]: [usize; 2]) -> Vec<T> {
    let n = rows.min(columns);
    let [a, b, c] = COEFFICIENTS.map(T::of);
    let (mut gram, mut gram2, mut next) =
        (vec![T::ZERO; n * n], vec![T::ZERO; n * n], vec![T::ZERO; rows * columns]);
    // Computes out = lhs·rhs in blocks of rows, where `lhs` returns a range of rows.
    fn multiply<'a, T: Float>(
        out: &mut [T],
        width: usize,
        lhs: impl Fn(std::ops::Range<usize>) -> View<'a, T> + Sync,
        rhs: View<'a, T>,
    ) {
        row_blocks((out, width), crate::parallel::rows_per_block(width), |range, out| {
            product(out, width, false, T::ONE, lhs(range), rhs);
        });
    }
    for _ in 0..ITERATIONS {
        let whole = View::new(&x, rows, columns, columns);
        let some = |r: std::ops::Range<usize>| {
            View::new(&x[r.start * columns..], r.len(), columns, columns)
        };
        if rows <= columns {
            multiply(&mut gram, n, some, whole.transposed());
        } else {
            let columns_of = |r: std::ops::Range<usize>| {
                View::new(&x[r.start..], rows, r.len(), columns).transposed()
            };
            multiply(&mut gram, n, columns_of, whole);
        }
        multiply(
            &mut gram2,
            n,
            |r| View::new(&gram[r.start * n..], r.len(), n, n),
            View::new(&gram, n, n, n),
        );
        for (i, (g, g2)) in gram.iter_mut().zip(&gram2).enumerate() {
            *g = b * *g + c * *g2;
            if i % (n + 1) == 0 {
                *g = a + *g;
            }
        }
        if rows <= columns {
            multiply(&mut next, columns, |r| View::new(&gram[r.start * n..], r.len(), n, n), whole);
        } else {
            multiply(&mut next, columns, some, View::new(&gram, n, n, n));
        }
        std::mem::swap(&mut x, &mut next);
    }
    x
}
