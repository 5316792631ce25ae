//! The equations that the solvers support: names, constants, default sizes, and the attributes of their files.

use crate::fields::field::{Field, FieldLayout};
use crate::fields::parameter::Parameter;
use crate::fields::solvers::symmetry::Symmetries;
use crate::fields::solvers::{
    advection, burgers, darcy, diffusion_reaction, fitzhugh_nagumo, navier_stokes,
};
use clap::ValueEnum;

/// An equation to solve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[value(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Equation {
    /// u_t + (u²/2)_x = (ν/π) u_xx.
    Burgers,
    /// u_t + β u_x = 0.
    Advection,
    /// u_t = ν u_xx + ρ u (1 - u).
    DiffusionReaction,
    /// u_t = Du Δu + u - u³ - k - v, v_t = Dv Δv + u - v.
    #[value(name = "diffusion-reaction-2d")]
    #[strum(to_string = "diffusion-reaction-2d")]
    FitzHughNagumo,
    /// -∇·(a∇u) = β.
    Darcy,
    /// w_t + u·∇w = νΔw + f.
    NavierStokes,
}

/// A constant of an equation, in addition to its parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    /// Name on the command line and in file attributes.
    pub name: &'static str,
    /// Default value.
    pub default: f64,
    /// Whether the value must be positive.
    pub positive: bool,
}

const fn constant(name: &'static str, default: f64, positive: bool) -> Constant {
    Constant { name, default, positive }
}

/// The size of a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Cells along each axis.
    pub grid: usize,
    /// Number of frames, including the initial state.
    pub frames: usize,
    /// Time of the last frame.
    pub end: f64,
}

