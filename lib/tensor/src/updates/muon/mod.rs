//! Muon (Jordan et al. 2024) for matrices θ [rows, columns], in the form of `torch.optim.Muon`; all axes but the first
//! are flattened into columns:
//! m ← μm + (1-μ)g; u = μm + (1-μ)g; θ ← θ·(1 - η·λ) - η·√max(1, rows/columns)·orthogonalized(u).
//!
//! `orthogonalized` is a Newton-Schulz iteration X ← aX + b(XXᵀ)X + c(XXᵀ)²X from u/‖u‖, which moves all singular
//! values close to 1. A step of an m × n matrix costs 5·(4·r²·max(m, n) + 2·r³) FLOPs with r = min(m, n); on the CPU,
//! which computes one half of the symmetric products, 5·(3·r²·max(m, n) + r³).

mod orthogonalized;

use super::Parameter;
use super::decision::{DeviceStepControl, StepControl};
use super::norm;
use crate::args;
use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::{Arg, ONLY_F32, Source, flat, source};
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;
use orthogonalized::orthogonalized;

/// Source of the Muon kernels.
pub(crate) static SOURCE: Source = source!("muon", ONLY_F32);

/// Number of Newton-Schulz iterations, their coefficients a, b and c, and the lower bound of the norm.
const ITERATIONS: usize = 5;
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const EPSILON: f64 = 1e-7;
/// Number of elements up to which a matrix has too few blocks for all threads of the CPU; these are updated side by side.
const SMALL: usize = 256 * 1024;

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
        let mut small = Vec::new();
        for mut parameter in parameters {
            match parameter.value.device() {
                Device::Cpu if parameter.value.len() <= SMALL => small.push(parameter),
                _ => self.apply(decided, &mut parameter),
            }
        }
        row_blocks((&mut *small, 1), 1, |_, some| {
            for parameter in some {
                self.apply(decided, parameter);
            }
        });
    }

    fn apply(&self, decided: &DeviceStepControl, parameter: &mut Parameter<1>) {
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

    fn on_cpu<T: Float>(
        &self,
        scale: f64,
        keep: f64,
        step: f64,
        shape: [usize; 2],
        parameter: &mut Parameter<1>,
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
        parameter: &mut Parameter<1>,
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
            args![*gradient, &mut **m, &mut u, decided.tensor(), momentum, len as i64],
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
        run("muon_step", len, args![&mut **value, &u, decided.tensor(), keep, step, len as i64]);
    }
}
