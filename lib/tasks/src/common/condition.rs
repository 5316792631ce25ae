//! The condition of a model: the parameter of the equation and the time step, as features.

use data::fields::latents::LatentStore;
use data::fields::parameter::Parameter;
use learn::task::Buffers;
use learn::trained::Parts;
use std::collections::BTreeMap;
use tensor::Tensor;
use unix::{Error, Result};

/// Name of the buffer of a [`Condition`]; with several equations, the prefix of their buffer names.
const BUFFER: &str = "condition";

/// Converts the condition to features: the logarithm of the parameter, standardised over the training data of its
/// equation, and the logarithm of the time step in units of the frame interval. With several equations, which are
/// distinguished by [`Parameter::names`], a one-hot encoding of the sample's equation follows.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Scales for each equation, sorted by name.
    equations: Vec<EquationScale>,
}

/// The scales of the features for one equation.
#[derive(Clone, Debug)]
struct EquationScale {
    /// [`Parameter::names`]; None for a checkpoint with a single equation, which does not record them.
    names: Option<String>,
    mean: f64,
    std: f64,
    frame_interval: f64,
}

impl EquationScale {
    fn new(names: &str, parameters: &[f64], frame_interval: f64) -> Self {
        let n = parameters.len() as f64;
        let logs: Vec<f64> = parameters.iter().map(|value| log(*value)).collect();
        let mean = logs.iter().sum::<f64>() / n;
        let std = (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        let std = if std > 1e-12 { std } else { 1.0 };
        Self { names: Some(names.into()), mean, std, frame_interval }
    }
}

impl Condition {
    /// Fits the features to the parameters of the stores; each equation takes the frame interval of its first store.
    pub fn of(stores: &[&LatentStore]) -> Self {
        Self::new(stores.iter().map(|store| {
            let parameters = (0..store.len()).map(|i| store.parameter(i).value).collect();
            (store.equation().to_string(), parameters, store.frame_interval())
        }))
    }

    /// Fits the features to data sets, each given by [`Parameter::names`], the parameter values of all trajectories and
    /// the frame interval.
    pub fn new(sets: impl IntoIterator<Item = (String, Vec<f64>, f64)>) -> Self {
        let mut by_name: BTreeMap<String, (Vec<f64>, f64)> = BTreeMap::new();
        for (names, parameters, frame_interval) in sets {
            by_name.entry(names).or_insert((Vec::new(), frame_interval)).0.extend(parameters);
        }
        let fitted = |(names, (parameters, frame_interval)): (&String, &(Vec<f64>, f64))| {
            EquationScale::new(names, parameters, *frame_interval)
        };
        Self { equations: by_name.iter().map(fitted).collect() }
    }

    /// Removes the parameters from the condition: their feature is always 0.
    pub fn without_parameter(mut self) -> Self {
        self.equations.iter_mut().for_each(|equation| equation.std = f64::INFINITY);
        self
    }

    /// Names of the equations in the order of their features; empty if there is only one.
    pub fn equations(&self) -> Vec<&str> {
        match &self.equations[..] {
            [_] => Vec::new(),
            several => several.iter().filter_map(|e| e.names.as_deref()).collect(),
        }
    }

    /// Number of features.
    pub fn width(&self) -> usize {
        2 + self.equations().len()
    }

    /// Returns the equation with these [`Parameter::names`] and its index. A checkpoint of a single equation does not
    /// record the names and accepts any.
    ///
    /// Errors: 65 when the model was trained on several equations, but not on this one.
    fn equation(&self, names: &str) -> Result<(usize, &EquationScale)> {
        if let [only] = &self.equations[..] {
            return Ok((0, only));
        }
        let mut all = self.equations.iter().enumerate();
        all.find(|(_, equation)| equation.names.as_deref() == Some(names)).ok_or_else(|| {
            Error::data(format!(
                "an equation with the parameters {names}, but the model was trained on equations with {}",
                self.equations().join(" and ")
            ))
        })
    }

    /// Returns the features of a sample, given the [`Parameter::names`] of its equation, the value of its main
    /// parameter, and the time between states.
    ///
    /// Errors: 65 when the model was trained on several equations, but not on this one.
    pub fn features(&self, names: &str, value: f64, time: f64) -> Result<Vec<f32>> {
        let (number, equation) = self.equation(names)?;
        let value = (log(value) - equation.mean) / equation.std;
        let mut features = vec![value as f32, log(time / equation.frame_interval) as f32];
        features.resize(self.width(), 0.0);
        if let Some(own) = features.get_mut(2 + number) {
            *own = 1.0;
        }
        Ok(features)
    }

    /// Returns the features of samples with a common time between states, f32 [n, [`Condition::width`]].
    ///
    /// Errors: those of [`Condition::features`].
    pub fn features_of(&self, parameters: &[&Parameter], time: f64) -> Result<Tensor> {
        let mut features = Vec::with_capacity(parameters.len() * self.width());
        for parameter in parameters {
            features.extend(self.features(&parameter.names(), parameter.value, time)?);
        }
        Ok(Tensor::from_slice(&features, &[parameters.len(), self.width()]))
    }

    /// Returns the buffers for a checkpoint: `condition` for a single equation, else `condition.NAMES` for each.
    pub fn buffers(&self) -> Buffers {
        let buffer = |equation: &EquationScale| {
            let values = [equation.mean, equation.std, equation.frame_interval];
            let several = self.equations.len() > 1;
            let names = equation.names.as_ref().filter(|_| several);
            let name = names.map_or(BUFFER.into(), |names| format!("{BUFFER}.{names}"));
            (name, Tensor::from_slice(&values, &[3]))
        };
        self.equations.iter().map(buffer).collect()
    }

    /// Restores the buffers of [`Condition::buffers`]. Errors: 65 when they are missing or damaged.
    pub fn restore(parts: &Parts) -> Result<Self> {
        let names = parts.buffers.iter().filter_map(|(name, _)| name.strip_prefix(BUFFER));
        let mut names: Vec<&str> = names.filter_map(|rest| rest.strip_prefix('.')).collect();
        names.sort_unstable();
        let restore = |name: &str, names: Option<&str>| match parts.buffer(name)?[..] {
            [mean, std, frame_interval] => {
                Ok(EquationScale { names: names.map(Into::into), mean, std, frame_interval })
            }
            _ => Err(Error::data(format!(
                "the checkpoint's buffer `{name}` does not have three numbers"
            ))),
        };
        let equations = match names[..] {
            [] => vec![restore(BUFFER, None)?],
            _ => names
                .into_iter()
                .map(|names| restore(&format!("{BUFFER}.{names}"), Some(names)))
                .collect::<Result<_>>()?,
        };
        Ok(Self { equations })
    }

    /// Returns the frame interval of an equation's training data. Errors: those of [`Condition::features`].
    pub fn frame_interval(&self, parameter: &Parameter) -> Result<f64> {
        Ok(self.equation(&parameter.names())?.1.frame_interval)
    }
}

/// Returns the natural logarithm of |x|, with |x| clamped at 1e-12 so that the result is finite at zero.
fn log(x: f64) -> f64 {
    x.abs().max(1e-12).ln()
}
