//! Orders of convergence of the solvers: each is compared with an exact solution, or with itself on cells a third as
//! wide, every third centre of which is that of a coarse cell. With --nocapture, the table in ds-prep's manual is
//! printed.

use data::fields::initial::RandomField;
use data::fields::solvers::cell_centres;
use data::fields::solvers::darcy::Darcy;
use data::fields::solvers::diffusion_reaction::DiffusionReaction;
use data::fields::solvers::fitzhugh_nagumo::{Constants, FitzHughNagumo};
use data::fields::solvers::navier_stokes::NavierStokes;
use std::f64::consts::{PI, TAU};

/// Root mean square of the difference divided by that of `exact`.
fn relative(found: &[f64], exact: &[f64]) -> f64 {
    let squares = |f: &dyn Fn(usize) -> f64| (0..exact.len()).map(|i| f(i).powi(2)).sum::<f64>();
    (squares(&|i| found[i] - exact[i]) / squares(&|i| exact[i])).sqrt()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Every third value along each axis: those at the centres of cells three times as wide.
fn every_third(fine: &[f64], n: usize, axes: u32) -> Vec<f64> {
    let cells = (n / 3).pow(axes);
    let at = |c: usize| match axes {
        1 => 3 * c + 1,
        _ => (3 * (c / (n / 3)) + 1) * n + 3 * (c % (n / 3)) + 1,
    };
    (0..cells).map(|c| fine[at(c)]).collect()
}

/// Prints a row of the table per size, and asserts the order from the second row on.
pub fn table(name: &str, ratio: f64, errors: &[(String, f64)], least: f64) {
    eprintln!("{name}");
    for (i, (size, error)) in errors.iter().enumerate() {
        match i {
            0 => eprintln!("  {size:<12} {error:.2e}"),
            _ => {
                let order = (errors[i - 1].1 / error).ln() / ratio.ln();
                eprintln!("  {size:<12} {error:.2e}  {order:.2}");
                assert!(order > least, "{name}, {size}: order {order:.2}");
            }
        }
    }
}

#[test]
fn darcy_is_of_order_two() {
    // u = sin πx sin 2πy, a = 1 + sin(2πx) cos(3πy)/2, f = -∇·(a∇u).
    let error = |n: usize| {
        let x = cell_centres(n);
        let on_cells = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            (0..n * n).map(|at| f(x[at / n], x[at % n])).collect()
        };
        let u = |x: f64, y: f64| (PI * x).sin() * (TAU * y).sin();
        let a = |x: f64, y: f64| 1.0 + 0.5 * (TAU * x).sin() * (3.0 * PI * y).cos();
        let f = |x: f64, y: f64| {
            let (ux, uy) =
                (PI * (PI * x).cos() * (TAU * y).sin(), TAU * (PI * x).sin() * (TAU * y).cos());
            let ax = PI * (TAU * x).cos() * (3.0 * PI * y).cos();
            let ay = -1.5 * PI * (TAU * x).sin() * (3.0 * PI * y).sin();
            -(ax * ux + ay * uy) + a(x, y) * 5.0 * PI * PI * u(x, y)
        };
        let mut found = vec![0.0; n * n];
        Darcy::new(n).solve(&on_cells(&a), &on_cells(&f), &mut found).expect("converges");
        relative(&found, &on_cells(&u))
    };
    let errors: Vec<_> = [16, 32, 64, 128].map(|n| (format!("{n} cells"), error(n))).into();
    table("Darcy, manufactured solution", 2.0, &errors, 1.9);
}

/// The coefficients of our files jump at cell faces, at other places for each size: the error is of order one, and far
/// larger than with a smooth coefficient.
#[test]
fn darcy_is_of_order_one_for_its_own_coefficients() {
    let solve = |n: usize, sample: u64| {
        let rock = RandomField::rock(0, sample).on_cells(n);
        let a: Vec<f64> = rock.iter().map(|&x| if x >= 0.0 { 1.0 } else { 0.1 }).collect();
        let mut u = vec![0.0; n * n];
        Darcy::new(n).solve(&a, &vec![1.0; n * n], &mut u).expect("converges");
        u
    };
    let error = |n: usize| {
        let of_all = |n| (0..4).flat_map(|sample| solve(n, sample)).collect::<Vec<f64>>();
        let fine: Vec<f64> =
            (0..4).flat_map(|sample| every_third(&solve(3 * n, sample), 3 * n, 2)).collect();
        relative(&of_all(n), &fine)
    };
    let errors: Vec<_> = [32, 64, 128].map(|n| (format!("{n} cells"), error(n))).into();
    table("Darcy, coefficients 0.1 and 1 (4 of seed 0)", 2.0, &errors, 0.6);
}

