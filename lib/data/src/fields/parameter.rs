//! The equation parameters that a file was generated with: its regime.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Name and value of a parameter, e.g. `nu=0.001`, plus any further parameters. Names are lower case.
///
/// Models are conditioned on the first parameter; all parameters together define the regime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// `nu` (Burgers, reaction-diffusion), `beta` (advection, Darcy), …
    pub name: String,
    /// Value of this parameter.
    pub value: f64,
    /// Further parameters as (name, value): those in [`NAMES`], in that order, then all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<(String, f64)>,
}

/// Parameter names in the attributes and configurations of PDEBench files, by precedence: viscosity, speed or
/// coefficient, Mach and Reynolds number, shear and bulk viscosity, reaction and diffusion, and the wave number of
/// Kelvin-Helmholtz shear layers.
pub const NAMES: [&str; 12] =
    ["nu", "beta", "m", "re", "eta", "zeta", "rho", "du", "dv", "k", "d", "dk"];
/// Parameter names recognised in file names; single letters other than `M` are too common in words.
const IN_FILE_NAMES: [&str; 10] = ["nu", "beta", "m", "re", "eta", "zeta", "rho", "du", "dv", "dk"];

impl Parameter {
    /// Creates a parameter; the name is converted to lower case.
    pub fn new(name: &str, value: f64) -> Self {
        Self { name: name.to_ascii_lowercase(), value, further: Vec::new() }
    }

    /// Selects the parameters whose names are in [`NAMES`]; `None` if there are none. The first value of a repeated
    /// name wins.
    pub fn of<S: AsRef<str>>(values: impl IntoIterator<Item = (S, f64)>) -> Option<Self> {
        Self::all_of(values.into_iter().filter(|(name, _)| is_known(name.as_ref())))
    }

    /// Takes all names and values as parameters: those in [`NAMES`], in that order, then all others. The first value of
    /// a repeated name wins.
    pub fn all_of<S: AsRef<str>>(values: impl IntoIterator<Item = (S, f64)>) -> Option<Self> {
        let mut all: Vec<(String, f64)> = Vec::new();
        for (name, value) in values {
            let name = name.as_ref().to_ascii_lowercase();
            if !all.iter().any(|(other, _)| *other == name) {
                all.push((name, value));
            }
        }
        let rank = |name: &str| NAMES.iter().position(|known| *known == name);
        all.sort_by_key(|(name, _)| rank(name).unwrap_or(NAMES.len()));
        let mut all = all.into_iter();
        let (name, value) = all.next()?;
        Some(Self { name, value, further: all.collect() })
    }

    /// Value of the parameter `name`, ignoring case.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns these parameters plus those of `other` whose names are new.
    pub fn with(&self, other: Option<&Self>) -> Self {
        let all = self.iter().chain(other.into_iter().flat_map(Self::iter));
        Self::all_of(all).unwrap_or_else(|| self.clone())
    }

    /// Parses the parameters in a PDEBench-style file name: `1D_Burgers_Sols_Nu0.001.hdf5`,
    /// `2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5`, `KH_M01_dk1_Re1e3.hdf5`.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let value = |known| Some((known, in_file_name(name, known)?));
        Self::of(IN_FILE_NAMES.into_iter().filter_map(value))
    }

    /// All parameters, the main one first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        let further = self.further.iter().map(|(name, value)| (name.as_str(), *value));
        std::iter::once((self.name.as_str(), self.value)).chain(further)
    }

    /// The names of all parameters, which distinguish equations: `nu` (Burgers), `nu,rho` (reaction-diffusion).
    pub fn names(&self) -> String {
        self.iter().map(|(name, _)| name).collect::<Vec<_>>().join(",")
    }

    /// Whether names and values are bitwise equal.
    pub fn is_same_regime(&self, other: &Self) -> bool {
        // Formatted numbers round-trip, so equal texts mean equal bits.
        self.to_string() == other.to_string()
    }
}

