//! Linear advection, u_t + β u_x = 0 on the periodic unit interval: the initial state, shifted.

use super::symmetry::{Point, Symmetries};
use super::{cell_centres, frame_times};

/// The equation is linear: u -> -u. A reflection would change the sign of β. The mean is conserved.
pub const SYMMETRIES: Symmetries = Symmetries {
    points: &[Point { negate: true, ..Point::IDENTITY }],
    translation: Some([1, 0]),
    centred: false,
    conserved: &[0],
};

/// Writes the trajectory `out` of shape [frames, grid]: u(x, t) = u₀(x - β t) at the cell centres.
pub fn solve(initial: impl Fn(f64) -> f64, beta: f64, grid: usize, end: f64, out: &mut [f32]) {
    let x = cell_centres(grid);
    let times = frame_times(out.len() / grid, end);
    for (frame, time) in out.chunks_exact_mut(grid).zip(times) {
        for (value, x) in frame.iter_mut().zip(&x) {
            *value = initial(x - beta * time) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::initial::Sinusoids;

    /// After a whole period the initial state returns; a shift by whole cells is a roll.
    #[test]
    fn shifts_the_initial_state() {
        let initial = Sinusoids::draw(3, 0.5, 1);
        let grid = 64;
        let mut out = vec![0.0; 5 * grid];
        solve(|x| initial.at(x), 0.5, grid, 2.0, &mut out);
        for i in 0..grid {
            assert!((out[i] - out[4 * grid + i]).abs() < 1e-6);
            // Frame 1: t = 0.5, a shift of 0.25 = 16 cells.
            assert!((out[i] - out[grid + (i + 16) % grid]).abs() < 1e-6);
        }
    }
}
