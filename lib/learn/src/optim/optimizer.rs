use crate::params::ParamSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::updates::{adafactor::Adafactor, adamw8bit};
use tensor::{Dtype, Tensor};
use unix::text::matches;
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
    /// Layer-wise decay of the learning rate: that of a layer is multiplied by this factor once for every layer above
    /// it and once for the head. Null: all layers have the same.
    // Not serialised when null, so that configurations older than this key keep their hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_decay: Option<f64>,
    /// Shard the optimizer state across ranks (ZeRO stage 1, Rajbhandari et al. 2020): each rank updates its part of
    /// the parameters and sends it to the others. Uses less memory. Over the host, it needs more communication and
    /// the result has the same bits; with NCCL, each gradient is summed for its rank only, and the norm of all
    /// gradients in another order.
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
    /// AdamW with averages in 8 bits (Dettmers et al. 2022): a quarter of the memory for them. Parameters with fewer than 4096
    /// elements have averages in f32.
    AdamW8bit {
        /// β₁ and β₂, as for AdamW.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// ε, as for AdamW.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// Muon (Jordan et al. 2024) for matrices, AdamW for all others.
    Muon {
        /// Decay rate of the running average of the gradient of matrices, μ.
        #[serde(default = "muon_momentum")]
        momentum: f64,
        /// Also apply Muon to parameters with four or five axes (convolution filters), flattened to matrices with all
        /// axes but the first as columns.
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
    /// Adam, with the weight decay added to the gradient (L2).
    Adam {
        /// β₁ and β₂, as for AdamW.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// ε, as for AdamW.
        #[serde(default = "epsilon")]
        epsilon: f64,
    },
    /// Lion (Chen et al. 2023): steps of equal size by the sign of an average of the gradient, so its learning rate is
    /// smaller than that of AdamW and its weight decay larger, by a factor of 3 to 10.
    Lion {
        /// Decay rates of the average, β₁ in the step and β₂ in what is kept.
        #[serde(default = "lion_betas")]
        betas: [f64; 2],
    },
    /// LAMB (You et al. 2020): AdamW with steps in proportion to the norm of each parameter, for large batches.
    Lamb {
        /// β₁ and β₂, as for AdamW.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// ε, as for AdamW.
        #[serde(default = "lamb_epsilon")]
        epsilon: f64,
    },
    /// Adafactor (Shazeer & Stern 2018) with the given learning rate, without relative steps or parameter scaling:
    /// its state consists of averages over the rows and columns of each matrix.
    Adafactor {
        /// Exponent a of the decay of the averages, 1 - tᵃ at step t.
        #[serde(default = "beta2_decay")]
        beta2_decay: f64,
        /// Largest root mean square of the direction of a parameter.
        #[serde(default = "one")]
        clip_threshold: f64,
        /// Added to the squares of gradients.
        #[serde(default = "adafactor_epsilon")]
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

fn lion_betas() -> [f64; 2] {
    [0.9, 0.99]
}

fn lamb_epsilon() -> f64 {
    1e-6
}

fn beta2_decay() -> f64 {
    -0.8
}

fn adafactor_epsilon() -> f64 {
    1e-30
}

impl Optimizer {
    /// Lists violations in the values by key.
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
        let good = self.layer_decay.is_none_or(|decay| decay > 0.0 && decay <= 1.0);
        check("layer_decay", good, "must be greater than 0 and at most 1, or null");
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
        let Constants { betas, epsilon, momentum } = self.method.constants();
        let in_range = |x: &f64| (0.0..1.0).contains(x);
        check("method.betas", betas.iter().all(in_range), "must lie in [0, 1)");
        check("method.epsilon", epsilon > 0.0 && epsilon.is_finite(), "must be positive");
        check("method.momentum", in_range(&momentum), "must lie in [0, 1)");
        if let Method::Adafactor { beta2_decay: decay, clip_threshold: limit, .. } = self.method {
            check("method.beta2_decay", decay < 0.0 && decay.is_finite(), "must be negative");
            check("method.clip_threshold", limit > 0.0 && limit.is_finite(), "must be positive");
        }
        violations
    }

    /// Returns the learning-rate factor and the weight decay of a parameter `depth` layers below the head.
    pub(super) fn of_param(&self, name: &str, value: &Tensor, depth: u32) -> (f64, f64) {
        let by_depth = self.layer_decay.map_or(1.0, |decay| decay.powi(depth as i32));
        let usual = if value.shape().len() >= 2 { self.weight_decay } else { 0.0 };
        let matches = |group: &&ParamGroup| group.params.iter().any(|p| matches(p, name));
        match self.groups.iter().find(matches) {
            Some(group) => (by_depth * group.learning_rate, group.weight_decay.unwrap_or(usual)),
            None => (by_depth, usual),
        }
    }

    /// Checks that each group pattern matches a parameter and that a `layer_decay` has layers of different depth to act
    /// on. A pattern may match frozen parameters only, so that the groups of a model also work when LoRA adapts it.
    /// Errors: 78.
    pub fn check_groups(&self, params: &ParamSet) -> Result<()> {
        if self.layer_decay.is_some() && params.trained.depths().iter().all(|depth| *depth == 0) {
            return Err(Error::config(
                "optimizer.layer_decay: the trained layers of this model have no order; use optimizer.groups",
            ));
        }
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

    /// Decay rates of the averages with bias correction; 0 for rules without such averages.
    pub fn corrected(&self) -> [f64; 2] {
        match self.method {
            Method::AdamW { betas, .. }
            | Method::AdamW8bit { betas, .. }
            | Method::Adam { betas, .. }
            | Method::Lamb { betas, .. }
            | Method::Muon { betas, .. } => betas,
            Method::Adafactor { .. } | Method::Lion { .. } | Method::Sgd { .. } => [0.0, 0.0],
        }
    }

    /// Size of the state of a parameter in bytes.
    pub fn state_bytes(&self, value: &Tensor) -> usize {
        let bytes = |moment: &Moment| moment.shape.iter().product::<usize>() * moment.dtype.bytes();
        self.moments(value).iter().map(bytes).sum()
    }

    /// The state tensors stored for a parameter.
    pub(super) fn moments(&self, value: &Tensor) -> Vec<Moment> {
        let shape = value.shape();
        let f32 = |name, shape| Moment { name, shape, dtype: Dtype::F32 };
        let names: &[_] = match self.method {
            Method::Muon { filters, .. } => match shape.len() {
                2 => &["momentum"],
                4 | 5 if filters => &["momentum"],
                _ => &["m", "v"],
            },
            Method::AdamW { .. } | Method::Adam { .. } | Method::Lamb { .. } => &["m", "v"],
            Method::AdamW8bit { .. } if value.len() < adamw8bit::MIN_ELEMENTS => &["m", "v"],
            Method::AdamW8bit { .. } => {
                let codes = |name| Moment { name, shape: shape.to_vec(), dtype: Dtype::U8 };
                let largest = |name| f32(name, vec![adamw8bit::count(value.len())]);
                return vec![codes("m"), codes("v"), largest("m_absmax"), largest("v_absmax")];
            }
            Method::Lion { .. } => &["m"],
            Method::Sgd { .. } => &["momentum"],
            Method::Adafactor { .. } => {
                let shapes = Adafactor::state_shapes(shape);
                let names: &[_] = if shapes.len() == 2 { &["rows", "columns"] } else { &["v"] };
                return names.iter().zip(shapes).map(|(name, shape)| f32(name, shape)).collect();
            }
        };
        names.iter().map(|name| f32(name, shape.to_vec())).collect()
    }
}

/// One state tensor of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    /// Follows the name of the parameter and a point in a checkpoint.
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub dtype: Dtype,
}

/// Constants that several rules share, for checks; a valid value where a rule has no such constant.
struct Constants {
    betas: [f64; 2],
    epsilon: f64,
    momentum: f64,
}

impl Method {
    fn constants(&self) -> Constants {
        let none = Constants { betas: [0.0; 2], epsilon: 1.0, momentum: 0.0 };
        match *self {
            Self::AdamW { betas, epsilon }
            | Self::AdamW8bit { betas, epsilon }
            | Self::Adam { betas, epsilon }
            | Self::Lamb { betas, epsilon } => Constants { betas, epsilon, ..none },
            Self::Muon { betas, epsilon, momentum, .. } => Constants { betas, epsilon, momentum },
            Self::Lion { betas } => Constants { betas, ..none },
            Self::Adafactor { epsilon, .. } => Constants { epsilon, ..none },
            Self::Sgd { momentum } => Constants { momentum, ..none },
        }
    }
}
