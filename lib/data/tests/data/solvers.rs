//! Properties of the solvers in two dimensions: closed-form solutions, conservation, boundaries, odd sizes.

use crate::common::fresh_seed;
use data::fields::initial::{RandomField, white_noise};
use data::fields::solvers::cell_centres;
use data::fields::solvers::darcy::Darcy;
use data::fields::solvers::diffusion_reaction::{DiffusionReaction, STEP};
use data::fields::solvers::fitzhugh_nagumo::{Constants, FitzHughNagumo};
use data::fields::solvers::navier_stokes::{COURANT, NavierStokes};
use std::f64::consts::{PI, TAU};

fn mean(u: &[f32]) -> f64 {
    u.iter().map(|&u| f64::from(u)).sum::<f64>() / u.len() as f64
}

/// Taylor-Green vortices decay in place: w = cos κx cos κy exp(-2νκ²t).
#[test]
fn taylor_green_vortices_decay_as_they_must() {
    for (n, waves, nu) in [(32, 1.0, 1e-2), (45, 3.0, 1e-3), (20, 2.0, 3e-2)] {
        let x = cell_centres(n);
        let k = TAU * waves;
        let initial: Vec<f64> =
            (0..n * n).map(|at| (k * x[at / n]).cos() * (k * x[at % n]).cos()).collect();
        let scheme = NavierStokes::new(nu, 0.0, n, COURANT);
        let mut out = vec![0.0; 5 * n * n];
        let steps = scheme.solve(&initial, 0.25, &mut out, &mut scheme.workspace()).unwrap();
        assert!(steps >= 4);
        for (frame, w) in out.chunks_exact(n * n).enumerate() {
            let decay = (-2.0 * nu * k * k * 0.25 * frame as f64).exp();
            for (w, initial) in w.iter().zip(&initial) {
                let error = (f64::from(*w) - decay * initial).abs();
                assert!(error < 1e-6, "{n} points, frame {frame}: {error:.1e}");
            }
        }
    }
}

/// Without viscosity and forcing, the truncated equations preserve energy, enstrophy and mean although the flow moves.
#[test]
fn ideal_flow_keeps_energy_and_enstrophy() {
    let n = 36;
    let state = RandomField::vorticity(fresh_seed(), 0.0, 0).on_cells(n);
    let scheme = NavierStokes::new(0.0, 0.0, n, 0.1);
    let mut work = scheme.workspace();
    let mut out = vec![0.0; 3 * n * n];
    let initial: Vec<f64> = state.iter().map(|w| 5.0 * w).collect();
    scheme.solve(&initial, 1.0, &mut out, &mut work).unwrap();
    let enstrophy = |w: &[f32]| w.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>();
    // Σ |ŵ|²/k² by direct summation of the transform.
    let energy = |w: &[f32]| -> f64 {
        let m = 11;
        let phase = |k: i32, i: usize| TAU * f64::from(k) * i as f64 / n as f64;
        let waves = (-m..=m).flat_map(|p| (-m..=m).map(move |q| (p, q)));
        waves
            .filter(|k| *k != (0, 0))
            .map(|(p, q)| {
                let (mut re, mut im) = (0.0, 0.0);
                for (at, w) in w.iter().enumerate() {
                    let (sin, cos) = (phase(p, at / n) + phase(q, at % n)).sin_cos();
                    re += f64::from(*w) * cos;
                    im += f64::from(*w) * sin;
                }
                (re * re + im * im) / f64::from(p * p + q * q)
            })
            .sum()
    };
    let [first, .., last] = &out.chunks_exact(n * n).collect::<Vec<_>>()[..] else { panic!() };
    let moved: f64 = first.iter().zip(*last).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    assert!(moved > 0.1 * enstrophy(first), "nothing moved: {moved}");
    let kept = |name: &str, of: &dyn Fn(&[f32]) -> f64| {
        let change = of(last) / of(first) - 1.0;
        assert!(change.abs() < 2e-6, "{name} changed by {change:.1e}");
    };
    kept("enstrophy", &enstrophy);
    kept("energy", &energy);
    assert!(mean(last).abs() < 1e-7);
}

#[test]
fn a_forcing_alone_accelerates_the_fluid_as_given() {
    let (n, nu, force) = (16, 0.05, 0.7);
    let scheme = NavierStokes::new(nu, force, n, COURANT);
    let mut out = vec![0.0; 2 * n * n];
    scheme.solve(&vec![0.0; n * n], 0.5, &mut out, &mut scheme.workspace()).unwrap();
    // A single wave has no convection: w_t = f - 2ν(2π)² w.
    let rate = 2.0 * nu * TAU * TAU;
    let size = force * (1.0 - (-rate * 0.5_f64).exp()) / rate;
    let x = cell_centres(n);
    for (at, w) in out[n * n..].iter().enumerate() {
        let angle = TAU * (x[at / n] + x[at % n]);
        let expected = size * (angle.sin() + angle.cos());
        // One step per frame, from rest: Simpson's rule for the decaying forcing.
        assert!((f64::from(*w) - expected).abs() < 0.01 * size, "{w} is not {expected}");
    }
}

