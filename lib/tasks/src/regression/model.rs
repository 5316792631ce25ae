//! The regression model: maps the input of a sample to its target.
//!
//! Patches of the input are the tokens of the backbone; each output token is the patch of the target at the same
//! position. There is no bottleneck: tokens are as wide as patches. A target without a grid is the mean of all output
//! tokens.

use super::task::{Preparation, patches};
use crate::common::models::PaddingMode;
use crate::common::models::backbone::{Backbone, BackboneConfig, BackboneShape};
use crate::common::models::number;
use crate::common::tokens::FieldTokens;
use data::records::refinement;
use learn::forward::Forward;
use learn::nn::{Condition, Linear};
use learn::params::{Builder, ParamSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::narrow::Narrow;
use tensor::ops::reduce::Reduce;
use tensor::{Tensor, Var};
use unix::{Error, Result};

/// Architecture of the regression model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegressionModel {
    /// Patch size in grid points along each axis. Each patch becomes one token.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = 65536))]
    pub patch: usize,
    /// The backbone that processes the tokens.
    pub backbone: BackboneConfig,
    /// Width of the conditioning vector, which encodes the parameter of the equation. Records have none.
    #[serde(default = "number::<32>")]
    #[schemars(range(min = 1, max = 65536))]
    pub condition_width: usize,
    /// Padding of the convolutions: circular for a periodic domain, else zeros.
    #[serde(default = "zero")]
    pub padding_mode: PaddingMode,
    /// Predict the change: the last channels of the input are added to the output. For targets that are a later frame of
    /// the input.
    // Not serialised when false, so that configurations older than this key keep their hash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub integrate: bool,
}

fn zero() -> PaddingMode {
    PaddingMode::Zeros
}

/// The layers of the regression model.
#[derive(Clone, Debug)]
pub struct Regression {
    /// Encodes the condition, if there is one.
    embed: Option<[Linear; 2]>,
    backbone: Backbone,
    /// Values per patch of the input and of the target.
    patch_len: [usize; 2],
    /// Whether the target is the mean of the output tokens.
    pooled: bool,
    /// Adds the last input channels to the output, if configured.
    integrate: Option<InputSkip>,
}

/// Adds the last channels of the input to the output, after converting them to the scale of the target with a factor
/// and an offset for each channel.
#[derive(Clone, Debug)]
struct InputSkip {
    /// Number of channels of the input and of the target.
    channels: [usize; 2],
    factor: Tensor,
    offset: Tensor,
}

impl Regression {
    /// Builds the model for inputs and targets with these patches, on the same token grid or with a target of a single
    /// point, and a condition of `features` values; 0 for no condition.
    pub fn new(
        b: &mut Builder,
        config: &RegressionModel,
        [input, output]: &[FieldTokens; 2],
        features: usize,
    ) -> Self {
        let width = config.condition_width;
        let (input_len, output_len) = (input.patches.patch_len(), output.patches.patch_len());
        let shape = BackboneShape {
            dim: input_len,
            output: output_len,
            grid: input.patches.tokens(),
            padding: config.padding_mode.into(),
            condition: if features > 0 { Condition::Adaptive(width) } else { Condition::Fixed },
        };
        let embed = (features > 0).then(|| {
            [
                Linear::new(b, "condition.0", features, width).then(Activation::Silu),
                Linear::new(b, "condition.1", width, width).then(Activation::Silu),
            ]
        });
        Self {
            embed,
            backbone: b.scope("backbone", |b| Backbone::new(b, &config.backbone, &shape)),
            patch_len: [input_len, output_len],
            pooled: input.patches.tokens() != output.patches.tokens(),
            integrate: config.integrate.then(|| InputSkip::new(input, output)),
        }
    }