impl Equation {
    /// Name of the attribute that holds the parameter in PDEBench's files.
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Burgers | Self::DiffusionReaction | Self::NavierStokes => "Nu",
            Self::FitzHughNagumo => "Du",
            Self::Advection | Self::Darcy => "beta",
        }
    }

    /// Converts a parameter value to a regime.
    pub fn parameter(self, value: f64) -> Parameter {
        Parameter::new(self.attribute(), value)
    }

    /// Whether the parameter may be negative.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Advection | Self::Darcy)
    }

    /// Constants of the equation other than its parameter.
    pub fn constants(self) -> &'static [Constant] {
        match self {
            Self::Burgers | Self::Advection => &[],
            Self::DiffusionReaction => const { &[constant("Rho", 1.0, false)] },
            Self::FitzHughNagumo => {
                const { &[constant("Dv", 5e-3, true), constant("k", 5e-3, false)] }
            }
            Self::Darcy => const { &[constant("low", 0.1, true), constant("high", 1.0, true)] },
            Self::NavierStokes => {
                const { &[constant("forcing", 0.1, false), constant("scale", 1.0, false)] }
            }
        }
    }

    /// Returns the file layout, the channel names and the number of input channels.
    pub(super) fn layout(self) -> (FieldLayout, &'static [&'static str], usize) {
        match self {
            Self::Burgers | Self::Advection | Self::DiffusionReaction => {
                (FieldLayout::Tensor, &["u"], 0)
            }
            Self::FitzHughNagumo => (FieldLayout::Groups, &["u", "v"], 0),
            Self::Darcy => (FieldLayout::Steady, &["nu", "u"], 1),
            Self::NavierStokes => (FieldLayout::Groups, &["vorticity"], 0),
        }
    }

    /// Number of predicted channels.
    pub fn states(self) -> usize {
        let (_, channels, inputs) = self.layout();
        channels.len() - inputs
    }

    /// Whether a field with `axes` spatial axes and `channels` channels can belong to this equation, either complete or
    /// with its inputs only.
    pub fn has_shape(self, axes: usize, channels: usize) -> bool {
        let (_, all, inputs) = self.layout();
        axes == self.axes() && [all.len(), inputs].contains(&channels)
    }

    /// Number of spatial axes.
    pub fn axes(self) -> usize {
        match self {
            Self::Burgers | Self::Advection | Self::DiffusionReaction => 1,
            Self::FitzHughNagumo | Self::Darcy | Self::NavierStokes => 2,
        }
    }

    /// Whether all spatial axes are periodic.
    pub fn is_periodic(self) -> bool {
        !matches!(self, Self::FitzHughNagumo | Self::Darcy)
    }

    /// Whether the problem is steady (has no time axis).
    pub fn is_steady(self) -> bool {
        self == Self::Darcy
    }

    /// Exact symmetries of the solutions.
    pub fn symmetries(self) -> &'static Symmetries {
        match self {
            Self::Burgers => &burgers::SYMMETRIES,
            Self::Advection => &advection::SYMMETRIES,
            Self::DiffusionReaction => &diffusion_reaction::SYMMETRIES,
            Self::FitzHughNagumo => &fitzhugh_nagumo::SYMMETRIES,
            Self::Darcy => &darcy::SYMMETRIES,
            Self::NavierStokes => &navier_stokes::SYMMETRIES,
        }
    }

    /// Returns the equation whose formula a file states.
    pub fn of(field: &Field) -> Option<Self> {
        let formula = field.formula()?;
        Self::value_variants().iter().copied().find(|equation| equation.formula() == formula)
    }

    /// Default sizes, as in PDEBench.
    pub fn sizes(self) -> Sizes {
        let (grid, frames, end) = match self {
            Self::Burgers | Self::Advection => (1024, 201, 2.0),
            Self::DiffusionReaction => (1024, 101, 1.0),
            Self::FitzHughNagumo => (128, 101, 5.0),
            Self::Darcy => (128, 1, 0.0),
            Self::NavierStokes => (64, 51, 50.0),
        };
        Sizes { grid, frames, end }
    }

    /// Lower and upper bound of the domain, the same along each axis.
    pub fn domain(self) -> [f64; 2] {
        if self == Self::FitzHughNagumo { [-1.0, 1.0] } else { [0.0, 1.0] }
    }

    pub(super) fn formula(self) -> &'static str {
        match self {
            Self::Burgers => "u_t + (u^2/2)_x = (Nu/pi) u_xx, periodic",
            Self::Advection => "u_t + beta u_x = 0, periodic",
            Self::DiffusionReaction => "u_t = Nu u_xx + Rho u (1 - u), periodic",
            Self::FitzHughNagumo => {
                "u_t = Du lap(u) + u - u^3 - k - v, v_t = Dv lap(v) + u - v, closed borders"
            }
            Self::Darcy => "-div(nu grad(tensor)) = beta, tensor = 0 at the border",
            Self::NavierStokes => {
                "w_t + u.grad(w) = Nu lap(w) + forcing (sin 2pi(x+y) + cos 2pi(x+y)), periodic; data \
                 is the vorticity w"
            }
        }
    }

    pub(super) fn scheme(self) -> String {
        match self {
            Self::Burgers => format!(
                "finite volumes, MUSCL (MC), Godunov flux, SSP-RK2, Courant number {}; exact semigroup of \
                 the central second difference; Strang splitting; f64",
                burgers::COURANT
            ),
            Self::Advection => "exact".into(),
            Self::DiffusionReaction => format!(
                "exact semigroup of the central second difference; exact logistic flow; Strang splitting, \
                 steps of at most {}/Rho; f64",
                diffusion_reaction::STEP
            ),
            Self::FitzHughNagumo => format!(
                "exact semigroup of the central second differences; RK4; Strang splitting, steps of at \
                 most {}; f64",
                fitzhugh_nagumo::STEP
            ),
            Self::Darcy => format!(
                "finite volumes, harmonic means; conjugate gradients with multigrid to a relative residual \
                 of {:e}; f64",
                darcy::TOLERANCE
            ),
            Self::NavierStokes => format!(
                "pseudo-spectral, two-thirds rule; RK4 with exact viscosity, Courant number {}; f64",
                navier_stokes::COURANT
            ),
        }
    }

    pub(super) fn initial_state(self) -> &'static str {
        match self {
            Self::Burgers | Self::Advection => {
                "2 sines, wave numbers 1 to 8; absolute value 10 %, window 10 %"
            }
            Self::DiffusionReaction => {
                "2 sines, wave numbers 1 to 8, window 10 %; absolute value over its maximum"
            }
            Self::FitzHughNagumo => "standard normal noise at every cell",
            Self::Darcy => {
                "nu is high where a Gaussian field (-lap + 9)^-2 is not negative, low elsewhere; the same \
                 for every beta"
            }
            Self::NavierStokes => {
                "scale times a Gaussian random field with covariance 7^3 (-lap + 49)^-2.5"
            }
        }
    }
}
