//! Computes the trajectory with a given index, for each equation.

use super::Generation;
use super::equation::Equation;
use crate::fields::initial::{RandomField, Sinusoids, white_noise};
use crate::fields::solvers::burgers::Burgers;
use crate::fields::solvers::darcy::Darcy;
use crate::fields::solvers::diffusion_reaction::DiffusionReaction;
use crate::fields::solvers::fitzhugh_nagumo::{Constants, FitzHughNagumo};
use crate::fields::solvers::navier_stokes::NavierStokes;
use crate::fields::solvers::{
    advection, cell_centres, diffusion_reaction, fitzhugh_nagumo, navier_stokes,
};

/// Computes the trajectory with a given index, counted across all files, as [frames, grid…, channels]; `None` when
/// values are no longer finite. Each thread has its own `Maker` with its own buffers.
pub(super) type Maker<'a> = Box<dyn FnMut(u64, &mut [f32]) -> Option<()> + 'a>;

pub(super) fn maker(g: &Generation) -> Maker<'_> {
    let interval = g.interval();
    let sinusoids = |trajectory| Sinusoids::draw(g.seed, g.parameter, trajectory);
    let initial = move |trajectory| -> Vec<f64> {
        let state = sinusoids(trajectory);
        cell_centres(g.grid).iter().map(|&x| state.at(x)).collect()
    };
    match g.equation {
        Equation::Burgers => {
            let scheme = Burgers::new(g.parameter, g.grid);
            let mut work = scheme.workspace();
            Box::new(move |trajectory, out| {
                scheme.solve(&initial(trajectory), interval, out, &mut work).map(drop)
            })
        }
        Equation::Advection => Box::new(move |trajectory, out| {
            let state = sinusoids(trajectory);
            advection::solve(|x| state.at(x), g.parameter, g.grid, g.end, out);
            Some(())
        }),
        Equation::DiffusionReaction => {
            let (rho, step) = (g.constant("Rho"), diffusion_reaction::STEP);
            let scheme = DiffusionReaction::new(g.parameter, rho, g.grid, interval, step);
            let mut work = scheme.workspace();
            Box::new(move |trajectory, out| {
                let mut state: Vec<f64> = initial(trajectory).iter().map(|u| u.abs()).collect();
                let largest = state.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
                state.iter_mut().for_each(|u| *u /= largest);
                scheme.solve(&mut state, out, &mut work);
                out.iter().all(|u| u.is_finite()).then_some(())
            })
        }
        Equation::FitzHughNagumo => {
            let diffusivity = [g.parameter, g.constant("Dv")];
            let constants = Constants { k: g.constant("k"), diffusivity };
            let scheme = FitzHughNagumo::new(constants, g.grid, interval, fitzhugh_nagumo::STEP);
            let mut work = scheme.workspace();
            Box::new(move |trajectory, out| {
                let mut noise = vec![0.0; 2 * g.grid * g.grid];
                white_noise(g.seed, g.parameter, trajectory, &mut noise);
                let (u, v) = noise.split_at(g.grid * g.grid);
                scheme.solve(&mut [u.to_vec(), v.to_vec()], out, &mut work)
            })
        }
        Equation::Darcy => {
            let mut scheme = Darcy::new(g.grid);
            let (low, high) = (g.constant("low"), g.constant("high"));
            Box::new(move |trajectory, out| {
                let rock = RandomField::rock(g.seed, trajectory).on_cells(g.grid);
                let a: Vec<f64> = rock.iter().map(|&x| if x >= 0.0 { high } else { low }).collect();
                let mut solution = vec![0.0; a.len()];
                scheme.solve(&a, &vec![g.parameter; a.len()], &mut solution)?;
                for ((out, a), u) in out.chunks_exact_mut(2).zip(&a).zip(&solution) {
                    out.copy_from_slice(&[*a as f32, *u as f32]);
                }
                Some(())
            })
        }
        Equation::NavierStokes => {
            let (force, courant) = (g.constant("forcing"), navier_stokes::COURANT);
            let scheme = NavierStokes::new(g.parameter, force, g.grid, courant);
            let mut work = scheme.workspace();
            Box::new(move |trajectory, out| {
                let state = RandomField::vorticity(g.seed, g.parameter, trajectory);
                let mut initial = state.on_cells(g.grid);
                initial.iter_mut().for_each(|w| *w *= g.constant("scale"));
                scheme.solve(&initial, interval, out, &mut work).map(drop)
            })
        }
    }
}
