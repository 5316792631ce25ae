//! The spectral convolution of a Fourier neural operator (Li et al. 2021, section 4): multiplies each of the lowest
//! modes of the discrete Fourier transform by its own matrix.
//!
//! The truncated transforms are products with constant matrices. Complex numbers are pairs (real, imaginary), and a
//! product with a complex matrix W is computed as the real product with [[Re W, Im W], [-Im W, Re W]]. As in neuralop,
//! the forward transform divides by the number of points (`norm="forward"`).

use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use std::f64::consts::TAU;
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::matmul::MatMul;
use tensor::ops::narrow::Narrow;
use tensor::ops::permute::Permute;
use tensor::{Tensor, Var};
use unix::Result;

/// A spectral convolution over a token grid.
#[derive(Clone, Debug)]
pub struct SpectralConv {
    /// Weights W, [modes, 2, inputs, outputs].
    weight: ParamId,
    grid: [usize; 2],
    /// Number of modes along rows and columns.
    modes: [usize; 2],
    /// Forward transforms along rows and columns.
    transforms: [Tensor; 2],
    inverses: [Tensor; 2],
}

impl SpectralConv {
    /// Creates the layer for tokens with `width` features on a grid [rows, columns]; a single row makes the problem
    /// one-dimensional. Keeps the wave numbers from -⌊modes/2⌋ to ⌈modes/2⌉ - 1 along rows and from 0 to ⌊modes/2⌋
    /// along columns, with `modes` limited to the grid size. The real and imaginary parts of the weights are
    /// initialised from a normal distribution with variance 1/(2·width).
    pub fn new(b: &mut Builder, name: &str, width: usize, grid: [usize; 2], modes: usize) -> Self {
        let kept = modes.min(grid[0]);
        let waves = [
            (0..kept).map(|m| m as f64 - (kept / 2) as f64).collect::<Vec<_>>(),
            (0..=modes.min(grid[1]) / 2).map(|k| k as f64).collect(),
        ];
        let modes = [waves[0].len(), waves[1].len()];
        let init = Init::Normal((2.0 * width as f64).sqrt().recip());
        let shape = [modes[0] * modes[1], 2, width, width];
        let weight = b.scope(name, |b| b.param("weight", &shape, init));
        // The transform along columns (axis 1) is applied first, to real tokens; the one along rows is applied to its
        // complex output.
        let (n, points) = (grid.map(|n| n as f64), grid.map(points));
        let transforms = [0, 1].map(|axis| {
            let from = (&points[axis][..], axis == 0);
            exponential((&waves[axis], true), from, n[axis], -1.0, |_| 1.0 / n[axis])
        });
        let inverses = [0, 1].map(|axis| {
            // In a real transform, all modes except 0 and n/2 also represent their complex conjugates.
            let single = |k: f64| axis == 0 || k == 0.0 || 2.0 * k == n[axis];
            let scale = |k| if single(k) { 1.0 } else { 2.0 };
            exponential((&points[axis], axis == 0), (&waves[axis], true), n[axis], 1.0, scale)
        });
        Self { weight, grid, modes, transforms, inverses }
    }

    /// Maps x [B, rows·columns, width] to the same shape; computes in the dtype of the parameters.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let x = forward.to_param_dtype(x)?;
        let ([rows, columns], [m, k]) = (self.grid, self.modes);
        let (batch, width) = (x.shape()[0], x.shape()[2]);
        let matmul = |a: &Tensor, x: &Var| forward.apply(MatMul, &[&forward.constant(a)?, x]);
        let permute = |x: Var, shape: &[usize], axes: &[usize]| {
            forward.apply(Permute(axes.to_vec()), &[&x.reshape(shape)])
        };
        // [B·rows, columns, width] -> [B·rows, 2·k, width] -> [B·k, 2·rows, width] -> [B·k, 2·m, width].
        let z = matmul(&self.transforms[1], &x.reshape(&[batch * rows, columns, width]))?;
        let z = permute(z, &[batch, rows, 2, k, width], &[0, 3, 2, 1, 4])?;
        let z = matmul(&self.transforms[0], &z.reshape(&[batch * k, 2 * rows, width]))?;
        // Multiplies each mode by its matrix: [k·m, B, 2·width] x [k·m, 2·width, 2·width].
        let z = permute(z, &[batch, k, 2, m, width], &[1, 3, 0, 2, 4])?;
        let z = z.reshape(&[k * m, batch, 2 * width]);
        let z = forward.apply(MatMul, &[&z, &self.real_weight(forward)?])?;
        // Inverse transforms, in reverse order.
        let z = permute(z, &[k, m, batch, 2, width], &[2, 0, 3, 1, 4])?;
        let z = matmul(&self.inverses[0], &z.reshape(&[batch * k, 2 * m, width]))?;
        let z = permute(z, &[batch, k, 2, rows, width], &[0, 3, 2, 1, 4])?;
        let y = matmul(&self.inverses[1], &z.reshape(&[batch * rows, 2 * k, width]))?;
        forward.to_compute_dtype(&y.reshape(&[batch, rows * columns, width]))
    }

    /// Builds [[Re W, Im W], [-Im W, Re W]] for each mode, [modes, 2·width, 2·width].
    fn real_weight(&self, forward: &Forward) -> Result<Var> {
        let weight = forward.get_stored(self.weight);
        let part = |start| {
            let part = forward.apply(Narrow { axis: 1, start, length: 1 }, &[weight])?;
            let &[modes, _, inputs, outputs] = part.shape() else { unreachable!("see `weight`") };
            Ok::<_, unix::Error>(part.reshape(&[modes, inputs, outputs]))
        };
        let (re, im) = (part(0)?, part(1)?);
        let minus = forward.apply(Binary::Multiply, &[&im, &forward.full(&[1], -1.0)?])?;
        let beside = |a: &Var, b: &Var| forward.apply(Concat { axis: 2 }, &[a, b]);
        forward.apply(Concat { axis: 1 }, &[&beside(&re, &im)?, &beside(&minus, &re)?])
    }
}

