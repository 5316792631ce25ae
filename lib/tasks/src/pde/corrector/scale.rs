//! The magnitude of an operator's error, predicted from the state. Residuals span decades between strong and decayed
//! fields; division by their expected magnitude yields values of order one, as a diffusion model needs.
//!
//! s = exp(β·φ) per sample. φ consists of the quadratic monomials of the parameter n of the equation, the log-RMS a of
//! the state and the log-RMS g of its differences between neighbouring tokens; and of log Δt. β is the least-squares
//! fit to the log-RMS of the residuals. Outside the range of the fitted states the parabola may grow without bound, and
//! the corrections would make a rollout diverge; log s is therefore clamped to its range over the fitted states. Each
//! channel is then divided by the RMS of its scaled residuals.

use learn::task::Buffers;
use learn::trained::Parts;
use tensor::Tensor;
use unix::{Error, Result};

/// Number of monomials: 1, n, n², a, g, a², g², a·g, log Δt.
const MONOMIALS: usize = 9;
/// Added to the diagonal of the normal equations, relative to the number of samples: constant monomials get the
/// coefficient 0.
const RIDGE: f64 = 1e-6;
/// Added to mean squares before taking logarithms.
const FLOOR: f64 = 1e-12;

/// The fitted scale.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidualScale {
    coefficients: Vec<f64>,
    /// Minimum and maximum of log s over the fitted states.
    bounds: [f64; 2],
    /// RMS of the scaled residuals of each channel.
    pub channels: Vec<f64>,
    /// Number of columns of the token grid.
    columns: usize,
}

/// Returns the logarithm of the RMS of `count` values whose squares add up to `sum`.
fn log_rms(sum: f64, count: usize) -> f64 {
    0.5 * (sum / count.max(1) as f64 + FLOOR).ln()
}

fn monomials(z: &[f32], columns: usize, dim: usize, features: &[f32]) -> [f64; MONOMIALS] {
    let squares = z.iter().map(|x| f64::from(*x).powi(2)).sum();
    let difference = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    let row = columns * dim;
    let along: f64 =
        z.chunks_exact(row).map(|row| difference(&row[dim..], &row[..row.len() - dim])).sum();
    let down = difference(&z[row..], &z[..z.len() - row]);
    let [n, time] = [features[0], features[1]].map(f64::from);
    let (a, g) = (log_rms(squares, z.len()), log_rms(along + down, z.len()));
    [1.0, n, n * n, a, g, a * a, g * g, a * g, time]
}

impl ResidualScale {
    /// Fits the scale to samples, which are normalised states z [tokens, dim] with their conditions, starting with the
    /// parameter and log Δt, and to the operator's residuals at these states, of the same shape. `columns` is the
    /// number of columns of the token grid.
    ///
    /// The results are rounded to 12 bits, so that processors with different rounding fit the same scale.
    pub fn fit(
        columns: usize,
        dim: usize,
        samples: &[(Vec<f32>, Vec<f32>)],
        residuals: &[Vec<f32>],
    ) -> Result<Self> {
        let rows: Vec<[f64; MONOMIALS]> =
            samples.iter().map(|(z, features)| monomials(z, columns, dim, features)).collect();
        let logs = residuals
            .iter()
            .map(|r| log_rms(r.iter().map(|x| f64::from(*x).powi(2)).sum(), r.len()));
        let mut matrix = [[0.0; MONOMIALS]; MONOMIALS];
        let mut right = [0.0; MONOMIALS];
        for (row, log) in rows.iter().zip(logs) {
            for (i, x) in row.iter().enumerate() {
                right[i] += x * log;
                row.iter().enumerate().for_each(|(j, y)| matrix[i][j] += x * y);
            }
        }
        (0..MONOMIALS).for_each(|i| matrix[i][i] += RIDGE * rows.len() as f64);
        let coefficients: Vec<f64> = solve(matrix, right).into_iter().map(rounded).collect();
        let bounds = [f64::NEG_INFINITY, f64::INFINITY];
        let mut fitted = Self { coefficients, bounds, channels: vec![1.0; dim], columns };
        let logs = rows.iter().map(|row| fitted.log(row));
        let [low, high] = logs.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], log| {
            [low.min(log), high.max(log)]
        });
        fitted.bounds = [low, high].map(rounded);
        let mut sums = vec![0.0; dim];
        for ((z, features), residual) in samples.iter().zip(residuals) {
            let scale = f64::from(fitted.of(z, features));
            for (i, r) in residual.iter().enumerate() {
                sums[i % dim] += (f64::from(*r) / scale).powi(2);
            }
        }
        let count = (samples.iter().map(|(z, _)| z.len()).sum::<usize>() / dim).max(1);
        fitted.channels =
            sums.iter().map(|sum| rounded((sum / count as f64 + FLOOR).sqrt())).collect();
        let all = fitted.coefficients.iter().chain(&fitted.bounds).chain(&fitted.channels);
        if all.copied().all(f64::is_finite) {
            return Ok(fitted);
        }
        Err(Error::data("the residuals of the operator are not finite: is it trained?"))
    }

    /// Returns the scale s of the residual at the normalised state z [tokens, dim].
    pub fn of(&self, z: &[f32], features: &[f32]) -> f32 {
        let row = monomials(z, self.columns, self.channels.len(), features);
        let [low, high] = self.bounds;
        // NaN is mapped to the lower bound.
        self.log(&row).max(low).min(high).exp() as f32
    }

    fn log(&self, row: &[f64; MONOMIALS]) -> f64 {
        row.iter().zip(&self.coefficients).map(|(x, b)| x * b).sum()
    }

    /// Returns the buffers for a checkpoint.
    pub fn buffers(&self) -> Buffers {
        let tensor = |values: &[f64]| Tensor::from_slice(values, &[values.len()]);
        vec![
            ("residual.scale".into(), tensor(&self.coefficients)),
            ("residual.bounds".into(), tensor(&self.bounds)),
            ("residual.channels".into(), tensor(&self.channels)),
        ]
    }

    /// Restores the buffers of [`ResidualScale::buffers`]. Errors: 65 when they are missing or have the wrong size.
    pub fn restore(parts: &Parts, columns: usize) -> Result<Self> {
        let [coefficients, bounds, channels] =
            ["scale", "bounds", "channels"].map(|name| parts.buffer(&format!("residual.{name}")));
        let (coefficients, bounds, channels) = (coefficients?, bounds?, channels?);
        match bounds[..] {
            [low, high] if coefficients.len() == MONOMIALS && !channels.is_empty() => {
                Ok(Self { coefficients, bounds: [low, high], channels, columns })
            }
            _ => Err(Error::data("the checkpoint's buffers `residual.*` have wrong sizes")),
        }
    }
}

