//! The declared symmetries of every equation, compared with its solver: each of them maps solutions to solutions, and
//! no other combination of reflections, a sign and the shifts tried here does.

use crate::common::fresh_seed;
use data::fields::generate::Equation;
use data::fields::initial::{RandomField, Sinusoids, white_noise};
use data::fields::solvers::burgers::Burgers;
use data::fields::solvers::darcy::Darcy;
use data::fields::solvers::diffusion_reaction::{DiffusionReaction, STEP};
use data::fields::solvers::fitzhugh_nagumo::{self, Constants, FitzHughNagumo};
use data::fields::solvers::navier_stokes::{COURANT, NavierStokes};
use data::fields::solvers::symmetry::Symmetry;
use data::fields::solvers::{advection, cell_centres};
use std::f64::consts::TAU;

/// A state at its first time, and how it is solved to its last. The solvers compute in f64 and write f32.
type Solver<'a> = dyn Fn(&[f32]) -> Vec<f32> + 'a;

fn wide(u: &[f32]) -> Vec<f64> {
    u.iter().copied().map(f64::from).collect()
}

fn largest(u: impl Iterator<Item = f32>) -> f32 {
    u.fold(0.0, |largest, u| largest.max(u.abs()))
}

/// Compares each of `candidates` with the declaration.
fn compare(
    equation: Equation,
    grid: &[usize],
    initial: &[f32],
    solve: &Solver,
    candidates: &[Symmetry],
) {
    let expected = solve(initial);
    let scale = largest(expected.iter().copied());
    // Translations by all cells of the grid are whole patches of a single one.
    let declared = equation.symmetries().views(grid, grid[0]);
    assert!(declared[0] == identity() && declared.len() > 1);
    for candidate in candidates {
        let (mut moved, mut back) = (vec![0.0; initial.len()], vec![0.0; expected.len()]);
        candidate.apply(initial, grid, &mut moved);
        candidate.undo(&solve(&moved), grid, &mut back);
        let error = largest(back.iter().zip(&expected).map(|(a, b)| a - b)) / scale;
        match declared.contains(candidate) {
            // A rounding of f32 at the start and at the end, amplified little in a short time.
            true => assert!(error < 2e-5, "{equation}: {candidate:?} is off by {error:.1e}"),
            false => assert!(error > 1e-3, "{equation}: {candidate:?} holds ({error:.1e})"),
        }
    }
    assert!(candidates.iter().filter(|candidate| declared.contains(candidate)).count() > 3);
}

fn identity() -> Symmetry {
    Symmetry { swap: false, flip: [false; 2], shift: [0; 2], negate: false }
}

fn on_a_line(cells: usize) -> Vec<Symmetry> {
    let mut all = Vec::new();
    for (flip, negate) in [(false, false), (true, false), (false, true), (true, true)] {
        for shift in [0, 1, 5, cells / 2] {
            let (flip, shift) = ([flip, false], [shift, 0]);
            all.push(Symmetry { swap: false, flip, shift, negate });
        }
    }
    all
}

fn on_a_square(cells: usize, signs: &[bool]) -> Vec<Symmetry> {
    let quarter = cells / 4;
    let shifts = [0, quarter, 2 * quarter, 3 * quarter].map(|shift| [shift, 0]);
    let others = [[1, 0], [1, cells - 1], [quarter + 2, cells - 2], [0, quarter]];
    let mut all = Vec::new();
    for bits in 0..8 {
        let (swap, flip) = (bits & 1 > 0, [bits & 2 > 0, bits & 4 > 0]);
        for &negate in signs {
            let shifts = shifts.iter().chain(&others);
            all.extend(shifts.map(|&shift| Symmetry { swap, flip, shift, negate }));
        }
    }
    all
}

fn at_centres(cells: usize, of: impl Fn(f64) -> f64) -> Vec<f32> {
    cell_centres(cells).iter().map(|&x| of(x) as f32).collect()
}

