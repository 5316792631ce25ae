//! The regimes of a file: its trajectories need not all have the same parameters.
//!
//! Each group may tell its own, and a list like `nu` [n] beside the field has one for each trajectory.

use super::source::{self, Source};
use super::{Field, Place};
use crate::parameter::{NAMES, Parameter};
use std::collections::HashMap;
use unix::{Error, Result};

/// Values of one parameter, by name, one for each trajectory.
pub(super) type List = (String, Vec<f64>);

/// Trajectories with the same parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Regime {
    /// The parameters, where the file says.
    pub parameter: Option<Parameter>,
    /// Numbers of the trajectories, ascending.
    pub samples: Vec<usize>,
}

/// The lists of parameters of a file of `trajectories`. Errors (65): one cannot be read.
pub(super) fn lists(file: &dyn Source, trajectories: usize) -> Result<Vec<List>> {
    let is_list = |name: &String| {
        let one_each = |dims: Vec<usize>| {
            dims.first() == Some(&trajectories) && dims[1..].iter().all(|n| *n == 1)
        };
        trajectories > 1
            && NAMES.contains(&name.to_ascii_lowercase().as_str())
            && file.shape(name).is_some_and(one_each)
    };
    let names = file.names().into_iter().filter(is_list);
    names.map(|name| Ok((name.to_ascii_lowercase(), source::numbers(file, &name)?))).collect()
}

/// The parameters of one trajectory: what lists say of it, and what is said of all.
pub(super) fn with_lists(
    lists: &[List],
    sample: usize,
    of_all: Option<Parameter>,
) -> Option<Parameter> {
    let listed = lists.iter().filter_map(|(name, all)| Some((name.clone(), *all.get(sample)?)));
    let of_all = of_all.iter().flat_map(Parameter::iter).map(|(name, v)| (name.to_string(), v));
    Parameter::of(&listed.chain(of_all.collect::<Vec<_>>()).collect::<Vec<_>>())
}

impl Field {
    /// The group of each trajectory, where it has one.
    fn groups(&self) -> &[String] {
        match self.components.last().map(|component| &component.place) {
            Some(Place::Each { names, .. }) => names,
            _ => &[],
        }
    }

    /// The regimes of the file, in the order of their first trajectories; looks into every group.
    /// Errors: as [`Field::open`].
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
            let file = source::open(&self.path, true)?;
            let of_root = source::parameter_at(&*file, &[None]);
            let of_group = |data: &String| {
                let group = data.rsplit_once('/').map(|(group, _)| group);
                let own = || source::parameter_at(&*file, &[group, Some(data)]);
                of_root.clone().or_else(own).or_else(|| source::parameter_of_name(&*file))
            };
            let of_group = groups.iter().map(of_group).enumerate();
            let all =
                of_group.map(|(i, parameter)| with_lists(&self.lists, i, parameter)).collect();
            file.check()?;
            all
        };
        let mut regimes: Vec<Regime> = Vec::new();
        // Numbers in words are as different as their bits.
        let mut known: HashMap<Option<String>, usize> = HashMap::new();
        for (sample, parameter) in parameters.into_iter().enumerate() {
            let words = parameter.as_ref().map(Parameter::to_string);
            let at = *known.entry(words).or_insert_with(|| {
                regimes.push(Regime { parameter, samples: Vec::new() });
                regimes.len() - 1
            });
            regimes[at].samples.push(sample);
        }
        if regimes.is_empty() {
            regimes.push(Regime { parameter: self.parameter.clone(), samples: Vec::new() });
        }
        Ok(regimes)
    }

    /// The one regime of the file. Errors (65): there are several, or nothing tells the parameter.
    pub fn only_regime(&self) -> Result<Parameter> {
        let regimes = self.regimes()?;
        let fault = match regimes.as_slice() {
            [Regime { parameter: Some(parameter), .. }] => return Ok(parameter.clone()),
            [_] => {
                "no parameter: give the file a root attribute `Nu` or `beta`, PDEBench's name, or \
                    `ds-prep import --parameter`"
                    .to_string()
            }
            several => format!(
                "its trajectories have different parameters ({}); `ds-prep import` makes a file of each",
                describe(several)
            ),
        };
        Err(Error::data(format!("{}: {fault}", self.path.display())))
    }
}

/// The first regimes in words: `nu=0.1: 3 trajectories, nu=0.2: 1 trajectory, …`.
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