/// Returns the matrix e^{sign·2πi·a·b/n}·scale(b) in real form, [2·a, 2·b], with real parts before imaginary parts. The
/// imaginary half is omitted for outputs or inputs that are real.
fn exponential(
    (a, is_complex): (&[f64], bool),
    (b, of_complex): (&[f64], bool),
    n: f64,
    sign: f64,
    scale: impl Fn(f64) -> f64,
) -> Tensor {
    let mut values = Vec::new();
    for part in 0..1 + usize::from(is_complex) {
        for a in a {
            for of in 0..1 + usize::from(of_complex) {
                for b in b {
                    // Reduce a·b modulo n first, which is exact, so that large products lose no digits.
                    let phase = sign * TAU * ((a * b) % n) / n;
                    let value = match (part, of) {
                        (0, 1) => -phase.sin(),
                        (1, 0) => phase.sin(),
                        _ => phase.cos(),
                    };
                    values.push(scale(*b) * value);
                }
            }
        }
    }
    let columns = b.len() * (1 + usize::from(of_complex));
    Tensor::from_slice(&values, &[values.len() / columns, columns])
}

fn points(n: usize) -> Vec<f64> {
    (0..n).map(|i| i as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tensor::{Dtype, Tape};

    /// Compares values and gradients with PyTorch's FFT (tests/golden/tensor.py) in 1-D and 2-D, with all modes and a
    /// subset.
    #[test]
    fn values_and_gradients_are_those_of_the_fft() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tensor.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let golden = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let read = |name: &str| {
            let found = golden.tensor(name).unwrap();
            let words =
                found.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            Tensor::from_slice(&words.collect::<Vec<f32>>(), found.shape())
        };
        for (name, grid, modes) in [
            ("line", [1, 9], 4),
            ("all_of_a_line", [1, 8], 8),
            ("plane", [6, 10], 5),
            ("all_of_a_plane", [4, 6], 12),
        ] {
            let of = |part: &str| read(&format!("spectral_conv_{name}/{part}"));
            let x = of("x");
            let mut builder = Builder::new(1);
            let layer = SpectralConv::new(&mut builder, "conv", x.width(), grid, modes);
            let mut params = builder.finish();
            let shape = params.trained.entries()[0].1.shape().to_vec();
            assert_eq!(shape, of("w").shape(), "{name}");
            *params.trained.tensors_mut().next().unwrap() = of("w");
            let tape = Tape::new();
            let forward = Forward::training(&tape, &params);
            let x = tape.leaf(x);
            let y = layer.forward(&forward, &x).unwrap();
            let weight = forward.variables()[0].clone();
            let value = y.value().clone();
            let mut gradients = tape.backward_from(&y, of("dout")).unwrap();
            let [dx, dw] = [&x, &weight].map(|leaf| gradients.take(leaf).unwrap());
            for (what, ours) in [("out", value), ("dx", dx), ("dw", dw)] {
                // Sums of at most 240 products of f32 numbers of order 1.
                let error = tensor::check::difference(&ours, &of(what).to_dtype(Dtype::F64));
                assert!(error < 2e-6, "{name}, {what}: {error:e}");
            }
        }
    }
}
