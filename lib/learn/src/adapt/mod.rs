//! LoRA (Hu et al. 2021, section 4.1): fine-tunes linear layers whose weights stay frozen,
//!
//! y = x Wᵀ + b + s·(drop(x) Aᵀ) Bᵀ, with A [r, inputs] and B [outputs, r], and s = α/r, or α/√r with rank-stabilised
//! scaling (Kalajdzievski 2023, "A rank stabilization scaling factor for fine-tuning with LoRA").
//!
//! As in PEFT, A is initialised like a PyTorch linear layer and B is zero, so that training starts from the pretrained
//! model. [`Builder::adapted`](crate::params::Builder::adapted) adds A and B to the layers of a part of a model; `peft`
//! reads and writes PEFT's files.

mod merge;
pub mod peft;

pub use merge::merged;

use crate::config::Config;
use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::low_rank::LowRank;
use tensor::{Device, Var, trace};
use unix::Result;
use unix::config::{Violations, within};

/// Suffixes that follow the layer name in the names of A and B.
const ENDINGS: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// Low-rank adaptation of linear layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank of the update of a weight.
    #[serde(default = "rank")]
    pub r: usize,
    /// α: the update is scaled by α/r.
    #[serde(default = "alpha")]
    pub alpha: f64,
    /// Whether the update is scaled by α/√r instead, like PEFT's `use_rslora`.
    #[serde(default)]
    pub rslora: bool,
    /// Dropout of the inputs of A.
    #[serde(default)]
    pub dropout: f64,
    /// Layers to adapt, like PEFT's `target_modules`.
    pub targets: Targets,
    /// Whether the pooler of BERT, if it is no target, is trained completely, like the head. False: it is frozen, as PEFT
    /// does unless `modules_to_save` names it.
    #[serde(default = "yes")]
    pub pooler: bool,
}

fn yes() -> bool {
    true
}

fn rank() -> usize {
    8
}

fn alpha() -> f64 {
    16.0
}

/// Layers to adapt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Targets {
    /// Names of layers, or suffixes of names that begin after a dot.
    Names(Vec<String>),
    /// `all-linear`, every linear layer that can be adapted, or a regular expression for whole names.
    Pattern(String),
}

/// The pattern of all layers.
pub const ALL_LINEAR: &str = "all-linear";

impl Targets {
    /// All targets, each of which must name a layer.
    pub fn all(&self) -> &[String] {
        match self {
            Self::Names(names) => names,
            Self::Pattern(pattern) => std::slice::from_ref(pattern),
        }
    }

    /// Returns the regular expression. Errors: what is wrong with it.
    fn expression(pattern: &str) -> Result<Regex, String> {
        Regex::new(&format!("^(?:{pattern})$")).map_err(|cause| {
            let cause = cause.to_string();
            let last = cause.lines().last().unwrap_or_default();
            format!("{pattern} is not a regular expression: {last}")
        })
    }
}

impl From<Vec<String>> for Targets {
    fn from(names: Vec<String>) -> Self {
        Self::Names(names)
    }
}

