//! The regimes of a file: its trajectories may have different parameters.
//!
//! Each group may state its own parameters, and a list like `nu` [n] next to the field has one value per trajectory.

use super::formats;
use super::source::{self, Source};
use super::{Field, FieldArrays};
use crate::fields::parameter::{Parameter, is_known};
use std::collections::HashMap;
use unix::{Error, Result};

/// Name and values of a parameter, one per trajectory.
pub(super) type List = (String, Vec<f64>);

/// Trajectories with the same parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Regime {
    /// The parameters, if the file states any.
    pub parameter: Option<Parameter>,
    /// Indices of the trajectories, ascending.
    pub samples: Vec<usize>,
}

/// Reads the parameter lists in a file with `trajectories` trajectories; `fields` names the arrays that hold its field.
/// An array with one value applies to all trajectories.
///
/// Errors: 65 if a list cannot be read or has the wrong number of values.
pub(super) fn lists(
    file: &dyn Source,
    trajectories: usize,
    fields: &[String],
) -> Result<Vec<List>> {
    let mut lists = Vec::new();
    for name in file.names() {
        if !is_known(&name) || fields.contains(&name) {
            continue;
        }
        let Some(dims) = file.shape(&name) else { continue };
        let one_each =
            dims.first() == Some(&trajectories) && dims[1..].iter().all(|count| *count == 1);
        let one = dims.iter().all(|count| *count == 1);
        if !one && !one_each {
            // An array with more dimensions is a coefficient field that is not read.
            if dims.len() > 2 {
                continue;
            }
            return Err(file.invalid(format!(
                "`{name}` has shape {dims:?}; a parameter is one number, or one for each of the \
                     {trajectories} trajectories"
            )));
        }
        let mut values = source::numbers(file, &name)?;
        if one {
            values.resize(trajectories, values.first().copied().unwrap_or(f64::NAN));
        }
        lists.push((name.to_ascii_lowercase(), values));
    }
    Ok(lists)
}

/// Combines the parameters of one trajectory from `lists` with `of_all`, which apply to all trajectories.
pub(super) fn with_lists(
    lists: &[List],
    sample: usize,
    of_all: Option<Parameter>,
) -> Option<Parameter> {
    let listed = lists.iter().filter_map(|(name, all)| Some((name.as_str(), *all.get(sample)?)));
    Parameter::all_of(listed.chain(of_all.iter().flat_map(Parameter::iter)))
}

impl Field {
    /// Full name of each trajectory's array, with its group; empty if there are no groups.
    pub(super) fn groups(&self) -> &[String] {
        match self.components.last().map(|component| &component.place) {
            Some(FieldArrays::Each { names, .. }) => names,
            _ => &[],
        }
    }

    /// Returns the regimes of the file, in the order of their first trajectories; reads every group. Errors: see
    /// [`Field::open`].
    pub fn regimes(&self) -> Result<Vec<Regime>> {
        let groups = self.groups();
        let all = 0..self.trajectories();
        if groups.is_empty() && self.lists.is_empty() {
            let parameter = self.parameter.clone();
            return Ok(vec![Regime { parameter, samples: all.collect() }]);
        }
        let parameters: Vec<Option<Parameter>> = if groups.is_empty() {
            let of_all = self.parameter.clone();
            all.map(|i| with_lists(&self.lists, i, of_all.clone())).collect()
        } else {
            let file = formats::open(&self.path, true)?;
            let of_root = source::parameter_at(&*file, &[None])?;
            let of_group = |(i, data): (usize, &String)| {
                let group = data.rsplit_once('/').map(|(group, _)| group);
                let own = match &of_root {
                    Some(of_root) => Some(of_root.clone()),
                    None => source::parameter_at(&*file, &[group, Some(data)])?,
                };
                let own = own.or_else(|| source::parameter_of_name(&*file));
                Ok(with_lists(&self.lists, i, own))
            };
            let all = groups.iter().enumerate().map(of_group).collect::<Result<_>>()?;
            file.check()?;
            all
        };
        let mut regimes = grouped(parameters.into_iter().enumerate());
        if regimes.is_empty() {
            regimes.push(Regime { parameter: self.parameter.clone(), samples: Vec::new() });
        }
        Ok(regimes)
    }

    /// Returns the only regime of the file. Errors: 65 if there are several, or the parameter is unknown.
    pub fn only_regime(&self) -> Result<Parameter> {
        let regimes = self.regimes()?;
        let problem = match regimes.as_slice() {
            [Regime { parameter: Some(parameter), .. }] => return Ok(parameter.clone()),
            [_] => {
                "no parameter: give the file a root attribute `Nu` or `beta`, PDEBench's name, or \
                    `ds-prep import --parameter`"
                    .to_string()
            }
            several => format!(
                "its trajectories have different parameters ({}); `ds-prep import` writes a file for each",
                describe(several)
            ),
        };
        Err(Error::data(format!("{}: {problem}", self.path.display())))
    }
}

/// Groups trajectories (or files) by their parameters into regimes, in the order of their first trajectories.
pub(crate) fn grouped(
    trajectories: impl Iterator<Item = (usize, Option<Parameter>)>,
) -> Vec<Regime> {
    let mut regimes: Vec<Regime> = Vec::new();
    // Formatted numbers round-trip, so equal texts mean equal bits.
    let mut known: HashMap<Option<String>, usize> = HashMap::new();
    for (sample, parameter) in trajectories {
        let words = parameter.as_ref().map(Parameter::to_string);
        let at = *known.entry(words).or_insert_with(|| {
            regimes.push(Regime { parameter, samples: Vec::new() });
            regimes.len() - 1
        });
        regimes[at].samples.push(sample);
    }
    regimes
}

/// Formats the first three regimes: `nu=0.1: 3 trajectories; nu=0.2: 1 trajectory; …`.
pub fn describe(regimes: &[Regime]) -> String {
    let one = |Regime { parameter, samples }: &Regime| {
        let parameter = parameter.as_ref().map_or("none".into(), Parameter::to_string);
        let plural = if samples.len() == 1 { "y" } else { "ies" };
        format!("{parameter}: {} trajector{plural}", samples.len())
    };
    let mut told: Vec<String> = regimes.iter().take(3).map(one).collect();
    if regimes.len() > 3 {
        told.push(format!("and {} more", regimes.len() - 3));
    }
    told.join("; ")
}
