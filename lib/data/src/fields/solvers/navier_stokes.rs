//! Two-dimensional incompressible flow in vorticity form, w_t + u·∇w = νΔw + f on the periodic unit square, u = (ψ_y,
//! -ψ_x), -Δψ = w; f = A (sin 2π(x+y) + cos 2π(x+y)).
//!
//! Pseudo-spectral: products are computed in physical space and dealiased (two-thirds rule), so that without viscosity
//! and forcing the truncated equations conserve energy and enstrophy. The convection term is the curl of ∇·(u⊗u), which
//! takes four transforms (Basdevant 1983). In time, viscosity is integrated exactly and the rest by classical
//! fourth-order Runge-Kutta (integrating factor); the step is bounded by the Courant number alone. Arithmetic is f64.

use super::plane::{self, FftPlan};
use super::symmetry::{Point, Symmetries};
use fft::Complex64;
use std::f64::consts::TAU;

/// Courant number: the maximum of (|u|+|v|) · step / spacing. The method is unstable from 1.3 upwards.
pub const COURANT: f64 = 0.5;

/// Symmetries of the forcing √2 A sin(2π(x+y) + π/4): rotation by π combined with a shift of x+y by a quarter of the
/// period; reflections across both diagonals, which change the sign of the vorticity, combined with a shift by half a
/// period, which changes the sign of the forcing; and translations along x = -y. The mean is conserved.
pub const SYMMETRIES: Symmetries = Symmetries {
    points: &[
        Point { flip: [true, true], quarters: 1, ..Point::IDENTITY },
        Point { swap: true, negate: true, quarters: 2, ..Point::IDENTITY },
        Point { swap: true, flip: [true, true], negate: true, quarters: 3 },
    ],
    translation: Some([1, -1]),
    centred: true,
    conserved: &[0],
};

/// The scheme for one grid, viscosity and forcing; can be shared between threads.
#[derive(Clone)]
pub struct NavierStokes {
    nu: f64,
    points: usize,
    courant: f64,
    plane: FftPlan,
    /// For each wave: kx, ky, 1/k² (0 for the mean), k²; all zero for truncated waves.
    waves: Vec<Wave>,
    force: Vec<(usize, Complex64)>,
}

#[derive(Clone, Copy, Default)]
struct Wave {
    kept: bool,
    x: f64,
    y: f64,
    square: f64,
    inverse: f64,
}

/// Buffers for one trajectory.
pub struct Workspace {
    plane: plane::Workspace,
    w: Vec<Complex64>,
    stage: Vec<Complex64>,
    slope: Vec<Complex64>,
    sum: Vec<Complex64>,
    spectrum: Vec<Complex64>,
    u: Vec<f64>,
    v: Vec<f64>,
    /// exp(-νk²Δt/2).
    decay: Vec<f64>,
}

impl NavierStokes {
    /// Creates a scheme on `points` points per side with a forcing of amplitude `force`.
    pub fn new(nu: f64, force: f64, points: usize, courant: f64) -> Self {
        let plane = FftPlan::new(points);
        let wave = |k: &Option<[f64; 2]>| {
            let Some([x, y]) = k.map(|k| k.map(|k| TAU * k)) else { return Wave::default() };
            let square = x * x + y * y;
            let inverse = if square > 0.0 { 1.0 / square } else { 0.0 };
            Wave { kept: true, x, y, square, inverse }
        };
        let waves = plane.waves();
        // sin a + cos a = Re ((1 - i) exp(ia)), half of which is stored as the coefficient. The first grid point is the
        // centre of a cell.
        let forced = waves.iter().position(|k| *k == Some([1.0, 1.0]));
        let first = Complex64::from_polar(force, TAU / points as f64);
        let force = forced.map(|at| (at, Complex64::new(0.5, -0.5) * first));
        Self {
            nu,
            points,
            courant,
            waves: waves.iter().map(wave).collect(),
            force: force.into_iter().collect(),
            plane,
        }
    }

    /// Allocates buffers for one trajectory at a time.
    pub fn workspace(&self) -> Workspace {
        let spectrum = || vec![Complex64::default(); self.plane.spectrum_len()];
        let field = || vec![0.0; self.points * self.points];
        Workspace {
            plane: self.plane.workspace(),
            w: spectrum(),
            stage: spectrum(),
            slope: spectrum(),
            sum: spectrum(),
            spectrum: spectrum(),
            u: field(),
            v: field(),
            decay: vec![0.0; self.plane.spectrum_len()],
        }
    }

    /// Solves from the vorticity `initial` [x, y], truncated to the retained waves, and writes frames `interval` apart
    /// to `out` [frames, x, y]. Returns the number of time steps, or `None` when the solution is no longer finite.
    pub fn solve(
        &self,
        initial: &[f64],
        interval: f64,
        out: &mut [f32],
        work: &mut Workspace,
    ) -> Option<u64> {
        self.transform(initial, work);
        let mut total = 0;
        for (frame, out) in out.chunks_exact_mut(self.points * self.points).enumerate() {
            if frame > 0 {
                total += self.advance(interval, work)?;
            }
            self.plane.inverse(&work.w, &mut work.u, &mut work.plane);
            out.iter_mut().zip(&work.u).for_each(|(out, w)| *out = *w as f32);
        }
        Some(total)
    }

