//! The parameter of an equation that a file was made with, its regime.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Name and value of the parameter, e.g. `nu=0.001`. Names are lower case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// `nu` (Burgers, reaction-diffusion), `beta` (advection, Darcy), …
    pub name: String,
    /// Its value.
    pub value: f64,
}

/// Names of parameters in PDEBench's files, as attributes and in file names.
pub const NAMES: [&str; 2] = ["nu", "beta"];

impl Parameter {
    /// A parameter; the name is put in lower case.
    pub fn new(name: &str, value: f64) -> Self {
        Self { name: name.to_ascii_lowercase(), value }
    }

    /// The parameter in a file name in PDEBench's manner: `1D_Burgers_Sols_Nu0.001.hdf5`.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_ascii_lowercase();
        stem.split('_').find_map(|part| {
            let name = NAMES.into_iter().find(|name| part.starts_with(name))?;
            let value: f64 = part[name.len()..].parse().ok()?;
            value.is_finite().then(|| Self::new(name, value))
        })
    }

    /// Same name and same value to the bit: the same regime.
    pub fn is_same_regime(&self, other: &Self) -> bool {
        self.name == other.name && self.value.to_bits() == other.value.to_bits()
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_tell_the_parameter() {
        let cases = [
            ("1D_Burgers_Sols_Nu0.001.hdf5", Some(Parameter::new("nu", 0.001))),
            ("1D_Advection_Sols_beta0.1.hdf5", Some(Parameter::new("beta", 0.1))),
            ("1D_Advection_Sols_beta4.0.hdf5", Some(Parameter::new("beta", 4.0))),
            ("2D_DarcyFlow_beta10.0_Train.hdf5", Some(Parameter::new("beta", 10.0))),
            ("1D_Burgers_number.hdf5", None),
            ("numbers_nuNaN.hdf5", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(Parameter::from_file_name(name), expected, "{name}");
        }
    }
}
