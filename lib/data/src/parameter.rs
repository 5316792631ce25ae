//! The parameters of an equation that a file was made with, its regime.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Name and value of the parameter, e.g. `nu=0.001`, and of further ones. Names are lower case.
///
/// Models are told the first; all of them together are the regime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// `nu` (Burgers, reaction-diffusion), `beta` (advection, Darcy), …
    pub name: String,
    /// Its value.
    pub value: f64,
    /// The others, in the order of [`NAMES`], as (name, value).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<(String, f64)>,
}

/// Names of parameters in PDEBench's files, as attributes and in configurations, by rank: viscosity,
/// speed or coefficient, Mach and Reynolds number, shear and bulk viscosity, reaction and diffusion.
pub const NAMES: [&str; 11] = ["nu", "beta", "m", "re", "eta", "zeta", "rho", "du", "dv", "k", "d"];
/// Those in file names; single letters but `M` would be found anywhere.
const IN_FILE_NAMES: [&str; 6] = ["nu", "beta", "m", "eta", "zeta", "rho"];

impl Parameter {
    /// A parameter; the name is put in lower case.
    pub fn new(name: &str, value: f64) -> Self {
        Self { name: name.to_ascii_lowercase(), value, further: Vec::new() }
    }

    /// The parameters among some names and values; those with names that are not known are left out,
    /// and of one name the first counts.
    pub fn of(values: &[(String, f64)]) -> Option<Self> {
        let find = |name: &&str| {
            let (_, value) = values.iter().find(|(other, _)| other.eq_ignore_ascii_case(name))?;
            Some((name.to_string(), *value))
        };
        let mut found = NAMES.iter().filter_map(find);
        let (name, value) = found.next()?;
        Some(Self { name, value, further: found.collect() })
    }

    /// The parameters in a file name in PDEBench's manner: `1D_Burgers_Sols_Nu0.001.hdf5`,
    /// `2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5`.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_ascii_lowercase();
        let value = |part: &str| {
            IN_FILE_NAMES.into_iter().find_map(|name| {
                let value: f64 = part.strip_prefix(name)?.parse().ok()?;
                value.is_finite().then(|| (name.to_string(), value))
            })
        };
        Self::of(&stem.split('_').filter_map(value).collect::<Vec<_>>())
    }

    /// All of them, the first first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        let further = self.further.iter().map(|(name, value)| (name.as_str(), *value));
        std::iter::once((self.name.as_str(), self.value)).chain(further)
    }

    /// Same names and same values to the bit: the same regime.
    pub fn is_same_regime(&self, other: &Self) -> bool {
        let bits = |parameter: &Self| -> Vec<(String, u64)> {
            parameter.iter().map(|(name, value)| (name.to_string(), value.to_bits())).collect()
        };
        bits(self) == bits(other)
    }
}

impl FromStr for Parameter {
    type Err = String;
    /// `nu=0.01`, or `nu=0.5,rho=1`.
    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=')?;
            let value: f64 = value.trim().parse().ok()?;
            (!name.trim().is_empty() && value.is_finite())
                .then(|| (name.trim().to_ascii_lowercase(), value))
        };
        let pairs: Option<Vec<_>> = text.split(',').map(pair).collect();
        let mut pairs = pairs.ok_or_else(|| format!("`{text}` is no name=value"))?;
        let (name, value) = pairs.remove(0);
        Ok(Self { name, value, further: pairs })
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)?;
        self.further.iter().try_for_each(|(name, value)| write!(f, ",{name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_tell_the_parameters() {
        let several = "2D_CFD_Rand_M0.1_Eta0.01_Zeta1e-08_periodic_128_Train.hdf5";
        let cases = [
            ("1D_Burgers_Sols_Nu0.001.hdf5", Some("nu=0.001")),
            ("1D_Advection_Sols_beta0.1.hdf5", Some("beta=0.1")),
            ("1D_Advection_Sols_beta4.0.hdf5", Some("beta=4")),
            ("2D_DarcyFlow_beta10.0_Train.hdf5", Some("beta=10")),
            ("ReacDiff_Nu0.5_Rho1.0.hdf5", Some("nu=0.5,rho=1")),
            (several, Some("m=0.1,eta=0.01,zeta=1e-8")),
            ("1D_Burgers_number.hdf5", None),
            ("numbers_nuNaN.hdf5", None),
            ("", None),
        ];
        for (name, expected) in cases {
            let expected = expected.map(|text| text.parse::<Parameter>().unwrap());
            assert_eq!(Parameter::from_file_name(name), expected, "{name}");
        }
    }

    #[test]
    fn regimes_are_all_parameters_together() {
        let [a, b, c] = ["nu=0.5,rho=1", "nu=0.5,rho=2", "nu=0.5"]
            .map(|text| text.parse::<Parameter>().unwrap());
        assert!(a.is_same_regime(&a.clone()) && !a.is_same_regime(&b) && !a.is_same_regime(&c));
        let text = serde_json::to_string(&c).unwrap();
        assert_eq!(text, r#"{"name":"nu","value":0.5}"#);
        assert_eq!(
            serde_json::from_str::<Parameter>(&serde_json::to_string(&a).unwrap()).unwrap(),
            a
        );
        assert!(["", "nu", "nu=x", "=1", "nu=inf"].iter().all(|t| t.parse::<Parameter>().is_err()));
    }
}
