//! Viscous Burgers equation, u_t + (u²/2)_x = (ν/π) u_xx on the periodic unit interval.
//!
//! Strang splitting, second order in time and space. Convection: finite volumes, MUSCL with the monotonized central
//! limiter (van Leer 1977), the Godunov flux, second-order SSP Runge-Kutta; the step is bounded by the Courant number
//! alone. Diffusion: the exact semigroup of the central second difference.
//!
//! Both parts obey the maximum principle, so the maximum speed in a frame bounds the time step until the next frame.
//! Arithmetic is f64; a trajectory depends only on its initial state and ν.

use super::diffusion::{self, Diffusion, Ends};
use super::symmetry::{Point, Symmetries};
use std::f64::consts::PI;

/// Courant number: at 0.5 the MUSCL step with this limiter is total-variation diminishing.
pub const COURANT: f64 = 0.5;

/// u(x) -> -u(-x), and translations; the mean is conserved.
pub const SYMMETRIES: Symmetries = Symmetries {
    points: &[Point { flip: [true, false], negate: true, ..Point::IDENTITY }],
    translation: Some([1, 0]),
    centred: false,
    conserved: &[0],
};

/// Number of ghost cells on each side.
const GHOSTS: usize = 2;

/// The scheme for one grid and viscosity; can be shared between threads.
#[derive(Clone)]
pub struct Burgers {
    nu: f64,
    grid: usize,
    diffusion: Diffusion,
}

impl Burgers {
    /// Creates a scheme on `grid` cells with viscosity ν/π.
    pub fn new(nu: f64, grid: usize) -> Self {
        Self { nu, grid, diffusion: Diffusion::new(grid, Ends::Periodic) }
    }

    /// Allocates buffers for one trajectory at a time.
    pub fn workspace(&self) -> Workspace {
        let padded = || vec![0.0; self.grid + 2 * GHOSTS];
        Workspace {
            u: padded(),
            stage: padded(),
            slope: padded(),
            flux: padded(),
            diffusion: self.diffusion.workspace(),
            damping: Damping::default(),
        }
    }

    /// Solves from `initial` (values at the cell centres) and writes the frames 0, 1, … at times
    /// `interval` apart to `out`, of shape [frames, grid]. Returns the number of time steps, or
    /// `None` when the solution is no longer finite.
    pub fn solve(
        &self,
        initial: &[f64],
        interval: f64,
        out: &mut [f32],
        work: &mut Workspace,
    ) -> Option<u64> {
        work.u[GHOSTS..][..self.grid].copy_from_slice(initial);
        let mut total = 0;
        for (frame, out) in out.chunks_exact_mut(self.grid).enumerate() {
            if frame > 0 {
                total += self.advance(interval, work)?;
            }
            for (out, u) in out.iter_mut().zip(&work.u[GHOSTS..]) {
                *out = *u as f32;
            }
        }
        Some(total)
    }

    /// Advances `u` by `interval`. Returns `None` when the solution is no longer finite.
    pub fn step(&self, u: &mut [f64], interval: f64, work: &mut Workspace) -> Option<()> {
        work.u[GHOSTS..][..self.grid].copy_from_slice(u);
        self.advance(interval, work)?;
        u.copy_from_slice(&work.u[GHOSTS..][..self.grid]);
        Some(())
    }

    /// Computes u_t of the discretised equation: differences of the Godunov flux plus the central second difference.
    pub fn rate(&self, u: &[f64], out: &mut [f64], work: &mut Workspace) {
        let (n, cells) = (self.grid, self.grid as f64);
        work.u[GHOSTS..][..n].copy_from_slice(u);
        let Workspace { u, slope, flux, .. } = work;
        godunov_fluxes(u, slope, flux, n);
        let diffusivity = self.nu / PI * cells * cells;
        for (i, out) in (GHOSTS..).zip(out) {
            let convection = (flux[i] - flux[i - 1]) * cells;
            *out = diffusivity * (u[i + 1] - 2.0 * u[i] + u[i - 1]) - convection;
        }
    }

