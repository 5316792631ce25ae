//! A stack of blocks, applied once or, with shared weights, several times. Applied several times, it is the steady
//! prior of the original: a residual network that refines its state iteratively and is conditioned on its progress.

use super::backbone::{Attention, BackboneShape, Input};
use super::number;
use learn::forward::Forward;
use learn::nn::{Block, BlockConfig, Condition, Linear, Norm};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::binary::Binary;
use unix::Result;

/// A stack of blocks of equal width on all tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PdetStack {
    /// Width: features per token inside the model.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// Number of blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub depth: usize,
    /// How often the blocks are applied in sequence, with the same weights. If more than once, they are told the
    /// fraction of the iterations done, from 0 to 1.
    #[serde(default = "number::<1>", skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 1024), extend("default" = 1))]
    pub iterations: usize,
    /// Global mixing of tokens in the blocks.
    #[serde(default)]
    pub attention: Attention,
    /// Use attention in every n-th block only, counted from the last one.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1))]
    pub attention_every: usize,
    /// Side of the depthwise convolution filter in each block, in tokens; 0 for none.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1023))]
    pub kernel_size: usize,
    /// Hidden width of the feed-forward parts, as a multiple of `hidden`.
    #[serde(default = "number::<4>")]
    #[schemars(range(min = 1, max = 256))]
    pub mlp_ratio: usize,
    /// Initial value of the learned scale of each residual branch (layer scale).
    #[serde(default = "tenth")]
    pub branch_scale: f64,
    /// Add learned position embeddings to the tokens, one per row and one per column of the token grid.
    // Not serialised when false, so that configurations older than this key keep their hash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub positions: bool,
}

fn tenth() -> f64 {
    0.1
}

// The default is not serialised, so that configurations older than this key keep their hash.
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// The layers of a [`PdetStack`].
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    input: Input,
    blocks: Vec<Block>,
    iterations: usize,
    /// Maps the fraction of the iterations done to a vector added to the condition or, without one, to the tokens.
    progress: Option<Linear>,
    norm: Norm,
    output: Linear,
}

impl Stack {
    pub(super) fn new(b: &mut Builder, c: &PdetStack, shape: &BackboneShape) -> Self {
        let filters = "kind: pdet_stack with kernel_size above 0";
        let grid = shape.plane(b, (c.kernel_size > 0).then_some(filters));
        let block = |i: usize| {
            let attends = (c.depth - 1 - i).is_multiple_of(c.attention_every);
            BlockConfig {
                width: c.hidden,
                mlp_ratio: c.mlp_ratio,
                mixing: if attends { c.attention.mixing() } else { learn::nn::Mixing::None },
                filter: shape.filter(c.kernel_size),
                grid,
                condition: shape.condition,
                branch_scale: Some(c.branch_scale),
            }
        };
        let told = match shape.condition {
            Condition::Adaptive(width) => width,
            Condition::Fixed => c.hidden,
        };
        Self {
            input: Input::new(b, shape, c.hidden, c.positions),
            blocks: (0..c.depth).map(|i| Block::new(b, format!("blocks.{i}"), &block(i))).collect(),
            iterations: c.iterations,
            progress: (c.iterations > 1).then(|| Linear::new(b, "progress", 1, told)),
            norm: Norm::new(b, "norm", c.hidden, Condition::Fixed),
            output: Linear::zeroed(b, "output", c.hidden, shape.output),
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let mut x = self.input.forward(forward, z)?;
        for iteration in 0..self.iterations {
            let mut condition = condition.cloned();
            if let Some(linear) = &self.progress {
                let done = iteration as f64 / (self.iterations - 1) as f64;
                let done = forward.to_compute_dtype(&forward.full(&[1, 1], done)?)?;
                let target = condition.as_mut().unwrap_or(&mut x);
                *target =
                    forward.apply(Binary::Add, &[target, &linear.forward(forward, &done)?])?;
            }
            x = Block::all(&self.blocks, forward, x, condition.as_ref())?;
        }
        let x = self.norm.forward(forward, &x, None)?;
        self.output.forward(forward, &x)
    }
}
