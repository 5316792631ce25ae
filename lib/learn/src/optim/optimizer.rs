use crate::checkpoint::matches;
use crate::params::ParamSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Tensor;
use unix::{Error, Result};

/// Optimizer, learning rate and weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The update rule and its constants.
    pub method: Method,
    /// Base learning rate, which the schedule multiplies.
    pub learning_rate: f64,
    /// Weight decay of parameters with two or more axes. Parameters with fewer axes (biases, scales, norms) have none
    /// unless a group sets it.
    #[serde(default)]
    pub weight_decay: f64,
    /// Parameter groups with their own learning rate or weight decay. A parameter belongs to the first group that
    /// matches it.
    #[serde(default)]
    pub groups: Vec<ParamGroup>,
    /// Shard the optimizer state across ranks (ZeRO stage 1, Rajbhandari et al. 2020): each rank updates its part of
    /// the parameters and sends it to the others. Uses less memory and more communication; the result has the same
    /// bits.
    #[serde(default)]
    pub shard: bool,
}

/// A group of parameters with its own learning rate or weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParamGroup {
    /// Name patterns of the parameters: `*` matches any characters, `?` exactly one.
    pub params: Vec<String>,
    /// Factor that multiplies the learning rate.
    #[serde(default = "one")]
    pub learning_rate: f64,
    /// Weight decay. Null: the same as without a group.
    #[serde(default)]
    pub weight_decay: Option<f64>,
}

fn one() -> f64 {
    1.0
}

/// The update rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Method {
    /// AdamW: Adam with decoupled weight decay.
    AdamW {
        /// Decay rates of the running averages of the gradient and of its square, β₁ and β₂.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// Added to the denominator, ε.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// Muon (Jordan et al. 2024) for matrices, AdamW for all others.
    Muon {
        /// Decay rate of the running average of the gradient of matrices, μ.
        #[serde(default = "muon_momentum")]
        momentum: f64,
        /// Parameters with four or five axes are matrices as well, with all axes but the first as columns: the filters
        /// of convolutions.
        // Not serialised when false, so that configurations older than this key keep their hash.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[schemars(extend("default" = false))]
        filters: bool,
        /// β₁ and β₂ of AdamW.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// ε of AdamW.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// Stochastic gradient descent with momentum.
    Sgd {
        /// Momentum factor, in [0, 1).
        #[serde(default)]
        momentum: f64,
    },
}

fn muon_momentum() -> f64 {
    0.95
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn epsilon() -> f64 {
    1e-8
}

impl Optimizer {
    /// Violations in the values, by key.
    pub fn violations(&self) -> Vec<(String, String)> {
        let mut violations = Vec::new();
        let mut check = |key: &str, good: bool, text: &str| {
            if !good {
                violations.push((key.to_string(), text.to_string()));
            }
        };
        let (rate, decay) = (self.learning_rate, self.weight_decay);
        check("learning_rate", rate > 0.0 && rate.is_finite(), "must be a positive number");
        check("weight_decay", decay >= 0.0 && decay.is_finite(), "must not be negative");
        for (i, group) in self.groups.iter().enumerate() {
            let (rate, decay) = (group.learning_rate, group.weight_decay.unwrap_or(0.0));
            let mut check = |key: &str, value: f64| {
                check(
                    &format!("groups[{i}].{key}"),
                    value >= 0.0 && value.is_finite(),
                    "must not be negative",
                );
            };
            check("learning_rate", rate);
            check("weight_decay", decay);
        }
        if let Method::AdamW { betas, epsilon } | Method::Muon { betas, epsilon, .. } = &self.method
        {
            let good = betas.iter().all(|b| (0.0..1.0).contains(b));
            check("method.betas", good, "must lie in [0, 1)");
            check("method.epsilon", *epsilon > 0.0, "must be positive");
        }
        if let Method::Sgd { momentum } | Method::Muon { momentum, .. } = &self.method {
            check("method.momentum", (0.0..1.0).contains(momentum), "must lie in [0, 1)");
        }
        violations
    }

    /// Learning-rate factor and weight decay of a parameter.
    pub(super) fn of_param(&self, name: &str, value: &Tensor) -> (f64, f64) {
        let usual = if value.shape().len() >= 2 { self.weight_decay } else { 0.0 };
        let matches = |group: &&ParamGroup| group.params.iter().any(|p| matches(p, name));
        match self.groups.iter().find(matches) {
            Some(group) => (group.learning_rate, group.weight_decay.unwrap_or(usual)),
            None => (1.0, usual),
        }
    }

    /// Errors (78): a pattern of a group matches no parameter. It may match frozen ones only, so that the groups of a model
    /// also serve when LoRA adapts it.
    pub fn check_groups(&self, params: &ParamSet) -> Result<()> {
        let all = || params.trained.entries().iter().chain(params.frozen.entries());
        let is_unused = |pattern: &&String| !all().any(|(name, _)| matches(pattern, name));
        for (i, group) in self.groups.iter().enumerate() {
            if let Some(pattern) = group.params.iter().find(is_unused) {
                return Err(Error::config(format!(
                    "optimizer.groups[{i}].params: {pattern} matches no parameter; `ckpt show` lists the names \
                     of a checkpoint"
                )));
            }
        }
        Ok(())
    }

    /// Decay rates of the averages whose bias is corrected; 0 for rules without such averages.
    pub fn corrected(&self) -> [f64; 2] {
        match self.method {
            Method::AdamW { betas, .. } | Method::Muon { betas, .. } => betas,
            Method::Sgd { .. } => [0.0, 0.0],
        }
    }

    /// Names of the state tensors kept for a parameter.
    pub(super) fn moments(&self, value: &Tensor) -> &'static [&'static str] {
        match self.method {
            Method::Muon { filters, .. } => match value.shape().len() {
                2 => &["momentum"],
                4 | 5 if filters => &["momentum"],
                _ => &["m", "v"],
            },
            Method::AdamW { .. } => &["m", "v"],
            Method::Sgd { .. } => &["momentum"],
        }
    }
}
