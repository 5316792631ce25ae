//! How a trajectory of each equation is made from its number.

use super::Generation;
use super::equation::Equation;
use crate::fields::initial::{RandomField, Sinusoids, white_noise};
use crate::fields::solvers::{
    advection, burgers, cell_centres, darcy, diffusion, diffusion_reaction, fitzhugh_nagumo,
    navier_stokes,
};

/// The scheme of a file; shared by threads.
pub(super) enum Problem {
    Burgers(burgers::Burgers),
    Advection,
    DiffusionReaction(diffusion_reaction::DiffusionReaction),
    FitzHughNagumo(fitzhugh_nagumo::FitzHughNagumo),
    Darcy,
    NavierStokes(navier_stokes::NavierStokes),
}

/// Buffers for one trajectory at a time.
pub(super) enum Workspace {
    Burgers(burgers::Workspace),
    Line(diffusion::Workspace),
    FitzHughNagumo(fitzhugh_nagumo::Workspace),
    Darcy(Box<darcy::Darcy>),
    NavierStokes(navier_stokes::Workspace),
    None,
}

impl Problem {
    pub fn new(g: &Generation) -> Self {
        let interval = g.interval();
        match g.equation {
            Equation::Burgers => Self::Burgers(burgers::Burgers::new(g.parameter, g.grid)),
            Equation::Advection => Self::Advection,
            Equation::DiffusionReaction => {
                let step = diffusion_reaction::STEP;
                Self::DiffusionReaction(diffusion_reaction::DiffusionReaction::new(
                    g.parameter,
                    g.constant("Rho"),
                    g.grid,
                    interval,
                    step,
                ))
            }
            Equation::FitzHughNagumo => {
                let diffusivity = [g.parameter, g.constant("Dv")];
                let constants = fitzhugh_nagumo::Constants { k: g.constant("k"), diffusivity };
                let step = fitzhugh_nagumo::STEP;
                Self::FitzHughNagumo(fitzhugh_nagumo::FitzHughNagumo::new(
                    constants, g.grid, interval, step,
                ))
            }
            Equation::Darcy => Self::Darcy,
            Equation::NavierStokes => Self::NavierStokes(navier_stokes::NavierStokes::new(
                g.parameter,
                g.constant("forcing"),
                g.grid,
                navier_stokes::COURANT,
            )),
        }
    }

    pub fn workspace(&self, g: &Generation) -> Workspace {
        match self {
            Self::Burgers(scheme) => Workspace::Burgers(scheme.workspace()),
            Self::Advection => Workspace::None,
            Self::DiffusionReaction(scheme) => Workspace::Line(scheme.workspace()),
            Self::FitzHughNagumo(scheme) => Workspace::FitzHughNagumo(scheme.workspace()),
            Self::Darcy => Workspace::Darcy(Box::new(darcy::Darcy::new(g.grid))),
            Self::NavierStokes(scheme) => Workspace::NavierStokes(scheme.workspace()),
        }
    }

    /// Makes a trajectory, by its number over all files, into `out` [frames, grid…, channels].
    /// `None` when the numbers are no longer finite.
    pub fn make(
        &self,
        g: &Generation,
        trajectory: u64,
        out: &mut [f32],
        work: &mut Workspace,
    ) -> Option<()> {
        let sinusoids = || Sinusoids::draw(g.seed, g.parameter, trajectory);
        match (self, work) {
            (Self::Burgers(problem), Workspace::Burgers(work)) => {
                let state = sinusoids();
                let initial: Vec<f64> = cell_centres(g.grid).iter().map(|&x| state.at(x)).collect();
                problem.solve(&initial, g.interval(), out, work).map(drop)
            }
            (Self::Advection, _) => {
                advection::solve(&sinusoids(), g.parameter, g.grid, g.end, out);
                Some(())
            }
            (Self::DiffusionReaction(problem), Workspace::Line(work)) => {
                let state = sinusoids();
                let mut initial: Vec<f64> =
                    cell_centres(g.grid).iter().map(|&x| state.at(x).abs()).collect();
                let largest = initial.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
                initial.iter_mut().for_each(|u| *u /= largest);
                problem.solve(&mut initial, out, work);
                out.iter().all(|u| u.is_finite()).then_some(())
            }
            (Self::FitzHughNagumo(problem), Workspace::FitzHughNagumo(work)) => {
                let mut noise = vec![0.0; 2 * g.grid * g.grid];
                white_noise(g.seed, g.parameter, trajectory, &mut noise);
                let (u, v) = noise.split_at(g.grid * g.grid);
                problem.solve(&mut [u.to_vec(), v.to_vec()], out, work)
            }
            (Self::Darcy, Workspace::Darcy(problem)) => {
                let (low, high) = (g.constant("low"), g.constant("high"));
                let rock = RandomField::rock(g.seed, trajectory).on_cells(g.grid);
                let a: Vec<f64> = rock.iter().map(|&x| if x >= 0.0 { high } else { low }).collect();
                let mut solution = vec![0.0; a.len()];
                problem.solve(&a, &vec![g.parameter; a.len()], &mut solution)?;
                for ((out, a), u) in out.chunks_exact_mut(2).zip(&a).zip(&solution) {
                    out.copy_from_slice(&[*a as f32, *u as f32]);
                }
                Some(())
            }
            (Self::NavierStokes(problem), Workspace::NavierStokes(work)) => {
                let state = RandomField::vorticity(g.seed, g.parameter, trajectory);
                let mut initial = state.on_cells(g.grid);
                initial.iter_mut().for_each(|w| *w *= g.constant("scale"));
                problem.solve(&initial, g.interval(), out, work).map(drop)
            }
            // Room is made by the scheme itself: no other pairs are.
            _ => None,
        }
    }
}
