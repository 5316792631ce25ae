//! Measures how well a step between two states satisfies its equation, using the schemes that generate the data.

use super::advection::Translation;
use super::burgers::{self, Burgers};
use super::diffusion;
use super::diffusion_reaction::{self, DiffusionReaction};
use super::fitzhugh_nagumo::{self, Constants, FitzHughNagumo};
use super::navier_stokes::{self, NavierStokes};
use crate::fields::field::{Field, attributes_of};
use crate::fields::generate::Equation;
use crate::fields::parameter::Parameter;
use std::sync::{Mutex, PoisonError};
use unix::{Error, Result};

/// An equation with its parameter, grid and step length; can be shared between threads.
pub struct Physics {
    scheme: Scheme,
    /// Whether the mean of the field is conserved.
    conserves: bool,
    time: f64,
    /// Pool of buffers that are not in use.
    buffers: Mutex<Vec<Buffers>>,
}

enum Scheme {
    Burgers(Burgers),
    Advection(Translation),
    DiffusionReaction(Box<DiffusionReaction>),
    FitzHughNagumo(Box<FitzHughNagumo>),
    NavierStokes(Box<NavierStokes>),
}

/// Buffers for one step.
struct Buffers {
    from: Vec<f64>,
    to: Vec<f64>,
    rates: [Vec<f64>; 2],
    work: Work,
}

enum Work {
    None,
    Burgers(Box<burgers::Workspace>),
    Diffusion(Box<diffusion::Workspace>),
    FitzHughNagumo(Box<fitzhugh_nagumo::Workspace>),
    NavierStokes(Box<navier_stokes::Workspace>),
}

impl Physics {
    /// Sets up the equation of `field` with the parameter of one of its trajectories, for steps of length `time`.
    /// `equation` takes precedence over the equation that the file names.
    ///
    /// Errors: 2 when the equation is unknown, or has no time-dependent scheme here.
    pub fn of(
        field: &Field,
        equation: Option<Equation>,
        parameter: &Parameter,
        time: f64,
    ) -> Result<Self> {
        let path = field.path().display();
        let Some(equation) = equation.or(Equation::of(field)) else {
            return Err(Error::usage(format!("{path} does not name its equation; add --equation")));
        };
        let shape = field.shape();
        if !equation.has_shape(shape.grid.len(), shape.channels) {
            return Err(Error::usage(format!("{path}: {shape} are not fields of {equation}")));
        }
        let attributes = attributes_of(field.path())?;
        let constant = |name: &str| {
            let own = equation.constants().iter().find(|constant| constant.name == name);
            let stated = parameter.get(name).or_else(|| attributes.get(name)?.as_f64());
            stated.or(own.map(|constant| constant.default)).unwrap_or(0.0)
        };
        let (value, grid) = (parameter.value, shape.grid[0]);
        let scheme = match equation {
            Equation::Burgers => Scheme::Burgers(Burgers::new(value, grid)),
            Equation::Advection => Scheme::Advection(Translation::new(value, grid)),
            Equation::DiffusionReaction => {
                let (rho, step) = (constant("Rho"), diffusion_reaction::STEP);
                Scheme::DiffusionReaction(Box::new(DiffusionReaction::new(
                    value, rho, grid, time, step,
                )))
            }
            Equation::NavierStokes => {
                let (force, courant) = (constant("forcing"), navier_stokes::COURANT);
                Scheme::NavierStokes(Box::new(NavierStokes::new(value, force, grid, courant)))
            }
            Equation::FitzHughNagumo => {
                let constants =
                    Constants { k: constant("k"), diffusivity: [value, constant("Dv")] };
                let step = fitzhugh_nagumo::STEP;
                Scheme::FitzHughNagumo(Box::new(FitzHughNagumo::new(constants, grid, time, step)))
            }
            Equation::Darcy => {
                return Err(Error::usage(format!("{path}: no reward for steps of {equation}")));
            }
        };
        let conserves = !equation.symmetries().conserved.is_empty();
        Ok(Self { scheme, conserves, time, buffers: Mutex::default() })
    }

    /// Computes the root mean square of (to - from) - time·(rate(from) + rate(to))/2: the residual of the trapezoidal
    /// rule, in units of the field. This takes two evaluations of the discretised equation.
    pub fn residual(&self, from: &[f32], to: &[f32]) -> f64 {
        self.with_buffers(from, to, |Buffers { from, to, rates: [start, end], work }| {
            self.rate(from, start, work);
            self.rate(to, end, work);
            let half = 0.5 * self.time;
            let rates = start.iter().zip(&*end).map(|(a, b)| half * (a + b));
            root_mean_square(
                from.iter().zip(&*to).zip(rates).map(|((a, b), change)| b - a - change),
            )
        })
    }