/// Whether a name, ignoring case, is one of [`NAMES`].
pub fn is_known(name: &str) -> bool {
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the value of the parameter `name` in a file name: 0.1 for `m` in `Turb_M01.hdf5`.
///
/// Digits after a leading 0 are decimals, as in PDEBench's names: `M01` is Mach 0.1, `M1` is Mach 1.
pub fn in_file_name(file: &str, name: &str) -> Option<f64> {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_ascii_lowercase();
    let value = |part: &str| {
        let text = part.strip_prefix(&name.to_ascii_lowercase())?;
        let decimals =
            text.strip_prefix('0').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let value: Option<f64> = match decimals {
            Some(decimals) => format!("0.{decimals}").parse().ok(),
            None => text.parse().ok(),
        };
        value.filter(|value| value.is_finite())
    };
    stem.split('_').find_map(value)
}

impl FromStr for Parameter {
    type Err = String;
    /// Parses `nu=0.01`, or `nu=0.5,rho=1`.
    fn from_str(text: &str) -> Result<Self, String> {
        fn pair(part: &str) -> Option<(&str, f64)> {
            let (name, value) = part.split_once('=')?;
            let value: f64 = value.trim().parse().ok()?;
            (!name.trim().is_empty() && value.is_finite()).then(|| (name.trim(), value))
        }
        let pairs: Option<Vec<_>> = text.split(',').map(pair).collect();
        let all = pairs.and_then(|pairs| Some((pairs.len(), Self::all_of(pairs)?)));
        let (count, all) = all.ok_or_else(|| format!("`{text}` is not name=value"))?;
        if all.iter().count() < count {
            return Err(format!("`{text}` gives a name two values"));
        }
        Ok(all)
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
    fn parameters_are_read_from_file_names() {
        let several = "2D_CFD_Rand_M0.1_Eta0.01_Zeta1e-08_periodic_128_Train.hdf5";
        let cases = [
            ("1D_Burgers_Sols_Nu0.001.hdf5", Some("nu=0.001")),
            ("1D_Advection_Sols_beta0.1.hdf5", Some("beta=0.1")),
            ("1D_Advection_Sols_beta4.0.hdf5", Some("beta=4")),
            ("2D_DarcyFlow_beta10.0_Train.hdf5", Some("beta=10")),
            ("ReacDiff_Nu0.5_Rho1.0.hdf5", Some("nu=0.5,rho=1")),
            (several, Some("m=0.1,eta=0.01,zeta=1e-8")),
            ("KH_M01_dk1_Re1e3.hdf5", Some("m=0.1,re=1000,dk=1")),
            ("KH_M1_dk10_Re5e3.hdf5", Some("m=1,re=5000,dk=10")),
            ("KH_M04_dk2_Re1e3.hdf5", Some("m=0.4,re=1000,dk=2")),
            ("Turb_M05.hdf5", Some("m=0.5")),
            ("Turb_M4.hdf5", Some("m=4")),
            (
                "2D_CFD_Turb_M1.0_Eta1e-08_Zeta1e-08_periodic_512_Train.hdf5",
                Some("m=1,eta=1e-8,zeta=1e-8"),
            ),
            ("a_Nu005_M0.hdf5", Some("nu=0.05,m=0")),
            ("2D_diff-react_Du0.001.hdf5", Some("du=0.001")),
            ("Rand_Reacdiff_Merged_duct.hdf5", None),
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
        let twice = "nu=1,x=2,Nu=1".parse::<Parameter>().unwrap_err();
        assert!(twice.contains("two values"), "{twice}");
        let ordered = "viscosity=3,rho=2,nu=1,a b=4".parse::<Parameter>().unwrap();
        assert_eq!(ordered.to_string(), "nu=1,rho=2,viscosity=3,a b=4");
        assert_eq!(ordered.to_string().parse::<Parameter>().unwrap(), ordered);
        assert_eq!(
            [a.names(), c.names(), ordered.names()],
            ["nu,rho", "nu", "nu,rho,viscosity,a b"]
        );
        let with = "nu=5".parse::<Parameter>().unwrap().with(Some(&ordered)).to_string();
        assert_eq!(with, "nu=5,rho=2,viscosity=3,a b=4");
        assert!(["", "nu", "nu=x", "=1", "nu=inf"].iter().all(|t| t.parse::<Parameter>().is_err()));
    }
}
