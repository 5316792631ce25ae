//! Error measures, accumulated in f64.

use crate::stages::Metrics;
use data::parameter::Parameter;
use serde::{Deserialize, Serialize};

/// Sums of squared errors and squared targets.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sums {
    /// Σ (p - t)².
    #[serde(with = "bits")]
    pub error: f64,
    /// Σ t².
    #[serde(with = "bits")]
    pub target: f64,
    /// Number of elements.
    pub count: u64,
}

impl Sums {
    /// Adds a prediction and its target.
    pub fn add(&mut self, prediction: &[f32], target: &[f32]) {
        for (p, t) in prediction.iter().zip(target) {
            let (p, t) = (f64::from(*p), f64::from(*t));
            self.error += (p - t) * (p - t);
            self.target += t * t;
        }
        self.count += target.len() as u64;
    }

    /// Adds the sums of other elements.
    fn merge(&mut self, other: &Self) {
        self.error += other.error;
        self.target += other.target;
        self.count += other.count;
    }

    /// √(Σ (p - t)²/Σ t²): root mean square of the error over that of the target.
    pub fn nrmse(&self) -> f64 {
        (self.error / self.target).sqrt()
    }
}

/// Numbers by their bits: JSON knows no infinity.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// Errors by the parameter of the equation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Regimes {
    sums: Vec<(Parameter, Sums)>,
}

impl Regimes {
    /// Adds a prediction and its target to the regime of `parameter`.
    pub fn add(&mut self, parameter: &Parameter, prediction: &[f32], target: &[f32]) {
        self.of(parameter).add(prediction, target);
    }

    /// Adds the sums of other samples.
    pub fn merge(&mut self, other: &Self) {
        for (parameter, sums) in &other.sums {
            self.of(parameter).merge(sums);
        }
    }

    fn of(&mut self, parameter: &Parameter) -> &mut Sums {
        let at = match self.sums.iter().position(|(p, _)| p.is_same_regime(parameter)) {
            Some(at) => at,
            None => {
                self.sums.push((parameter.clone(), Sums::default()));
                self.sums.len() - 1
            }
        };
        &mut self.sums[at].1
    }

    /// The error of each regime as `NAME[nu=0.01]` and their mean as `NAME`.
    pub fn metrics(&self, name: &str) -> Metrics {
        let mut metrics = Metrics::new();
        let mut sum = 0.0;
        for (parameter, sums) in &self.sums {
            sum += sums.nrmse();
            metrics.insert(format!("{name}[{}={}]", parameter.name, parameter.value), sums.nrmse());
        }
        metrics.insert(name.to_string(), sum / self.sums.len().max(1) as f64);
        metrics
    }
}