    /// Computes the root mean square of `to` minus the solution that the scheme computes from `from`, which is as
    /// expensive as generating the data. Infinite when the solution is not finite.
    pub fn solver_error(&self, from: &[f32], to: &[f32]) -> f64 {
        self.with_buffers(from, to, |Buffers { from, to, rates: [solution, _], work }| {
            solution.copy_from_slice(from);
            match self.advance(solution, work) {
                None => f64::INFINITY,
                Some(()) => root_mean_square(to.iter().zip(&*solution).map(|(a, b)| a - b)),
            }
        })
    }

    /// Measures how far `to` violates properties of every solution, in units of the field: the change of the mean,
    /// where it is conserved, plus the root mean square of the excess beyond the bounds of the solution. Solutions of
    /// the Burgers and advection equations stay between the extremes of `from` (maximum principle); solutions of the
    /// Fisher-KPP equation stay positive, and below 1 or the maximum of `from`, whichever is larger. The no-flux
    /// boundary of the FitzHugh-Nagumo model does not constrain the state at the cell centres; it is part of the rates.
    pub fn violation(&self, from: &[f32], to: &[f32]) -> f64 {
        let mean = |u: &[f32]| u.iter().map(|u| f64::from(*u)).sum::<f64>() / u.len() as f64;
        let change = if self.conserves { (mean(to) - mean(from)).abs() } else { 0.0 };
        let extremes = || {
            let all = from.iter().map(|u| f64::from(*u));
            all.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], u| [u.min(low), u.max(high)])
        };
        let [low, high] = match self.scheme {
            Scheme::Burgers(_) | Scheme::Advection(_) => extremes(),
            Scheme::DiffusionReaction(_) => {
                let [low, high] = extremes();
                [low.min(0.0), high.max(1.0)]
            }
            Scheme::FitzHughNagumo(_) | Scheme::NavierStokes(_) => {
                [f64::NEG_INFINITY, f64::INFINITY]
            }
        };
        let excess = to.iter().map(|u| f64::from(*u)).map(|u| (u - high).max(low - u).max(0.0));
        change + root_mean_square(excess)
    }

    fn rate(&self, u: &[f64], out: &mut [f64], work: &mut Work) {
        match (&self.scheme, work) {
            (Scheme::Burgers(scheme), Work::Burgers(work)) => scheme.rate(u, out, work),
            (Scheme::Advection(scheme), _) => scheme.rate(u, out),
            (Scheme::DiffusionReaction(scheme), _) => scheme.rate(u, out),
            (Scheme::FitzHughNagumo(scheme), _) => scheme.rate(u, out),
            (Scheme::NavierStokes(scheme), Work::NavierStokes(work)) => scheme.rate(u, out, work),
            _ => out.fill(f64::NAN),
        }
    }

    fn advance(&self, u: &mut [f64], work: &mut Work) -> Option<()> {
        match (&self.scheme, work) {
            (Scheme::Burgers(scheme), Work::Burgers(work)) => scheme.step(u, self.time, work),
            (Scheme::Advection(scheme), _) => {
                let from = u.to_vec();
                scheme.step(&from, self.time, u);
                Some(())
            }
            (Scheme::DiffusionReaction(scheme), Work::Diffusion(work)) => {
                scheme.advance(u, work);
                u.iter().all(|u| u.is_finite()).then_some(())
            }
            (Scheme::FitzHughNagumo(scheme), Work::FitzHughNagumo(work)) => {
                scheme.advance_field(u, work);
                u.iter().all(|u| u.is_finite()).then_some(())
            }
            (Scheme::NavierStokes(scheme), Work::NavierStokes(work)) => {
                scheme.advance_field(u, self.time, work)
            }
            _ => None,
        }
    }

    fn with_buffers(
        &self,
        from: &[f32],
        to: &[f32],
        value: impl FnOnce(&mut Buffers) -> f64,
    ) -> f64 {
        // Buffers hold only numbers, so they remain usable after a thread has panicked.
        let pool = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = pool().pop();
        let mut buffers = free.unwrap_or_else(|| Buffers {
            from: vec![0.0; from.len()],
            to: vec![0.0; from.len()],
            rates: [vec![0.0; from.len()], vec![0.0; from.len()]],
            work: match &self.scheme {
                Scheme::Burgers(scheme) => Work::Burgers(Box::new(scheme.workspace())),
                Scheme::Advection(_) => Work::None,
                Scheme::DiffusionReaction(scheme) => Work::Diffusion(Box::new(scheme.workspace())),
                Scheme::FitzHughNagumo(scheme) => {
                    Work::FitzHughNagumo(Box::new(scheme.workspace()))
                }
                Scheme::NavierStokes(scheme) => Work::NavierStokes(Box::new(scheme.workspace())),
            },
        });
        let wide = |out: &mut Vec<f64>, u: &[f32]| {
            out.iter_mut().zip(u).for_each(|(a, b)| *a = f64::from(*b))
        };
        wide(&mut buffers.from, from);
        wide(&mut buffers.to, to);
        let value = value(&mut buffers);
        pool().push(buffers);
        value
    }
}