/// A smooth state of period 1 with a mean, which no reflection or shift maps to itself or its negative.
fn state(x: f64) -> f64 {
    let x = TAU * x;
    0.2 + x.sin() + 0.5 * (2.0 * x + 1.0).cos() - 0.4 * (3.0 * x).cos()
}

#[test]
fn burgers() {
    let cells = 48;
    let solve = |initial: &[f32]| {
        let (scheme, mut out) = (Burgers::new(0.01, cells), vec![0.0; 2 * cells]);
        scheme.solve(&wide(initial), 0.2, &mut out, &mut scheme.workspace()).unwrap();
        out.split_off(cells)
    };
    let initial = at_centres(cells, state);
    compare(Equation::Burgers, &[cells], &initial, &solve, &on_a_line(cells));
}

#[test]
fn advection_of_a_transformed_state() {
    let cells = 40;
    // The solver takes a function of x, which is transformed as the cells are.
    let expected = |symmetry: &Symmetry| {
        let at = |x: f64| {
            let sign = if symmetry.negate { -1.0 } else { 1.0 };
            let x = if symmetry.flip[0] { 1.0 - x } else { x };
            sign * state(x + symmetry.shift[0] as f64 / cells as f64)
        };
        let mut out = vec![0.0; 2 * cells];
        advection::solve(at, 0.7, cells, 0.3, &mut out);
        out.split_off(cells)
    };
    let states: Vec<(Symmetry, Vec<f32>)> = on_a_line(cells)
        .into_iter()
        .map(|symmetry| {
            let mut moved = vec![0.0; cells];
            symmetry.apply(&at_centres(cells, state), &[cells], &mut moved);
            (symmetry, moved)
        })
        .collect();
    let solve = |initial: &[f32]| {
        let (symmetry, _) = states.iter().find(|(_, moved)| moved == initial).unwrap();
        expected(symmetry)
    };
    let initial = at_centres(cells, state);
    compare(Equation::Advection, &[cells], &initial, &solve, &on_a_line(cells));
}

#[test]
fn diffusion_reaction() {
    let cells = 45;
    let solve = |initial: &[f32]| {
        let scheme = DiffusionReaction::new(2e-3, 1.5, cells, 0.3, STEP);
        let (mut state, mut out) = (wide(initial), vec![0.0; 2 * cells]);
        scheme.solve(&mut state, &mut out, &mut scheme.workspace());
        out.split_off(cells)
    };
    let initial = at_centres(cells, |x| 0.1 * state(x));
    compare(Equation::DiffusionReaction, &[cells], &initial, &solve, &on_a_line(cells));
}

#[test]
fn fitzhugh_nagumo_on_a_square() {
    let cells = 12;
    let solve = |initial: &[f32]| {
        let constants = Constants { k: 0.1, diffusivity: [1e-2, 5e-3] };
        let scheme = FitzHughNagumo::new(constants, cells, 0.2, fitzhugh_nagumo::STEP);
        let channel = |c: usize| -> Vec<f64> {
            initial.iter().skip(c).step_by(2).copied().map(f64::from).collect()
        };
        let mut out = vec![0.0; 2 * initial.len()];
        scheme.solve(&mut [channel(0), channel(1)], &mut out, &mut scheme.workspace()).unwrap();
        out.split_off(initial.len())
    };
    let mut noise = vec![0.0; 2 * cells * cells];
    white_noise(fresh_seed(), 0.0, 0, &mut noise);
    let initial: Vec<f32> = noise.iter().map(|u| *u as f32).collect();
    let candidates = on_a_square(cells, &[false, true]);
    compare(Equation::FitzHughNagumo, &[cells, cells], &initial, &solve, &candidates);
}

