//! A configuration with every supported form of types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Updates in all.
    #[schemars(range(min = 1))]
    pub steps: u64,
    #[serde(default)]
    pub name: String,
    /// The model.
    pub model: Model,
    pub data: Data,
    #[serde(default)]
    pub optimizer: Optimizer,
    #[serde(default)]
    pub schedule: Vec<Phase>,
    #[serde(default)]
    pub clip: Option<f64>,
    #[serde(default)]
    pub tracker: Option<Tracker>,
    #[serde(default)]
    pub weights: BTreeMap<String, f64>,
    #[serde(default)]
    pub amount: Option<Amount>,
    #[serde(default)]
    pub notes: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Model {
    PdetStack {
        /// Width of the tokens.
        hidden: usize,
        #[serde(default)]
        activation: Activation,
    },
    Unet(Unet),
    Plain,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unet {
    pub widths: Vec<u32>,
    #[serde(default)]
    pub causal: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Gaussian error linear unit.
    #[default]
    Gelu,
    Relu,
    Silu,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub files: Vec<PathBuf>,
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub fraction: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    pub learning_rate: f64,
    pub betas: [f64; 2],
    pub threads: u8,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { learning_rate: 1e-3, betas: [0.9, 0.999], threads: 1 }
    }
}

/// `kind` is a plain key here, not a tag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    pub kind: Form,
    pub updates: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    Linear,
    Cosine,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tracker {
    pub url: String,
    pub token: String,
    #[serde(default)]
    pub pin: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Amount {
    Count(u64),
    Share { share: f64 },
}

impl Run {
    /// Violations beyond those of the schema.
    pub fn violations(&self) -> Vec<(String, String)> {
        let planned: u64 = self.schedule.iter().filter_map(|phase| phase.updates).sum();
        let mut violations = Vec::new();
        if planned > self.steps {
            violations
                .push(("schedule".into(), format!("{planned} updates in {} steps", self.steps)));
        }
        if self.name.contains(' ') {
            violations.push(("name".into(), format!("a blank in {:?}", self.name)));
        }
        violations
    }
}
