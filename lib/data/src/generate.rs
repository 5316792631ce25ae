//! Making files of trajectories with the solvers: all threads, the same numbers on any number of them.

use crate::field::Shape;
use crate::initial::Sinusoids;
use crate::parameter::Parameter;
use crate::solvers::{advection, burgers, cell_centres, frame_times};
use crate::write::{Attribute, FieldWriter, Header, write_field};
use rayon::prelude::*;
use std::path::Path;
use std::str::FromStr;
use unix::{Error, Result};

/// What is solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equation {
    /// u_t + (u²/2)_x = (ν/π) u_xx.
    Burgers,
    /// u_t + β u_x = 0.
    Advection,
}

impl Equation {
    /// Name of the parameter's attribute in PDEBench's files.
    fn attribute(self) -> &'static str {
        match self {
            Self::Burgers => "Nu",
            Self::Advection => "beta",
        }
    }

    /// The regime of a parameter value.
    pub fn parameter(self, value: f64) -> Parameter {
        Parameter::new(self.attribute(), value)
    }

    /// PDEBench's name for the file of one parameter value.
    pub fn file_name(self, value: f64) -> String {
        match self {
            Self::Burgers => format!("1D_Burgers_Sols_Nu{value:?}.hdf5"),
            Self::Advection => format!("1D_Advection_Sols_beta{value:?}.hdf5"),
        }
    }

    /// The name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Burgers => "burgers",
            Self::Advection => "advection",
        }
    }

    fn scheme(self) -> String {
        match self {
            Self::Burgers => format!(
                "finite volumes, MUSCL (MC), Godunov flux, SSP-RK2, Courant number {}; exact semigroup of \
                 the central second difference; Strang splitting; f64",
                burgers::COURANT
            ),
            Self::Advection => "exact".into(),
        }
    }
}

impl FromStr for Equation {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Burgers, Self::Advection].into_iter().find(|e| e.name() == text);
        known.ok_or_else(|| format!("no equation `{text}`; there are burgers and advection"))
    }
}

/// One file to be made. Trajectory i is a function of (equation, parameter, seed, first + i, grid, end)
/// alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// What is solved.
    pub equation: Equation,
    /// ν ≥ 0 or β.
    pub parameter: f64,
    /// Number of trajectories.
    pub samples: usize,
    /// Number of the first: files with disjoint ranges continue each other.
    pub first: u64,
    /// Seed of the initial states.
    pub seed: u64,
    /// Cells.
    pub grid: usize,
    /// Frames, the initial state included.
    pub frames: usize,
    /// Time of the last frame.
    pub end: f64,
}

impl Generation {
    /// Refuses (2) what cannot be solved.
    pub fn validate(&self) -> Result<()> {
        let fault = if !self.parameter.is_finite() {
            format!("parameter {} is not finite", self.parameter)
        } else if self.equation == Equation::Burgers && self.parameter < 0.0 {
            format!("viscosity {} is negative", self.parameter)
        } else if self.samples == 0 || self.frames < 2 || self.grid < 8 {
            format!(
                "{} samples of {} frames on {} points: at least 1, 2 and 8 are needed",
                self.samples, self.frames, self.grid
            )
        } else if !(self.end.is_finite() && self.end > 0.0) {
            format!("end time {} is not positive", self.end)
        } else if self
            .frames
            .checked_mul(self.grid)
            .and_then(|n| n.checked_mul(self.samples))
            .is_none_or(|n| n > 1 << 40)
        {
            format!(
                "{} samples of {} frames on {} points are more than 4 TiB",
                self.samples, self.frames, self.grid
            )
        } else {
            return Ok(());
        };
        Err(Error::usage(fault))
    }

    fn header(&self) -> Header {
        let text = |text: &str| Attribute::Text(text.into());
        let attributes = [
            (self.equation.attribute(), Attribute::Real(self.parameter)),
            (
                "equation",
                text(match self.equation {
                    Equation::Burgers => "u_t + (u^2/2)_x = (Nu/pi) u_xx, periodic",
                    Equation::Advection => "u_t + beta u_x = 0, periodic",
                }),
            ),
            ("scheme", Attribute::Text(self.equation.scheme())),
            (
                "initial_state",
                text("2 sines, wave numbers 1 to 8; absolute value 10 %, window 10 %"),
            ),
            ("seed", Attribute::Count(self.seed)),
            ("first_sample", Attribute::Count(self.first)),
            ("generator", text(concat!("longhaul ", env!("CARGO_PKG_VERSION")))),
        ];
        Header {
            shape: Shape {
                trajectories: self.samples,
                frames: self.frames,
                grid: vec![self.grid],
                channels: 1,
            },
            x: cell_centres(self.grid),
            t: frame_times(self.frames, self.end),
            attributes: attributes.map(|(name, value)| (name.to_string(), value)).into(),
        }
    }

    /// Makes the file `path`, which must not exist, on the threads of the current rayon pool.
    /// `done` is called after every trajectory, from any thread; its error ends the work.
    pub fn write(&self, path: &Path, done: impl Fn() -> Result<()> + Sync) -> Result<()> {
        self.validate()?;
        write_field(path, &self.header(), |writer| match self.equation {
            Equation::Burgers => self.burgers(writer, &done),
            Equation::Advection => self.advection(writer, &done),
        })
    }

    fn burgers(&self, writer: &FieldWriter, done: &(impl Fn() -> Result<()> + Sync)) -> Result<()> {
        let scheme = burgers::Burgers::new(self.parameter, self.grid);
        let x = cell_centres(self.grid);
        let interval = self.end / (self.frames - 1) as f64;
        let room = || (scheme.workspace(), vec![0.0f32; self.frames * self.grid]);
        (0..self.samples).into_par_iter().try_for_each_init(room, |(work, out), sample| {
            let state = Sinusoids::draw(self.seed, self.parameter, self.first + sample as u64);
            let initial: Vec<f64> = x.iter().map(|&x| state.at(x)).collect();
            scheme.solve(&initial, interval, out, work).ok_or_else(|| {
                Error::bug(format!(
                    "{}: trajectory {sample} is no longer finite",
                    self.equation.parameter(self.parameter)
                ))
            })?;
            writer.write(sample, out)?;
            done()
        })
    }

    fn advection(
        &self,
        writer: &FieldWriter,
        done: &(impl Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        let room = || vec![0.0f32; self.frames * self.grid];
        (0..self.samples).into_par_iter().try_for_each_init(room, |out, sample| {
            let state = Sinusoids::draw(self.seed, self.parameter, self.first + sample as u64);
            advection::solve(&state, self.parameter, self.grid, self.end, out);
            writer.write(sample, out)?;
            done()
        })
    }
}
