//! Real FFTs of latent states, computed as matrix products because their axes are short.

use learn::forward::Forward;
use std::f64::consts::TAU;
use tensor::ops::activation::Activation;
use tensor::ops::linear::Linear;
use tensor::ops::matmul::MatMul;
use tensor::ops::relative_error::RelativeError;
use tensor::ops::vector_norm::VectorNorm;
use tensor::{Tensor, Var};
use unix::Result;

/// Returns F [2·(⌊n/2⌋ + 1), n]: a row of cosines and a row of negative sines per frequency, so that F x contains the
/// real and imaginary parts of the transform of x, interleaved.
fn fourier(n: usize) -> Tensor {
    let table: Vec<_> = (0..n).map(|i| (TAU * i as f64 / n as f64).sin_cos()).collect();
    let frequencies = n / 2 + 1;
    let mut rows = Vec::with_capacity(2 * frequencies * n);
    for k in 0..frequencies {
        rows.extend((0..n).map(|i| table[k * i % n].1));
        rows.extend((0..n).map(|i| -table[k * i % n].0));
    }
    Tensor::from_slice(&rows, &[2 * frequencies, n])
}

/// Computes Σ over frequencies and features of |rFFT over tokens|², per sample: [B, T, D] -> [B, 1].
fn energies(forward: &Forward, x: &Var) -> Result<Var> {
    let samples = x.shape()[0];
    let parts = forward.apply(MatMul, &[&forward.constant(&fourier(x.shape()[1]))?, x])?;
    let rows = parts.reshape(&[samples, parts.value().len() / samples]);
    Ok(forward.apply(VectorNorm::Squared, &[&rows])?.reshape(&[samples, 1]))
}

/// Computes the mean over samples of |E(z) - E(target)|/E(target), with E the spectral energy over tokens. z and target
/// are [B, T, D]; the result is a scalar.
pub(super) fn energy_error(forward: &Forward, z: &Var, target: &Var) -> Result<Var> {
    let [z, target] = [energies(forward, z)?, energies(forward, target)?];
    forward.apply(RelativeError { epsilon: 1e-16 }, &[&z, &target])
}

/// Computes √(|rFFT over features|² + ε²), ε = 1e-6: [B, T, D] -> [B, T, ⌊D/2⌋ + 1].
pub(super) fn magnitudes(forward: &Forward, x: &Var) -> Result<Var> {
    let [samples, tokens, width] = [0, 1, 2].map(|axis| x.shape()[axis]);
    let op = Linear { bias: false, activation: Activation::Identity };
    let parts = forward.apply(op, &[x, &forward.constant(&fourier(width))?])?;
    let parts = parts.reshape(&[samples, tokens, width / 2 + 1, 2]);
    forward.apply(VectorNorm::Root { epsilon: 1e-6 }, &[&parts])
}

#[cfg(test)]
mod tests {
    use super::*;
    use learn::params::Builder;
    use tensor::check::draw;
    use tensor::op::Draw;
    use tensor::{Dtype, Tape, constant};

    /// Reference: |rFFT|² of a row.
    fn squares(mut x: Vec<f64>) -> Vec<f64> {
        let plan = fft::real(x.len()).0;
        let mut waves = plan.make_output_vec();
        plan.process(&mut x, &mut waves).unwrap();
        waves.iter().map(|wave| wave.norm_sqr()).collect()
    }

    #[test]
    fn energies_and_magnitudes_are_those_of_a_fast_transform() {
        for (tokens, width) in [(8, 5), (9, 6), (1, 1)] {
            let shape = [3, tokens, width];
            let [p, t] = [1, 2].map(|seed| draw(&shape, &Draw::Normal, seed, 0));
            let energies = |x: &Tensor| -> Vec<f64> {
                let x = x.to_f64();
                let columns = (0..3 * width).map(|column| {
                    let start = column / width * tokens * width + column % width;
                    let own = x[start..].iter().step_by(width).take(tokens);
                    squares(own.copied().collect()).iter().sum::<f64>()
                });
                columns.collect::<Vec<_>>().chunks(width).map(|c| c.iter().sum()).collect()
            };
            let pairs = energies(&p).into_iter().zip(energies(&t));
            let expected = pairs.map(|(p, t)| (p - t).abs() / t).sum::<f64>() / 3.0;
            let tape = Tape::without_gradients();
            let params = Builder::new(0).finish();
            let forward = Forward::evaluation(&tape, &params);
            let [p, t] = [p, t].map(|x| x.to_dtype(Dtype::F32));
            let rows = p.to_f64();
            let [p, t] = [p, t].map(constant);
            let found = energy_error(&forward, &p, &t).unwrap().value().item();
            assert!((found - expected).abs() < 1e-5 * (1.0 + expected), "{found} {expected}");
            let found = magnitudes(&forward, &p).unwrap().value().to_f64();
            let expected = rows.chunks(width).flat_map(|row| squares(row.to_vec()));
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected.sqrt()).abs() < 1e-5, "{found} {expected}");
            }
        }
    }
}
