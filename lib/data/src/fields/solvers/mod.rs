//! Solvers that generate training data.

pub mod advection;
pub mod burgers;
pub mod darcy;
pub mod diffusion;
pub mod diffusion_reaction;
pub mod fitzhugh_nagumo;
pub mod navier_stokes;
pub mod physics;
pub mod plane;
pub mod symmetry;

/// Returns the centres of `grid` equal cells of the unit interval.
pub fn cell_centres(grid: usize) -> Vec<f64> {
    (0..grid).map(|i| (i as f64 + 0.5) / grid as f64).collect()
}

/// Returns the times of `frames` frames from 0 to `end`, both inclusive.
pub fn frame_times(frames: usize, end: f64) -> Vec<f64> {
    let last = frames.saturating_sub(1).max(1) as f64;
    (0..frames).map(|frame| frame as f64 * end / last).collect()
}