#[test]
fn darcy_flow_with_its_coefficient() {
    let cells = 16;
    // The views transform coefficient and solution alike.
    let solve = |a: &[f32]| {
        let mut u = vec![0.0; a.len()];
        Darcy::new(cells).solve(&wide(a), &vec![1.0; a.len()], &mut u).unwrap();
        u.into_iter().map(|u| u as f32).collect()
    };
    let rock = RandomField::rock(fresh_seed(), 0).on_cells(cells);
    let initial: Vec<f32> = rock.iter().map(|a| a.exp() as f32).collect();
    compare(Equation::Darcy, &[cells, cells], &initial, &solve, &on_a_square(cells, &[false]));
}

#[test]
fn navier_stokes_with_its_forcing() {
    let cells = 16;
    let solve = |initial: &[f32]| {
        let scheme = NavierStokes::new(1e-3, 3.0, cells, COURANT);
        let mut out = vec![0.0; 2 * cells * cells];
        scheme.solve(&wide(initial), 0.5, &mut out, &mut scheme.workspace()).unwrap();
        out.split_off(cells * cells)
    };
    let state = RandomField::vorticity(fresh_seed(), 0.0, 0).on_cells(cells);
    let initial: Vec<f32> = state.iter().map(|w| *w as f32).collect();
    let candidates = on_a_square(cells, &[false, true]);
    compare(Equation::NavierStokes, &[cells, cells], &initial, &solve, &candidates);
    // A grid that a quarter of the period does not divide has fewer.
    assert_eq!(Equation::NavierStokes.symmetries().views(&[6, 6], 1).len(), 2);
    assert_eq!(Equation::NavierStokes.symmetries().views(&[8, 12], 2).len(), 4);
}

/// Eight views of Burgers: with and without reflection, shifted by 0, a half, a quarter and three quarters of a patch.
#[test]
fn views_alternate_between_reflections_and_shifts() {
    let views = Equation::Burgers.symmetries().views(&[64], 8);
    let first: Vec<_> = views.iter().map(|view| (view.flip[0], view.shift[0])).collect();
    let expected = [
        (false, 0),
        (true, 0),
        (false, 4),
        (true, 4),
        (false, 2),
        (true, 2),
        (false, 6),
        (true, 6),
    ];
    assert_eq!(first[..8], expected);
    assert_eq!(views.len(), 16);
    assert_eq!(Equation::FitzHughNagumo.symmetries().views(&[64, 64], 8).len(), 8);
    assert_eq!(Equation::Darcy.symmetries().views(&[64, 32], 8).len(), 4);
}

/// The means that an equation is said to conserve are those that its solver conserves; Sinusoids have any mean.
#[test]
fn conserved_means() {
    let cells = 64;
    let mean = |u: &[f32]| u.iter().map(|u| f64::from(*u)).sum::<f64>() / u.len() as f64;
    let draw = Sinusoids::draw(fresh_seed(), 0.0, 0);
    let initial: Vec<f64> = cell_centres(cells).iter().map(|x| 0.2 + 0.5 * draw.at(*x)).collect();
    let mut out = vec![0.0; 3 * cells];
    let burgers = Burgers::new(0.01, cells);
    burgers.solve(&initial, 0.3, &mut out, &mut burgers.workspace()).unwrap();
    assert!((mean(&out[..cells]) - mean(&out[2 * cells..])).abs() < 1e-6);
    let reaction = DiffusionReaction::new(0.01, 1.0, cells, 0.3, STEP);
    reaction.solve(&mut initial.clone(), &mut out, &mut reaction.workspace());
    assert!((mean(&out[..cells]) - mean(&out[2 * cells..])).abs() > 1e-3);
    for (equation, conserved) in [
        (Equation::Burgers, true),
        (Equation::Advection, true),
        (Equation::NavierStokes, true),
        (Equation::DiffusionReaction, false),
        (Equation::FitzHughNagumo, false),
        (Equation::Darcy, false),
    ] {
        assert_eq!(equation.symmetries().conserved.contains(&0), conserved, "{equation}");
    }
}