#[test]
fn diffusion_reaction_is_of_order_two() {
    let solve = |n: usize| {
        let step = 0.3 * 16.0 / n as f64;
        let scheme = DiffusionReaction::new(0.02, 3.0, n, 0.4, step);
        let smooth = |x: f64| 0.5 + 0.3 * (TAU * x).sin() + 0.15 * (2.0 * TAU * x).cos();
        let mut u: Vec<f64> = cell_centres(n).into_iter().map(smooth).collect();
        scheme.solve(&mut u, &mut vec![0.0; 2 * n], &mut scheme.workspace());
        u
    };
    let error = |n: usize| relative(&solve(n), &every_third(&solve(3 * n), 3 * n, 1));
    let errors: Vec<_> = [16, 48, 144].map(|n| (format!("{n} cells"), error(n))).into();
    table("1-D diffusion-reaction, cells and steps", 3.0, &errors, 1.9);
}

#[test]
fn fitzhugh_nagumo_is_of_order_two() {
    let solve = |n: usize| {
        let step = 0.1 * 9.0 / n as f64;
        let constants = Constants { k: 5e-3, diffusivity: [2e-2, 5e-2] };
        let scheme = FitzHughNagumo::new(constants, n, 0.6, step);
        let x = cell_centres(n);
        let on_cells = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            (0..n * n).map(|at| f(x[at / n], x[at % n])).collect()
        };
        let u = on_cells(&|x, y| (PI * x).cos() + 0.5 * (2.0 * PI * y).cos() * (PI * x).cos());
        let v = on_cells(&|x, y| 0.4 * (PI * y).cos() - 0.2 * (3.0 * PI * x).cos());
        let mut state = [u, v];
        let frames = scheme.solve(&mut state, &mut vec![0.0; 4 * n * n], &mut scheme.workspace());
        assert!(frames.is_some());
        state.concat()
    };
    let thirds = |n: usize| {
        let fine = solve(3 * n);
        let (u, v) = fine.split_at(9 * n * n);
        [every_third(u, 3 * n, 2), every_third(v, 3 * n, 2)].concat()
    };
    let error = |n: usize| relative(&solve(n), &thirds(n));
    let errors: Vec<_> = [9, 27].map(|n| (format!("{n} cells"), error(n))).into();
    table("2-D diffusion-reaction, cells and steps", 3.0, &errors, 1.9);
}

/// The last of two frames of vorticity.
fn flow(n: usize, courant: f64) -> Vec<f64> {
    let state = RandomField::vorticity(4, 1e-3, 0).on_cells(n);
    let initial: Vec<f64> = state.iter().map(|w| 8.0 * w).collect();
    let scheme = NavierStokes::new(1e-3, 0.1, n, courant);
    let mut out = vec![0.0; 2 * n * n];
    scheme.solve(&initial, 1.0, &mut out, &mut scheme.workspace()).expect("stays finite");
    wide(&out[n * n..])
}

#[test]
fn navier_stokes_is_of_order_four_in_time() {
    let exact = flow(32, 0.05);
    let error = |courant: f64| relative(&flow(32, courant), &exact);
    let errors: Vec<_> = [2.0, 1.0, 0.5].map(|c| (format!("Courant {c}"), error(c))).into();
    table("2-D Navier-Stokes, steps", 2.0, &errors, 3.5);
}

/// Spectral: converges faster than any order once the waves of the state are resolved.
#[test]
fn navier_stokes_converges_beyond_every_order_in_space() {
    let error = |n: usize| relative(&flow(n, 0.5), &every_third(&flow(3 * n, 0.5), 3 * n, 2));
    let errors: Vec<_> = [16, 24, 32, 48].map(|n| (format!("{n} points"), error(n))).into();
    eprintln!("2-D Navier-Stokes, points: {errors:?}");
    assert!(errors.windows(2).all(|pair| pair[1].1 < 0.5 * pair[0].1), "{errors:?}");
    assert!(errors[3].1 < 1e-3);
}