/// Rounds `x` to 12 significant bits.
fn rounded(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let unit = (x.abs().log2().floor() - 11.0).exp2();
    (x / unit).round() * unit
}

/// Solves a positive definite system by Cholesky decomposition.
fn solve(mut a: [[f64; MONOMIALS]; MONOMIALS], mut b: [f64; MONOMIALS]) -> [f64; MONOMIALS] {
    for i in 0..MONOMIALS {
        for j in 0..=i {
            let sum = a[i][j] - (0..j).map(|k| a[i][k] * a[j][k]).sum::<f64>();
            a[i][j] = if i == j { sum.sqrt() } else { sum / a[j][j] };
        }
        b[i] = (b[i] - (0..i).map(|k| a[i][k] * b[k]).sum::<f64>()) / a[i][i];
    }
    for i in (0..MONOMIALS).rev() {
        b[i] = (b[i] - (i + 1..MONOMIALS).map(|k| a[k][i] * b[k]).sum::<f64>()) / a[i][i];
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::{Philox, Purpose};

    /// Residuals whose magnitude is an exponential of the monomials are scaled to unit variance in every channel. The
    /// 12-bit rounding of the channel scales changes a variance by at most 0.05 %; the tolerance is 0.2 %.
    #[test]
    fn residuals_are_scaled_to_unit_variance() {
        let (columns, dim, count) = (4, 3, 400);
        let random = Philox::new(3, Purpose::Test);
        let number = |sample: u64, element: u64| random.normal(sample, element);
        let (mut samples, mut residuals) = (Vec::new(), Vec::new());
        let mut sizes = Vec::new();
        for sample in 0..count {
            let amplitude = (2.0 * number(sample, 1000)).exp();
            let z: Vec<f32> = (0..24).map(|i| amplitude * number(sample, i)).collect();
            let features = vec![(sample % 3) as f32 - 1.0, 0.0];
            let size = 0.01 * amplitude.powf(1.5) * (0.7 * features[0]).exp();
            sizes.push(size);
            residuals.push(
                (0..24u64)
                    .map(|i| size * [1.0, 2.0, 0.5][i as usize % 3] * number(sample, 2000 + i))
                    .collect::<Vec<f32>>(),
            );
            samples.push((z, features));
        }
        let scale = ResidualScale::fit(columns, dim, &samples, &residuals).unwrap();
        let mut sums = [0.0; 3];
        for ((z, features), residual) in samples.iter().zip(&residuals) {
            let s = scale.of(z, features);
            for (i, r) in residual.iter().enumerate() {
                sums[i % 3] += f64::from(r / s).powi(2) / scale.channels[i % 3].powi(2);
            }
        }
        for sum in sums {
            let variance = sum / (count * 8) as f64;
            assert!((variance - 1.0).abs() < 0.002, "{variance}");
        }
        // Far from the fitted states, the scale is clamped to the nearest bound.
        let huge: Vec<f32> = samples[0].0.iter().map(|z| 1e6 * z).collect();
        let of = |(z, features): &(Vec<f32>, Vec<f32>)| scale.of(z, features);
        let largest = samples.iter().map(of).fold(0.0, f32::max);
        let ratio = scale.of(&huge, &[1.0, 0.0]) / largest;
        assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
        // The fitted magnitude follows the true one over its three decades.
        for ((z, features), size) in samples.iter().zip(sizes) {
            let ratio = scale.of(z, features) / size;
            assert!((0.5..4.0).contains(&ratio), "{ratio}");
        }
    }
}
