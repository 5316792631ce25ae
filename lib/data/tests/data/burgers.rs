//! The Burgers solver compared with the Cole-Hopf solution, and the properties that its scheme guarantees.

use crate::orders::table;
use data::fields::initial::Sinusoids;
use data::fields::solvers::burgers::{Burgers, COURANT};
use data::fields::solvers::cell_centres;
use std::f64::consts::{PI, TAU};

const MEAN: f64 = 0.3;
const AMPLITUDE: f64 = 0.7;

fn smooth(x: f64) -> f64 {
    MEAN + AMPLITUDE * (TAU * x).sin()
}

/// u(x, t) for u₀ = `smooth` by the Cole-Hopf transform: with d = ν/π, u = ∫ (x-y)/t e^(-G/2d) dy / ∫ e^(-G/2d) dy,
/// G(y) = ∫₀^y u₀ + (x-y)²/(2t). The trapezoidal rule converges faster than any order for these Gaussian-like
/// integrands; the largest exponent is factored out, so no viscosity underflows.
fn cole_hopf(x: f64, t: f64, nu: f64) -> f64 {
    let d = nu / PI;
    let reach = (MEAN.abs() + AMPLITUDE) * t + 12.0 * (2.0 * d * t).sqrt();
    let points = 8000;
    let samples: Vec<(f64, f64)> = (0..=points)
        .map(|i| {
            let y = x + reach * (2.0 * f64::from(i) / f64::from(points) - 1.0);
            let potential = MEAN * y + AMPLITUDE * (1.0 - (TAU * y).cos()) / TAU;
            (y, -(potential + (x - y).powi(2) / (2.0 * t)) / (2.0 * d))
        })
        .collect();
    let top = samples.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.1));
    let (mut above, mut below) = (0.0, 0.0);
    for (y, exponent) in samples {
        let weight = (exponent - top).exp();
        above += (x - y) / t * weight;
        below += weight;
    }
    above / below
}

/// Frames of the solution from `initial`, as f64.
fn solve(nu: f64, initial: &[f64], interval: f64, frames: usize) -> (Vec<f32>, u64) {
    let scheme = Burgers::new(nu, initial.len());
    let mut out = vec![0.0; frames * initial.len()];
    let steps = scheme.solve(initial, interval, &mut out, &mut scheme.workspace());
    (out, steps.expect("the solution stays finite"))
}

/// Mean absolute and root mean square error, and the norm, at t = 0.5.
fn error(nu: f64, grid: usize) -> (f64, f64) {
    let x = cell_centres(grid);
    let initial: Vec<f64> = x.iter().map(|&x| smooth(x)).collect();
    let (out, _) = solve(nu, &initial, 0.05, 11);
    let last = &out[10 * grid..];
    let (mut squares, mut norm, mut sum) = (0.0, 0.0, 0.0);
    for (u, &x) in last.iter().zip(&x) {
        let exact = cole_hopf(x, 0.5, nu);
        sum += (f64::from(*u) - exact).abs();
        squares += (f64::from(*u) - exact).powi(2);
        norm += exact * exact;
    }
    (sum / grid as f64, (squares / norm).sqrt())
}

#[test]
fn converges_with_order_two() {
    for nu in [0.05, 0.2] {
        let of = |n: usize| (format!("{n} cells"), error(nu, n).1);
        let errors = [64, 128, 256, 512].map(of);
        table(&format!("1-D Burgers, Cole-Hopf, nu {nu}"), 2.0, &errors, 1.8);
    }
}

/// Relative error at 1024 cells; at ν = 0.001 the shock is thinner than a cell.
#[test]
fn agrees_with_cole_hopf_at_every_viscosity() {
    for (nu, bound) in [
        (0.001, 5e-3),
        (0.002, 2e-3),
        (0.004, 1e-3),
        (0.01, 3e-4),
        (0.02, 1e-4),
        (0.04, 4e-5),
        (0.1, 1e-5),
        (0.2, 4e-6),
        (0.4, 2e-6),
        (1.0, 2e-7),
        (2.0, 1e-7),
        (4.0, 1e-7),
    ] {
        let (_, relative) = error(nu, 1024);
        eprintln!("nu {nu}: relative error {relative:.2e}");
        assert!(relative < bound, "nu {nu}: relative error {relative:.2e}");
    }
}

#[test]
fn conserves_the_mean_and_obeys_the_maximum_principle() {
    let grid = 1024;
    let x = cell_centres(grid);
    for (trajectory, nu) in (0..).zip([0.0, 0.001, 0.004, 0.02, 0.1, 0.4, 1.0, 4.0]) {
        let state = Sinusoids::draw(11, nu, trajectory);
        let initial: Vec<f64> = x.iter().map(|&x| state.at(x)).collect();
        let (out, _) = solve(nu, &initial, 0.01, 101);
        let mean: f64 = initial.iter().sum::<f64>() / grid as f64;
        let (mut variation, mut top, mut bottom) = (f64::MAX, f64::MAX, f64::MIN);
        for frame in out.chunks_exact(grid) {
            let u: Vec<f64> = frame.iter().map(|&u| f64::from(u)).collect();
            // Frames are rounded to f32; a constant frame is rounded in the same direction everywhere.
            let rounding = 0.5 * f64::from(f32::EPSILON) * initial[0].abs().max(1.0);
            assert!((u.iter().sum::<f64>() / grid as f64 - mean).abs() < rounding);
            let slack = 1e-6;
            let now: f64 = (0..grid).map(|i| (u[i] - u[(i + 1) % grid]).abs()).sum();
            assert!(now <= variation * (1.0 + 1e-3) + slack, "nu {nu}: {now} after {variation}");
            let high = u.iter().copied().fold(f64::MIN, f64::max);
            let low = u.iter().copied().fold(f64::MAX, f64::min);
            assert!(high <= top + slack && low >= bottom - slack, "nu {nu}: a new extremum");
            (variation, top, bottom) = (now, high, low);
        }
    }
}

/// Viscosity adds no steps: it reduces the speed and never shortens the step.
#[test]
fn the_largest_viscosity_takes_no_more_steps_than_convection() {
    let grid = 512;
    let state = Sinusoids::draw(2, 4.0, 0);
    let initial: Vec<f64> = cell_centres(grid).iter().map(|&x| state.at(x)).collect();
    let (inviscid, free) = solve(0.0, &initial, 0.01, 51);
    let (viscous, damped) = solve(4.0, &initial, 0.01, 51);
    assert!(damped <= free, "{damped} steps against {free}");
    let speed = initial.iter().fold(0.0f64, |m, u| m.max(u.abs()));
    assert!(free as f64 <= 50.0 * (0.01 * speed * grid as f64 / COURANT).ceil());
    let spread = |u: &[f32]| u.iter().fold(0.0f32, |m, v| m.max((v - u[0]).abs()));
    assert!(spread(&viscous[50 * grid..]) < 1e-6 && spread(&inviscid[50 * grid..]) > 0.1);
}

#[test]
fn odd_grids_work_and_non_finite_solutions_are_reported() {
    let grid = 45;
    let initial: Vec<f64> = cell_centres(grid).iter().map(|&x| smooth(x)).collect();
    let (out, _) = solve(0.1, &initial, 0.1, 3);
    assert!(out.iter().all(|u| u.is_finite()));
    let scheme = Burgers::new(0.1, grid);
    let mut out = vec![0.0; 2 * grid];
    let mut bad = initial;
    bad[7] = f64::NAN;
    assert_eq!(scheme.solve(&bad, 0.1, &mut out, &mut scheme.workspace()), None);
}
