//! Generates trajectory files with the solvers, in parallel; the values do not depend on the number of threads.

mod equation;
mod problem;

pub use equation::{Constant, Equation, Sizes};

use crate::fields::field::{EQUATION, PERIODIC, Shape};
use crate::fields::solvers::{cell_centres, frame_times};
use crate::fields::write::{Header, write_field};
use problem::maker;
use rayon::prelude::*;
use serde_json::Value;
use std::path::Path;
use tensor::Dtype;
use unix::{Error, Result};

/// A file to generate. Trajectory i depends only on (equation, parameter, constants, seed, first + i, grid, frames,
/// end).
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The equation to solve.
    pub equation: Equation,
    /// The parameter: ν ≥ 0, β, or Du ≥ 0.
    pub parameter: f64,
    /// Constants that differ from their defaults, by name.
    pub constants: Vec<(String, f64)>,
    /// Number of trajectories.
    pub samples: usize,
    /// Index of the first trajectory: files with disjoint ranges can be combined.
    pub first: u64,
    /// Seed of the initial states.
    pub seed: u64,
    /// Cells along each axis.
    pub grid: usize,
    /// Number of frames, including the initial state; 1 for a steady problem.
    pub frames: usize,
    /// Time of the last frame.
    pub end: f64,
}

impl Generation {
    /// Selects the first `samples` trajectories of seed 0, with PDEBench's sizes and the default constants.
    pub fn new(equation: Equation, parameter: f64, samples: usize) -> Self {
        let Sizes { grid, frames, end } = equation.sizes();
        let (constants, first, seed) = (Vec::new(), 0, 0);
        Self { equation, parameter, constants, samples, first, seed, grid, frames, end }
    }

    /// PDEBench's name for the file. PDEBench's data set classes expect one group per trajectory in `.h5` files, and
    /// one dataset in other files.
    pub fn file_name(&self) -> String {
        let value = self.parameter;
        match self.equation {
            Equation::Burgers => format!("1D_Burgers_Sols_Nu{value:?}.hdf5"),
            Equation::Advection => format!("1D_Advection_Sols_beta{value:?}.hdf5"),
            Equation::DiffusionReaction => {
                format!("ReacDiff_Nu{value:?}_Rho{:?}.hdf5", self.constant("Rho"))
            }
            Equation::FitzHughNagumo => format!("2D_diff-react_Du{value:?}.h5"),
            Equation::Darcy => format!("2D_DarcyFlow_beta{value:?}.hdf5"),
            Equation::NavierStokes => format!("2D_NavierStokes_Nu{value:?}.h5"),
        }
    }

    /// Checks sizes and values. Errors: 2 for any that cannot be solved.
    pub fn validate(&self) -> Result<()> {
        let Self { equation, parameter, samples, frames, grid, end, .. } = self;
        let fewest = if equation.is_steady() { 1 } else { 2 };
        let cells = grid.checked_pow(equation.axes() as u32);
        let numbers =
            cells.and_then(|n| n.checked_mul(*frames)?.checked_mul(*samples)?.checked_mul(2));
        let problem = if !parameter.is_finite() {
            format!("parameter {parameter} is not finite")
        } else if !equation.is_signed() && *parameter < 0.0 {
            format!("{} = {parameter} is negative", equation.attribute())
        } else if *samples == 0 || *frames < fewest || *grid < 8 {
            format!(
                "{samples} samples of {frames} frames on {grid} points: at least 1, {fewest} and 8 are \
                 needed"
            )
        } else if equation.is_steady() && *frames != 1 {
            format!("{} is a steady problem: 1 frame, not {frames}", equation)
        } else if !(equation.is_steady() || end.is_finite() && *end > 0.0) {
            format!("end time {end} is not positive")
        } else if numbers.is_none_or(|n| n > 1 << 40) {
            format!("{samples} samples of {frames} frames on {grid} points are more than 4 TiB")
        } else if let Some(problem) = self.constants.iter().find_map(|c| self.fault_of(c)) {
            problem
        } else {
            return Ok(());
        };
        Err(Error::usage(problem))
    }

