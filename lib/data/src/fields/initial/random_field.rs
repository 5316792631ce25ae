//! Gaussian random fields in two dimensions as sums of waves, so that they are functions of position and independent of
//! the grid.

use std::f64::consts::{PI, TAU};
use tensor::random::{Philox, Purpose};

/// Maximum wave number of a periodic field.
const PERIODIC_WAVES: i32 = 32;
/// Maximum number of half waves along each axis of a field with closed boundaries.
const CLOSED_WAVES: i32 = 63;

/// A random field on the unit square, determined by (seed, parameter, trajectory).
#[derive(Clone, Debug, PartialEq)]
pub struct RandomField {
    terms: Vec<Term>,
}

/// One wave: a cos(px + qy) + b sin(px + qy).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Term {
    /// Angular wave numbers p and q.
    angle: [f64; 2],
    /// Amplitudes a and b.
    amplitude: [f64; 2],
}

impl RandomField {
    /// Draws from N(0, σ²(-Δ + τ²)^-α) with periodic boundaries and mean zero, τ = 7, α = 2.5, σ = τ^(α-1): the initial
    /// vorticity in the Fourier neural operator data (Li et al. 2021, A.3.3).
    pub fn vorticity(seed: u64, parameter: f64, trajectory: u64) -> Self {
        let (tau, alpha) = (7.0_f64, 2.5);
        let normal = Philox::new(seed, Purpose::InitialState).at_update(parameter.to_bits());
        let mut terms = Vec::new();
        let m = PERIODIC_WAVES;
        // Each pair of opposite wave vectors is a single term.
        for (number, (p, q)) in (-m..=m).flat_map(|p| (0..=m).map(move |q| (p, q))).enumerate() {
            if q == 0 && p <= 0 {
                continue;
            }
            let angle = [p, q].map(|k| TAU * f64::from(k));
            let square = angle[0] * angle[0] + angle[1] * angle[1];
            let size = 2.0 * tau.powf(alpha - 1.0) * (square + tau * tau).powf(-0.5 * alpha);
            let draw =
                |part: u64| size * f64::from(normal.normal(trajectory, 2 * number as u64 + part));
            terms.push(Term { angle, amplitude: [draw(0), draw(1)] });
        }
        Self { terms }
    }

    /// Draws from N(0, (-Δ + 9)^-2) with closed boundaries (cosines) and mean zero: the field whose sign determines the
    /// coefficients of Darcy flow (Li et al. 2021, A.3.2).
    pub fn rock(seed: u64, trajectory: u64) -> Self {
        let normal = Philox::new(seed, Purpose::InitialState);
        let mut terms = Vec::new();
        let m = CLOSED_WAVES;
        for (number, (p, q)) in (0..=m).flat_map(|p| (0..=m).map(move |q| (p, q))).enumerate() {
            if (p, q) == (0, 0) {
                continue;
            }
            let angle = [p, q].map(|k| PI * f64::from(k));
            let square = angle[0] * angle[0] + angle[1] * angle[1];
            let norm = if p > 0 && q > 0 { 2.0 } else { 2.0_f64.sqrt() };
            let size = norm / (square + 9.0);
            let amplitude = size * f64::from(normal.normal(trajectory, number as u64));
            // cos px cos qy = (cos(px + qy) + cos(px - qy))/2.
            for q in [angle[1], -angle[1]] {
                terms.push(Term { angle: [angle[0], q], amplitude: [0.5 * amplitude, 0.0] });
            }
        }
        Self { terms }
    }

    /// Evaluates the field at the centres of n by n equal cells, [x, y].
    pub fn on_cells(&self, n: usize) -> Vec<f64> {
        let mut out = vec![0.0; n * n];
        let centre = |i: usize| (i as f64 + 0.5) / n as f64;
        // Sums over p for each q and x, then over q, using the addition theorems for cos(px + qy) and sin(px + qy).
        let mut numbers: Vec<f64> = self.terms.iter().map(|term| term.angle[1]).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        for q in numbers {
            let terms: Vec<&Term> = self.terms.iter().filter(|t| t.angle[1] == q).collect();
            let along_y: Vec<(f64, f64)> = (0..n).map(|j| (q * centre(j)).sin_cos()).collect();
            for (i, row) in out.chunks_exact_mut(n).enumerate() {
                let (mut cosines, mut sines) = (0.0, 0.0);
                for Term { angle, amplitude: [a, b] } in &terms {
                    let (sin, cos) = (angle[0] * centre(i)).sin_cos();
                    cosines += a * cos + b * sin;
                    sines += b * cos - a * sin;
                }
                for (value, (sin, cos)) in row.iter_mut().zip(&along_y) {
                    *value += cosines * cos + sines * sin;
                }
            }
        }
        out
    }
}

/// Fills `out` with independent standard normal numbers, determined by (seed, parameter, trajectory, position).
pub fn white_noise(seed: u64, parameter: f64, trajectory: u64, out: &mut [f64]) {
    let normal = Philox::new(seed, Purpose::InitialState).at_update(parameter.to_bits());
    for (element, out) in (0..).zip(out) {
        *out = f64::from(normal.normal(trajectory, element));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_square(u: &[f64]) -> f64 {
        u.iter().map(|u| u * u).sum::<f64>() / u.len() as f64
    }

    #[test]
    fn a_vorticity_has_the_variance_of_its_spectrum_and_no_mean() {
        // The grid resolves the shortest wave.
        let (tau, n, count) = (7.0_f64, 66, 100);
        let expected: f64 = (-32..=32)
            .flat_map(|p| (-32..=32).map(move |q| (p, q)))
            .filter(|k| *k != (0, 0))
            .map(|(p, q)| TAU * TAU * f64::from(p * p + q * q))
            .map(|square| 2.0 * tau.powi(3) * (square + tau * tau).powf(-2.5))
            .sum();
        let mut found = 0.0;
        for trajectory in 0..count {
            let w = RandomField::vorticity(3, 1e-3, trajectory).on_cells(n);
            assert!((w.iter().sum::<f64>() / (n * n) as f64).abs() < 1e-12);
            found += mean_square(&w) / count as f64;
        }
        assert!((found / expected - 1.0).abs() < 0.2, "{found} instead of {expected}");
    }

    /// A cosine field is even about every boundary.
    #[test]
    fn fields_satisfy_their_boundary_conditions_and_depend_on_their_key() {
        let n = 16;
        let state = RandomField::vorticity(1, 0.1, 5);
        assert_eq!(state, RandomField::vorticity(1, 0.1, 5));
        for other in [(2, 0.1, 5), (1, 0.2, 5), (1, 0.1, 6)] {
            assert_ne!(state, RandomField::vorticity(other.0, other.1, other.2));
        }
        // On a square of twice the side length, the cosine field consists of the original and its mirror images.
        let rock = RandomField::rock(7, 2);
        let doubled = RandomField {
            terms: rock
                .terms
                .iter()
                .map(|t| Term { angle: t.angle.map(|a| 2.0 * a), ..*t })
                .collect(),
        };
        let (rock, doubled) = (rock.on_cells(n), doubled.on_cells(2 * n));
        for i in 0..n {
            for j in 0..n {
                for (x, y) in [(i, j), (2 * n - 1 - i, j), (i, 2 * n - 1 - j)] {
                    assert!((rock[i * n + j] - doubled[x * 2 * n + y]).abs() < 1e-10);
                }
            }
        }
    }
}