    /// Maps x [B, tokens·patch] and features [B, F] to the target [B, tokens·patch], both patch by patch.
    pub fn forward(&self, forward: &Forward, x: &Var, features: Option<&Var>) -> Result<Var> {
        let (batch, tokens) = (x.shape()[0], x.shape()[1] / self.patch_len[0]);
        let condition = match (&self.embed, features) {
            (Some(embed), Some(features)) => {
                let condition = embed[0].forward(forward, &forward.to_compute_dtype(features)?)?;
                Some(embed[1].forward(forward, &condition)?)
            }
            _ => None,
        };
        let tokens_in = forward.to_compute_dtype(x)?.reshape(&[batch, tokens, self.patch_len[0]]);
        let mut u = self.backbone.forward(forward, &tokens_in, condition.as_ref())?;
        if self.pooled {
            u = forward.apply(Reduce::Mean(1), &[&u])?;
        }
        let length = u.value().len() / batch;
        let u = forward.to_param_dtype(&u)?.reshape(&[batch, length]);
        match &self.integrate {
            None => Ok(u),
            Some(integrate) => integrate.add_to(forward, &u, x),
        }
    }
}

/// Builds the model and its preparation for inputs on a different grid with the same number of axes, for the parameters
/// `params` of the model that `whole` prepares samples for.
///
/// Errors (78): the model cannot be built for the grid, or its parameters depend on it.
pub(super) fn on_grid(
    grid: &[usize],
    config: &RegressionModel,
    seed: u64,
    whole: &Preparation,
    params: &ParamSet,
) -> Result<(Regression, Preparation)> {
    let [mut input, mut target] = whole.sides();
    target.grid = match refinement(&whole.sides()).map_err(Error::bug)? {
        None => Vec::new(),
        Some(factor) => grid.iter().map(|n| n * factor).collect(),
    };
    input.grid = grid.to_vec();
    let [of_input, of_target] = patches(&[input, target], config.patch).map_err(Error::config)?;
    let [x, y] = whole.tokens.each_ref().map(|side| side.normalisation.clone());
    let tokens = [
        FieldTokens { patches: of_input, normalisation: x },
        FieldTokens { patches: of_target, normalisation: y },
    ];
    let preparation = Preparation { tokens, condition: whole.condition.clone() };
    let mut builder = Builder::new(seed);
    let features = preparation.features();
    let model = Regression::new(&mut builder, config, &preparation.tokens, features);
    builder.check()?;
    let own = builder.finish();
    let shapes = |params: &ParamSet| -> Vec<(String, Vec<usize>)> {
        let entries = params.trained.entries().iter();
        entries.map(|(name, value)| (name.clone(), value.shape().to_vec())).collect()
    };
    let (own, all) = (shapes(&own), shapes(params));
    match own.iter().zip(&all).find_map(|(a, b)| (a != b).then_some(a)) {
        None => Ok((model, preparation)),
        Some((name, _)) => Err(Error::config(format!(
            "the size of {name} depends on the grid; use a model without it"
        ))),
    }
}

impl InputSkip {
    fn new(input: &FieldTokens, output: &FieldTokens) -> Self {
        let channels = [input, output].map(|side| side.patches.channels());
        let (x, u) = (&input.normalisation, &output.normalisation);
        let of = |value: &dyn Fn(usize, usize) -> f64| {
            let values: Vec<f32> =
                (0..channels[1]).map(|c| value(channels[0] - channels[1] + c, c) as f32).collect();
            Tensor::from_slice(&values, &[channels[1]])
        };
        Self {
            channels,
            factor: of(&|i, c| x.std[i] / u.std[c]),
            offset: of(&|i, c| (x.mean[i] - u.mean[c]) / u.std[c]),
        }
    }

    /// Adds the last channels of x to u, both [B, values] and normalised.
    fn add_to(&self, forward: &Forward, u: &Var, x: &Var) -> Result<Var> {
        let [inputs, outputs] = self.channels;
        let points = u.value().len() / outputs;
        let x = x.reshape(&[points, inputs]);
        let last = Narrow { axis: 1, start: inputs - outputs, length: outputs };
        let last = forward.apply(last, &[&x])?;
        let [factor, offset] = [&self.factor, &self.offset].map(|tensor| forward.constant(tensor));
        let last = forward.apply(Binary::Multiply, &[&last, &factor?])?;
        let last = forward.apply(Binary::Add, &[&last, &offset?])?.reshape(u.shape());
        forward.apply(Binary::Add, &[u, &last])
    }
}