impl Lora {
    /// The factor α/r, or α/√r.
    pub fn scale(&self) -> f64 {
        let rank = self.r as f64;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// Returns the targets that match the layer `name`.
    pub fn targets_of(&self, name: &str) -> Vec<String> {
        let names = |target: &&String| {
            let rest = name.strip_suffix(target.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let matches = |pattern: &str| {
            pattern == ALL_LINEAR
                || Targets::expression(pattern).is_ok_and(|expression| expression.is_match(name))
        };
        match &self.targets {
            Targets::Names(targets) => targets.iter().filter(names).cloned().collect(),
            Targets::Pattern(pattern) if matches(pattern) => vec![pattern.clone()],
            Targets::Pattern(_) => Vec::new(),
        }
    }

    /// Lists violations in section `model.lora` of `config` that the schema does not express.
    pub fn violations<D, M, L>(lora: Option<&Self>, config: &Config<D, M, L>) -> Violations {
        let Some(lora) = lora else { return Violations::new() };
        let mut violations = Violations::new();
        let mut check = |good: bool, key: &str, text: &str| {
            if !good {
                violations.push((key.into(), text.into()));
            }
        };
        check(lora.r > 0, "r", "must be at least 1");
        check(lora.alpha > 0.0 && lora.alpha.is_finite(), "alpha", "must be a positive number");
        let drops = (0.0..1.0).contains(&lora.dropout);
        check(drops, "dropout", "must be at least 0 and less than 1");
        check(!lora.targets.all().is_empty(), "targets", "must name a layer");
        if let Targets::Pattern(pattern) = &lora.targets
            && let Err(text) = Targets::expression(pattern)
        {
            check(false, "targets", &text);
        }
        let text = "the weights of these layers are frozen, and a checkpoint holds only their hash: set init.from to \
                    pretrained weights, or checkpoint.frozen to true";
        check(config.keeps_frozen(), "targets", text);
        within("model.lora", violations).collect()
    }
}

/// Whether a parameter with this name is A or B of a layer.
pub(crate) fn is_adapter(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Rows of x from which on the update may be merged into the weight: fewer do not need all of the weight at once.
const MERGED_ROWS: usize = 512;

/// The LoRA parameters A and B of a layer.
#[derive(Clone, Debug)]
pub struct Adapter {
    a: ParamId,
    b: ParamId,
    scale: f64,
    dropout: f64,
}

impl Adapter {
    /// Registers A and B for the layer in the current scope of `b`.
    pub(crate) fn new(b: &mut Builder, lora: &Lora, inputs: usize, outputs: usize) -> Self {
        let (scale, dropout) = (lora.scale(), lora.dropout);
        Self {
            a: b.scope("lora_A", |b| b.param("weight", &[lora.r, inputs], Init::linear(inputs))),
            b: b.scope("lora_B", |b| b.param("weight", &[outputs, lora.r], Init::Constant(0.0))),
            scale,
            dropout,
        }
    }

    /// Adds the LoRA update: maps the layer's input x [.., inputs] and output y [.., outputs] to y + s·(drop(x) Aᵀ) Bᵀ;
    /// y holds it already if it `is_merged`.
    pub(crate) fn add(&self, forward: &Forward, x: &Var, y: Var, is_merged: bool) -> Result<Var> {
        let x = if is_merged { x.detached() } else { forward.dropout(x, self.dropout)? };
        let [a, b] = [self.a, self.b].map(|id| forward.get(id));
        forward.apply_onto(LowRank { scale: self.scale, merged: is_merged }, y, &[&x, a, b])
    }

    /// Returns s, A and B if an update of the weight costs less than one of the output: in training on a CPU, without
    /// dropout, for x [.., inputs] of many rows. A plan of memory, which is made for any device, has the other form.
    pub(crate) fn merged(&self, forward: &Forward, x: &Var) -> Option<(f64, [Var; 2])> {
        let factors = [self.a, self.b].map(|id| forward.get(id).detached());
        let [inputs, outputs] = [factors[0].shape()[1], factors[1].shape()[0]];
        let rows = x.value().rows();
        let pays = rows >= MERGED_ROWS && rows * (inputs + outputs) >= 2 * inputs * outputs;
        let is_merged = forward.is_training()
            && forward.device() == Device::Cpu
            && !trace::is_on()
            && self.dropout == 0.0
            && pays;
        is_merged.then_some((self.scale, factors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_whole_parts_of_names() {
        let targets = vec!["query".to_string(), "output.dense".into()].into();
        let lora = Lora { r: 4, alpha: 8.0, rslora: false, dropout: 0.0, targets, pooler: true };
        assert_eq!(lora.scale(), 2.0);
        assert_eq!(Lora { rslora: true, ..lora.clone() }.scale(), 4.0);
        for (name, target) in [
            ("encoder.layer.0.attention.self.query", Some("query")),
            ("query", Some("query")),
            ("subquery", None),
            ("layer.1.output.dense", Some("output.dense")),
            ("layer.1.output.dense.extra", None),
            ("pooler.dense", None),
        ] {
            let expected: Vec<&str> = target.into_iter().collect();
            assert_eq!(lora.targets_of(name), expected, "{name}");
        }
    }

    #[test]
    fn expressions_match_whole_names() {
        let of = |pattern: &str| {
            let targets = Targets::Pattern(pattern.into());
            Lora { r: 4, alpha: 8.0, rslora: false, dropout: 0.0, targets, pooler: true }
        };
        let layers = r".*layer\.[02]\..*(query|value)";
        for (name, is_target) in [
            ("encoder.layer.0.attention.self.query", true),
            ("encoder.layer.2.attention.self.value", true),
            ("encoder.layer.1.attention.self.query", false),
            ("encoder.layer.0.attention.self.query.more", false),
        ] {
            assert_eq!(!of(layers).targets_of(name).is_empty(), is_target, "{name}");
            assert_eq!(of(ALL_LINEAR).targets_of(name), [ALL_LINEAR]);
        }
        // An alternative is part of the whole.
        assert!(of("key|query").targets_of("querying").is_empty());
        assert!(Targets::expression("layer.(").unwrap_err().contains("layer.( is not"));
    }
}
