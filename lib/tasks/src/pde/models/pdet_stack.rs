use super::backbone::{Attention, BackboneShape, Input};
use super::number;
use learn::forward::Forward;
use learn::nn::{Block, BlockConfig, Linear, Norm};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
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

/// The layers of a [`PdetStack`].
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    input: Input,
    blocks: Vec<Block>,
    norm: Norm,
    output: Linear,
}

impl Stack {
    pub(super) fn new(b: &mut Builder, c: &PdetStack, shape: &BackboneShape) -> Self {
        let block = |i: usize| {
            let attends = (c.depth - 1 - i).is_multiple_of(c.attention_every);
            BlockConfig {
                width: c.hidden,
                mlp_ratio: c.mlp_ratio,
                mixing: if attends { c.attention.mixing() } else { learn::nn::Mixing::None },
                filter: shape.filter(c.kernel_size),
                grid: shape.grid,
                condition: shape.condition,
                branch_scale: Some(c.branch_scale),
            }
        };
        Self {
            input: Input::new(b, shape, c.hidden, c.positions),
            blocks: (0..c.depth).map(|i| Block::new(b, format!("blocks.{i}"), &block(i))).collect(),
            norm: Norm::new(b, "norm", c.hidden, learn::nn::Condition::Fixed),
            output: Linear::zeroed(b, "output", c.hidden, shape.output),
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let x = self.input.forward(forward, z)?;
        let x = Block::all(&self.blocks, forward, x, condition)?;
        let x = self.norm.forward(forward, &x, None)?;
        self.output.forward(forward, &x)
    }
}