    /// Advances `work.u` by `interval` in equal steps and returns their number.
    fn advance(&self, interval: f64, work: &mut Workspace) -> Option<u64> {
        let cell = 1.0 / self.grid as f64;
        let speed = work.u[GHOSTS..][..self.grid].iter().fold(0.0, |m: f64, u| m.max(u.abs()));
        let finite = work.u[GHOSTS..][..self.grid].iter().all(|u| u.is_finite());
        let steps = (interval * speed / (COURANT * cell)).ceil().max(1.0);
        if !finite || steps > 1e9 {
            return None;
        }
        let (step, ratio) = (interval / steps, interval / steps / cell);
        let steps = steps as u64;
        work.damping.prepare(self.nu / PI, &self.diffusion, step);
        self.diffuse(work, true);
        for left in (0..steps).rev() {
            pulp::Arch::new().dispatch(|| convect(work, self.grid, ratio));
            // Two consecutive half steps of diffusion are merged into one whole step.
            self.diffuse(work, left == 0);
        }
        Some(steps)
    }

    fn diffuse(&self, work: &mut Workspace, is_half: bool) {
        if self.nu != 0.0 {
            let factors = if is_half { &work.damping.half } else { &work.damping.whole };
            let u = &mut work.u[GHOSTS..][..self.grid];
            self.diffusion.apply(u, factors, &mut work.diffusion);
        }
    }
}

/// Buffers for one trajectory.
pub struct Workspace {
    u: Vec<f64>,
    stage: Vec<f64>,
    slope: Vec<f64>,
    flux: Vec<f64>,
    diffusion: diffusion::Workspace,
    damping: Damping,
}

/// Factors of the diffusion semigroup for a half step and a whole step.
#[derive(Default)]
struct Damping {
    step: f64,
    half: Vec<f64>,
    whole: Vec<f64>,
}

impl Damping {
    fn prepare(&mut self, diffusivity: f64, diffusion: &Diffusion, step: f64) {
        if step != self.step {
            let factors = |time: f64| diffusion.factors(diffusivity, time, 1.0);
            *self = Self { step, half: factors(0.5 * step), whole: factors(step) };
        }
    }
}

/// Performs one SSP-RK2 convection step (Shu and Osher 1988) with `ratio` = Δt/Δx.
#[inline(always)]
fn convect(work: &mut Workspace, n: usize, ratio: f64) {
    let Workspace { u, stage, slope, flux, .. } = work;
    godunov_fluxes(u, slope, flux, n);
    for i in GHOSTS..n + GHOSTS {
        stage[i] = u[i] - ratio * (flux[i] - flux[i - 1]);
    }
    godunov_fluxes(stage, slope, flux, n);
    for i in GHOSTS..n + GHOSTS {
        u[i] = 0.5 * (u[i] + (stage[i] - ratio * (flux[i] - flux[i - 1])));
    }
}

/// Computes `flux[i]` between cells i and i+1 from limited linear reconstructions. The Godunov flux of a convex f with
/// its minimum at 0 is max(f(max(left, 0)), f(min(right, 0))).
#[inline(always)]
fn godunov_fluxes(u: &mut [f64], slope: &mut [f64], flux: &mut [f64], n: usize) {
    let length = n + 2 * GHOSTS;
    let (u, slope, flux) = (&mut u[..length], &mut slope[..length], &mut flux[..length]);
    u.copy_within(n..n + GHOSTS, 0);
    u.copy_within(GHOSTS..2 * GHOSTS, n + GHOSTS);
    // Half the limited difference: minmod(a, b, (a + b)/4), branch-free.
    for i in 1..length - 1 {
        let (a, b) = (u[i] - u[i - 1], u[i + 1] - u[i]);
        let c = 0.25 * (a + b);
        slope[i] = larger(0.0, smaller(smaller(a, b), c)) + smaller(0.0, larger(larger(a, b), c));
    }
    for i in 1..length - 2 {
        let left = larger(u[i] + slope[i], 0.0);
        let right = smaller(u[i + 1] - slope[i + 1], 0.0);
        flux[i] = 0.5 * larger(left * left, right * right);
    }
}

/// Returns the larger number. Unlike `f64::max`, this is a single machine instruction; NaN is checked for once per
/// frame instead.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

#[inline(always)]
fn smaller(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}