    fn fault_of(&self, (name, value): &(String, f64)) -> Option<String> {
        let known = self.equation.constants();
        let Some(constant) = known.iter().find(|c| c.name == name) else {
            let names: Vec<&str> = known.iter().map(|c| c.name).collect();
            let there = if names.is_empty() { "none".to_string() } else { names.join(", ") };
            let equation = self.equation;
            return Some(format!("no constant `{name}` of {equation}; there are: {there}"));
        };
        let good = value.is_finite() && (!constant.positive || *value > 0.0);
        (!good).then(|| format!("constant {name} = {value} is not allowed"))
    }

    /// Value of the equation's constant `name`.
    fn constant(&self, name: &str) -> f64 {
        let given = self.constants.iter().rev().find(|(other, _)| other == name);
        let default = || self.equation.constants().iter().find(|c| c.name == name);
        given.map(|(_, value)| *value).or_else(|| default().map(|c| c.default)).unwrap_or(f64::NAN)
    }

    fn interval(&self) -> f64 {
        self.end / self.frames.saturating_sub(1).max(1) as f64
    }

    fn header(&self) -> Header {
        let equation = self.equation;
        let mut attributes: Vec<(&str, Value)> =
            vec![(equation.attribute(), self.parameter.into())];
        attributes
            .extend(equation.constants().iter().map(|c| (c.name, self.constant(c.name).into())));
        attributes.extend([
            (EQUATION, equation.formula().into()),
            ("scheme", equation.scheme().into()),
            ("initial_state", equation.initial_state().into()),
            ("seed", self.seed.into()),
            ("first_sample", self.first.into()),
            ("generator", concat!("longhaul ", env!("CARGO_PKG_VERSION")).into()),
        ]);
        if equation.is_periodic() {
            attributes.push((PERIODIC, ["x", "x,y"][equation.axes() - 1].into()));
        }
        let (layout, channels, inputs) = equation.layout();
        let timed_frames = if equation.is_steady() { 0 } else { self.frames };
        let [from, to] = equation.domain();
        let centres: Vec<f64> =
            cell_centres(self.grid).iter().map(|x| from + (to - from) * x).collect();
        Header {
            shape: Shape {
                trajectories: self.samples,
                frames: self.frames,
                grid: vec![self.grid; equation.axes()],
                channels: channels.len(),
            },
            layout,
            channels: channels.iter().map(|name| name.to_string()).collect(),
            inputs,
            coordinates: vec![centres; equation.axes()],
            t: frame_times(timed_frames, self.end),
            attributes: attributes.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            dtype: Dtype::F32,
            is_records: false,
        }
    }

    /// Fails (2) if the trajectories solved concurrently, one per thread of the current rayon pool, do not fit into
    /// memory. Counts their frames as f32, and the state, its coordinates and the scheme's buffers as f64.
    fn ensure_memory(&self) -> Result<()> {
        let (_, channels, _) = self.equation.layout();
        let cells = (self.grid as u64).checked_pow(self.equation.axes() as u32);
        let numbers = cells.and_then(|n| n.checked_mul(channels.len() as u64));
        let per_number = (self.frames as u64).checked_mul(4).and_then(|n| n.checked_add(24 * 8));
        let threads = rayon::current_num_threads().min(self.samples) as u64;
        let bytes =
            numbers.zip(per_number).and_then(|(n, each)| n.checked_mul(each)?.checked_mul(threads));
        let what = format!(
            "solving {} on {} cells a side with {} frames on {threads} threads",
            self.equation, self.grid, self.frames
        );
        unix::memory::ensure(&what, bytes).map_err(Error::usage)
    }

    /// Writes the file `path`, which must not exist, on the threads of the current rayon pool. `done` is called after
    /// every trajectory, from any thread; if it returns an error, the generation stops.
    pub fn write(&self, path: &Path, done: impl Fn() -> Result<()> + Sync) -> Result<()> {
        self.validate()?;
        self.ensure_memory()?;
        let header = self.header();
        let length = header.shape.trajectory_len();
        write_field(path, &header, |writer| {
            let buffer = || (maker(self), vec![0.0f32; length]);
            (0..self.samples).into_par_iter().try_for_each_init(buffer, |(make, out), sample| {
                make(self.first + sample as u64, out).ok_or_else(|| {
                    Error::bug(format!(
                        "{} {}: trajectory {sample} is no longer finite",
                        self.equation,
                        self.equation.parameter(self.parameter)
                    ))
                })?;
                writer.write(sample, out)?;
                done()
            })
        })
    }
}