    /// Advances the vorticity `w` [x, y] by `interval`. Returns `None` when the solution is no longer finite.
    pub fn advance_field(&self, w: &mut [f64], interval: f64, work: &mut Workspace) -> Option<()> {
        self.transform(w, work);
        self.advance(interval, work)?;
        self.plane.inverse(&work.w, w, &mut work.plane);
        Some(())
    }

    /// Computes w_t of the truncated equations.
    pub fn rate(&self, w: &[f64], out: &mut [f64], work: &mut Workspace) {
        self.transform(w, work);
        work.stage.copy_from_slice(&work.w);
        self.slope(work);
        for ((slope, w), wave) in work.slope.iter_mut().zip(&work.w).zip(&self.waves) {
            *slope -= w * (self.nu * wave.square);
        }
        self.plane.inverse(&work.slope, out, &mut work.plane);
    }

    /// Transforms a field to `work.w`, truncated to the retained waves.
    fn transform(&self, field: &[f64], work: &mut Workspace) {
        work.u.copy_from_slice(field);
        self.plane.forward(&mut work.u, &mut work.w, &mut work.plane);
        for (w, wave) in work.w.iter_mut().zip(&self.waves) {
            *w = if wave.kept { *w } else { Complex64::default() };
        }
    }

    /// Advances `work.w` by `interval` in equal steps and returns their number.
    fn advance(&self, interval: f64, work: &mut Workspace) -> Option<u64> {
        work.stage.copy_from_slice(&work.w);
        self.velocity(work);
        let speed = |(u, v): (&f64, &f64)| u.abs() + v.abs();
        let largest = work.u.iter().zip(&work.v).map(speed).fold(0.0, f64::max);
        let finite = work.u.iter().zip(&work.v).all(|uv| speed(uv).is_finite());
        let steps = (interval * largest * self.points as f64 / self.courant).ceil().max(1.0);
        if !finite || steps > 1e9 {
            return None;
        }
        let step = interval / steps;
        for (decay, wave) in work.decay.iter_mut().zip(&self.waves) {
            *decay = (-self.nu * wave.square * 0.5 * step).exp();
        }
        for _ in 0..steps as u64 {
            self.step(step, work);
        }
        Some(steps as u64)
    }

    /// Performs one step. With E = exp(-νk²Δt/2) and N all terms except viscosity: k₁ = N(w), k₂ = N(E(w + Δt/2 k₁)),
    /// k₃ = N(Ew + Δt/2 k₂), k₄ = N(E²w + ΔtE k₃), w' = E²w + Δt/6 (E²k₁ + 2E(k₂ + k₃) + k₄).
    fn step(&self, step: f64, work: &mut Workspace) {
        let waves = 0..work.w.len();
        work.stage.copy_from_slice(&work.w);
        self.slope(work);
        let Workspace { w, stage, slope, sum, decay, .. } = work;
        for i in waves.clone() {
            let e = decay[i];
            stage[i] = (w[i] + slope[i] * (0.5 * step)) * e;
            sum[i] = (w[i] + slope[i] * (step / 6.0)) * (e * e);
        }
        self.slope(work);
        let Workspace { w, stage, slope, sum, decay, .. } = work;
        for i in waves.clone() {
            let e = decay[i];
            stage[i] = w[i] * e + slope[i] * (0.5 * step);
            sum[i] += slope[i] * (e * step / 3.0);
        }
        self.slope(work);
        let Workspace { w, stage, slope, sum, decay, .. } = work;
        for i in waves.clone() {
            let e = decay[i];
            stage[i] = (w[i] * e + slope[i] * step) * e;
            sum[i] += slope[i] * (e * step / 3.0);
        }
        self.slope(work);
        let Workspace { w, slope, sum, .. } = work;
        for i in waves {
            w[i] = sum[i] + slope[i] * (step / 6.0);
        }
    }

    /// Computes the velocity `work.u`, `work.v` from the vorticity `work.stage`.
    fn velocity(&self, work: &mut Workspace) {
        let Workspace { plane, stage, spectrum, u, v, .. } = work;
        let mut component = |factor: fn(&Wave) -> f64, out: &mut [f64]| {
            for ((s, w), wave) in spectrum.iter_mut().zip(&*stage).zip(&self.waves) {
                // i times the wave number times the stream function.
                *s = Complex64::new(-w.im, w.re) * (factor(wave) * wave.inverse);
            }
            self.plane.inverse(spectrum, out, plane);
        };
        component(|wave| wave.y, u);
        component(|wave| -wave.x, v);
    }

    /// Computes `work.slope` = f - curl ∇·(u⊗u) from `work.stage`. In Fourier space, -curl ∇·(u⊗u) is (kx² - ky²)(uv)^
    /// + kx ky (v² - u²)^.
    fn slope(&self, work: &mut Workspace) {
        self.velocity(work);
        let Workspace { plane, slope, spectrum, u, v, .. } = work;
        for (u, v) in u.iter_mut().zip(v.iter_mut()) {
            (*u, *v) = (*u * *v, *v * *v - *u * *u);
        }
        self.plane.forward(u, slope, plane);
        self.plane.forward(v, spectrum, plane);
        for ((slope, squares), wave) in slope.iter_mut().zip(&*spectrum).zip(&self.waves) {
            let Wave { x, y, .. } = *wave;
            *slope = *slope * (x * x - y * y) + *squares * (x * y);
        }
        for (at, force) in &self.force {
            slope[*at] += force;
        }
    }
}