fn root_mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value * value;
        count += 1;
    }
    (sum / f64::from(count.max(1))).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::generate::Generation;

    /// Generates a file and returns it with its first trajectory, in f32.
    fn trajectory(
        folder: &std::path::Path,
        equation: Equation,
        parameter: f64,
        end: f64,
    ) -> (Field, Vec<f32>) {
        let grid = if equation.axes() == 1 { 64 } else { 32 };
        let generation =
            Generation { grid, frames: 3, end, seed: 3, ..Generation::new(equation, parameter, 1) };
        let path = folder.join(format!("{equation}-{end}.hdf5"));
        generation.write(&path, || Ok(())).unwrap();
        let field = Field::open(&path).unwrap();
        let mut values = vec![0.0; field.shape().trajectory_len()];
        field.read(0, &mut values).unwrap();
        (field, values)
    }

    /// Excludes advection, whose generated states are not band-limited; [`super::super::advection`] tests its scheme.
    const EQUATIONS: [(Equation, f64); 4] = [
        (Equation::Burgers, 0.3),
        (Equation::DiffusionReaction, 0.02),
        (Equation::FitzHughNagumo, 0.02),
        (Equation::NavierStokes, 0.01),
    ];

    /// The solver reproduces its own data up to the rounding of the file. The residual of the trapezoidal rule is of
    /// third order in the step, or of second order with a limiter.
    #[test]
    fn true_steps_fit_their_equation_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        for (equation, parameter) in EQUATIONS {
            let residuals = [0.004, 0.001].map(|end| {
                let (field, values) = trajectory(folder.path(), equation, parameter, end);
                let length = field.shape().frame_len();
                let (from, to) = (&values[length..2 * length], &values[2 * length..]);
                let regime = field.parameter().unwrap().clone();
                let physics = Physics::of(&field, None, &regime, end / 2.0).unwrap();
                let size = root_mean_square(to.iter().map(|u| f64::from(*u)));
                let change = root_mean_square(from.iter().zip(to).map(|(a, b)| f64::from(b - a)));
                let [error, residual] =
                    [physics.solver_error(from, to), physics.residual(from, to)];
                assert!(error < 1e-6 * size, "{equation}: {error} of {size}");
                assert!(residual < 0.1 * change, "{equation}: {residual} of {change}");
                // A step without any change is in error by the whole change.
                assert!(
                    (physics.solver_error(from, from) - change).abs() < 1e-5 * size + 1e-3 * change
                );
                assert!(physics.residual(from, from) > 0.9 * change, "{equation}");
                residual
            });
            // A step of a quarter of the length leaves at most an eighth of the residual.
            assert!(residuals[1] < residuals[0] / 8.0 + 1e-7, "{equation}: {residuals:?}");
        }
    }

    /// Solutions violate nothing beyond the rounding of the file. Shifted states violate the conservation of the mean,
    /// and overshooting states violate the bounds, for equations that have these.
    #[test]
    fn solutions_keep_their_means_and_bounds() {
        let folder = tempfile::tempdir().unwrap();
        for (equation, parameter) in EQUATIONS {
            let (field, values) = trajectory(folder.path(), equation, parameter, 0.1);
            let length = field.shape().frame_len();
            let (from, to) = (&values[length..2 * length], &values[2 * length..]);
            let regime = field.parameter().unwrap().clone();
            let physics = Physics::of(&field, None, &regime, 0.05).unwrap();
            let size = root_mean_square(to.iter().map(|u| f64::from(*u)));
            assert!(physics.violation(from, to) < 1e-6 * size, "{equation}");
            let shifted: Vec<f32> = to.iter().map(|u| u + 0.01).collect();
            let conserves = !equation.symmetries().conserved.is_empty();
            let found = physics.violation(from, &shifted);
            assert_eq!(found > 0.0099, conserves, "{equation}: {found}");
            let mut overshot = to.to_vec();
            // The mean is unchanged.
            overshot[0] += 5.0;
            overshot[1] -= 5.0;
            let found = physics.violation(from, &overshot);
            let is_bounded = matches!(equation, Equation::Burgers | Equation::DiffusionReaction);
            assert_eq!(found > 0.1, is_bounded, "{equation}: {found}");
        }
    }

    #[test]
    fn equations_without_steps_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (field, _) = trajectory(folder.path(), Equation::Burgers, 0.1, 0.01);
        let regime = field.parameter().unwrap().clone();
        let refused =
            |equation| Physics::of(&field, Some(equation), &regime, 0.1).err().unwrap().to_string();
        assert!(refused(Equation::Darcy).contains("not fields of darcy"));
        assert!(Physics::of(&field, None, &regime, 0.1).is_ok());
    }
}