#[test]
fn fluxes_balance_sources_whatever_the_permeability() {
    let seed = fresh_seed();
    for (trajectory, n) in [(0, 64), (1, 45), (2, 34)] {
        let rock = RandomField::rock(seed, trajectory).on_cells(n);
        let a: Vec<f64> = rock.iter().map(|&x| if x >= 0.0 { 1.0 } else { 0.1 }).collect();
        let (mut u, mut double) = (vec![0.0; n * n], vec![0.0; n * n]);
        let mut darcy = Darcy::new(n);
        let iterations = darcy.solve(&a, &vec![1.0; n * n], &mut u).unwrap();
        assert!(n != 64 || iterations < 40, "{iterations} iterations");
        darcy.solve(&a, &vec![2.0; n * n], &mut double).unwrap();
        // The outflow through the boundary, over half a cell, equals the sources inside.
        let mut out = 0.0;
        for i in 0..n {
            for at in [i, (n - 1) * n + i, i * n, i * n + n - 1] {
                out += 2.0 * a[at] * u[at];
            }
        }
        assert!((out - 1.0).abs() < 1e-7, "{n} cells: {out} of 1 leaves");
        assert!(u.iter().zip(&double).all(|(u, d)| *u > 0.0 && (d - 2.0 * u).abs() < 1e-7));
    }
    assert_eq!(Darcy::new(8).solve(&[1.0; 64], &[0.0; 64], &mut [1.0; 64]), Some(0));
    assert_eq!(Darcy::new(8).solve(&[f64::NAN; 64], &[1.0; 64], &mut [0.0; 64]), None);
}

/// Without diffusion, or without reaction, only the other part remains; both have closed forms.
#[test]
fn diffusion_reaction_is_the_logistic_function_and_the_heat_equation() {
    let (n, rho, interval) = (33, 2.5, 0.3);
    let start = |i: usize| 0.1 + 0.8 * i as f64 / n as f64;
    let mut u: Vec<f64> = (0..n).map(start).collect();
    let scheme = DiffusionReaction::new(0.0, rho, n, interval, STEP);
    scheme.solve(&mut u, &mut vec![0.0; 2 * n], &mut scheme.workspace());
    for (i, u) in u.iter().enumerate() {
        let growth = (rho * interval).exp();
        let exact = start(i) * growth / (1.0 - start(i) + start(i) * growth);
        assert!((u - exact).abs() < 1e-12);
    }
    let wave = |i: usize| 0.5 + 0.4 * (TAU * i as f64 / n as f64).cos();
    let mut u: Vec<f64> = (0..n).map(wave).collect();
    let scheme = DiffusionReaction::new(0.1, 0.0, n, interval, STEP);
    scheme.solve(&mut u, &mut vec![0.0; 2 * n], &mut scheme.workspace());
    let symbol = (2.0 * (PI / n as f64).sin() * n as f64).powi(2);
    for (i, u) in u.iter().enumerate() {
        let exact = 0.5 + (wave(i) - 0.5) * (-0.1 * symbol * interval).exp();
        assert!((u - exact).abs() < 1e-12);
    }
}

/// States in [0, 1] stay there and tend to 1.
#[test]
fn states_between_0_and_1_tend_to_1() {
    let n = 64;
    let mut u: Vec<f64> = cell_centres(n).iter().map(|x| f64::from(*x < 0.1)).collect();
    let scheme = DiffusionReaction::new(1e-3, 10.0, n, 1.0, STEP);
    let mut out = vec![0.0; 7 * n];
    scheme.solve(&mut u, &mut out, &mut scheme.workspace());
    assert!(out.iter().all(|u| (-1e-6..=1.0 + 1e-6).contains(u)));
    let means: Vec<f64> = out.chunks_exact(n).map(mean).collect();
    assert!(means.is_sorted() && means[0] < 0.12 && means[6] > 0.99, "{means:?}");
}

/// Identical cells follow the equations without space, whatever the diffusion; compared with Euler steps of a
/// millionth.
#[test]
fn a_uniform_state_follows_the_equations_without_space() {
    let (n, k, end) = (9, 5e-3, 0.4);
    let constants = Constants { k, diffusivity: [1e-3, 5e-3] };
    let scheme = FitzHughNagumo::new(constants, n, end, 0.01);
    let (mut u, mut v) = (1.7, -0.6);
    let mut state = [vec![u; n * n], vec![v; n * n]];
    scheme.solve(&mut state, &mut vec![0.0; 4 * n * n], &mut scheme.workspace()).unwrap();
    let steps = 400_000;
    for _ in 0..steps {
        let h = end / f64::from(steps);
        (u, v) = (u + h * (u - u * u * u - k - v), v + h * (u - v));
    }
    for (found, exact) in state.iter().zip([u, v]) {
        assert!(found.iter().all(|found| (found - exact).abs() < 2e-6), "{} {exact}", found[0]);
    }
}

/// No-flux boundaries: a mirrored and rotated state gives the mirrored and rotated solution.
#[test]
fn closed_borders_have_no_preferred_side() {
    let n = 15;
    let mut noise = vec![0.0; 2 * n * n];
    white_noise(fresh_seed(), 1e-3, 0, &mut noise);
    let turned = |field: &[f64]| -> Vec<f64> {
        (0..n * n).map(|at| field[(n - 1 - at % n) * n + at / n]).collect()
    };
    let constants = Constants { k: 5e-3, diffusivity: [1e-3, 5e-3] };
    let scheme = FitzHughNagumo::new(constants, n, 0.1, 0.01);
    let solve = |mut state: [Vec<f64>; 2]| {
        let mut out = vec![0.0; 4 * n * n];
        scheme.solve(&mut state, &mut out, &mut scheme.workspace()).unwrap();
        state
    };
    let (u, v) = noise.split_at(n * n);
    let plain = solve([u.to_vec(), v.to_vec()]);
    let other = solve([turned(u), turned(v)]);
    for (plain, other) in plain.iter().zip(&other) {
        let error = turned(plain).iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error < 1e-12, "{error:.1e}");
    }
}
