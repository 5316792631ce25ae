//! Signatures: short vectors that are close whenever the fields are close, used to select candidates.
//!
//! A signature s is a Lipschitz map with constant 1: |s(a) - s(b)| <= |a - b| in the Euclidean norm, because its
//! entries are orthogonal projections of the field. Two fields within some radius of each other therefore always have
//! signatures within that radius. The search over signatures has no false negatives, and its hits are compared at full
//! resolution.

use crate::fields::field::Shape;

/// Number of entries in a projection.
const HALF: usize = 16;
/// Number of entries in a signature.
pub(super) const LENGTH: usize = 2 * HALF;

pub(super) type Signature = [f32; LENGTH];

/// Bound on a signature's rounding error, relative to the variation of the field.
pub(super) const ROUNDING: f64 = 1e-6;
/// A channel counts as constant if its variation is at most this fraction of its norm.
const CONSTANT: f64 = 1e-6;

/// Data by which two frames are compared.
pub(super) struct Sketch {
    /// Centred values; see [`Sketcher::centred`].
    pub values: Vec<f64>,
    /// Signature of `values`.
    pub signature: Signature,
    /// Euclidean norm of `values`, the scale of relative distances.
    pub variation: f64,
}

/// Computes signatures of frames of one shape.
pub(super) struct Sketcher {
    /// Number of channels of the field; the first `width` of them are compared.
    channels: usize,
    width: usize,
    grid: Vec<usize>,
    cells: Projection,
    random: Projection,
}

impl Sketcher {
    /// Prepares sketches of the inputs of a steady problem, otherwise of all channels.
    pub fn new(shape: &Shape, inputs: usize) -> Self {
        let (channels, grid) = (shape.channels, shape.grid.clone());
        let width = if shape.frames > 1 || inputs == 0 { channels } else { inputs };
        let values = shape.points() * width;
        // The means over 16 blocks of the grid capture smooth fields; 16 sums with random signs capture all others.
        let a_side = [16, 4, 2][grid.len().min(3) - 1];
        let cell = |i: usize| {
            let (mut point, mut cell) = (i / width, 0);
            for n in grid.iter().rev() {
                cell = cell * a_side + point % n * a_side / n;
                point /= n;
            }
            (cell % HALF, random(i % width) & 1 == 1)
        };
        let sign = |i: usize| (random(i) as usize >> 1 & (HALF - 1), random(i) & 1 == 1);
        let (cells, random) = (Projection::new(values, cell), Projection::new(values, sign));
        Self { channels, width, grid, cells, random }
    }

    /// Whether two frames can be compared point by point.
    pub fn fits(&self, other: &Self) -> bool {
        (&self.grid, self.width) == (&other.grid, other.width)
    }

    /// Returns the values of a frame that are compared, [points, width].
    pub fn compared(&self, frame: &[f32]) -> Vec<f32> {
        let points = frame.chunks_exact(self.channels);
        points.flat_map(|point| &point[..self.width]).copied().collect()
    }

    /// Computes the sketch of `values`, the result of [`compared`](Self::compared). Returns `None` for a frame that has
    /// non-finite values or whose channels are all constant up to rounding, because it does not identify a trajectory.
    pub fn sketch(&self, values: &[f32]) -> Option<Sketch> {
        let values = self.centred(values);
        let variation = values.iter().map(|v| v.powi(2)).sum::<f64>().sqrt();
        if !variation.is_finite() || variation == 0.0 {
            return None;
        }
        let mut signature = [0.0; LENGTH];
        let (cells, random) = signature.split_at_mut(HALF);
        self.cells.apply(&values, cells);
        self.random.apply(&values, random);
        Some(Sketch { values, signature, variation })
    }

    /// Subtracts the mean of each channel from `values`, so that a pressure of 1e5 does not outweigh a velocity of 1. A
    /// channel that is constant up to rounding becomes 0.
    pub fn centred(&self, values: &[f32]) -> Vec<f64> {
        let mut centred: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
        for channel in 0..self.width {
            let of_channel =
                || values.iter().skip(channel).step_by(self.width).map(|v| f64::from(*v));
            // Rounding to f32 makes the mean independent of the order of the points.
            let mean = of_channel().sum::<f64>() / (values.len() / self.width) as f64;
            let mean = f64::from(mean as f32);
            let square: f64 = of_channel().map(|v| v.powi(2)).sum();
            let about: f64 = of_channel().map(|v| (v - mean).powi(2)).sum();
            let constant = about <= CONSTANT.powi(2) * square;
            for value in centred.iter_mut().skip(channel).step_by(self.width) {
                *value = if constant { 0.0 } else { *value - mean };
            }
        }
        centred
    }
}

/// Signed sums of values, each value in exactly one sum: an orthogonal projection onto [`HALF`] directions.
struct Projection {
    /// For each value, the index of its sum in the low bits, plus [`MINUS`] for a negative sign.
    codes: Vec<u8>,
    scales: [f64; HALF],
}

const MINUS: u8 = 128;

impl Projection {
    /// Creates a projection of `values` values. `place` returns the index of each value's sum, and whether its sign is
    /// negative.
    fn new(values: usize, place: impl Fn(usize) -> (usize, bool)) -> Self {
        let mut counts = [0.0; HALF];
        let code = |i| {
            let (sum, minus) = place(i);
            counts[sum] += 1.0;
            sum as u8 | if minus { MINUS } else { 0 }
        };
        let codes = (0..values).map(code).collect();
        // Each of the two projections in a signature gets half of the squared norm.
        Self { codes, scales: counts.map(|count: f64| (0.5 / count.max(1.0)).sqrt()) }
    }

    fn apply(&self, values: &[f64], out: &mut [f32]) {
        let mut sums = [0.0; HALF];
        for (value, code) in values.iter().zip(&self.codes) {
            sums[usize::from(code & (HALF as u8 - 1))] +=
                if code & MINUS == 0 { *value } else { -value };
        }
        for ((out, sum), scale) in out.iter_mut().zip(sums).zip(self.scales) {
            *out = (sum * scale) as f32;
        }
    }
}

/// A pseudorandom function of `i`: the finalizer of SplitMix64.
fn random(i: usize) -> u64 {
    let mut z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::{Philox, Purpose};

    fn norm<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> f64 {
        a.iter().zip(b).map(|(a, b)| ((*a).into() - (*b).into()).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn signatures_are_never_farther_apart_than_fields() {
        let random = Philox::new(5, Purpose::Test);
        for (case, grid) in [vec![64], vec![12, 10], vec![4, 6, 5]].into_iter().enumerate() {
            let shape = Shape { trajectories: 1, frames: 2, grid, channels: 2 };
            let sketcher = Sketcher::new(&shape, 0);
            for pair in 0..40u64 {
                let size = 10f32.powi(-(pair as i32 % 7));
                let draw = |i: u64| random.uniform(pair + 100 * case as u64, i) - 0.5;
                let a: Vec<f32> = (0..shape.frame_len() as u64).map(draw).collect();
                let b: Vec<f32> = (1000..).zip(&a).map(|(i, a)| a + size * draw(i)).collect();
                let [x, y] = [&a, &b].map(|values| sketcher.sketch(values).unwrap());
                let apart = norm(&x.values, &y.values);
                assert!(norm(&x.signature, &y.signature) <= apart + ROUNDING * x.variation);
            }
        }
    }
}
