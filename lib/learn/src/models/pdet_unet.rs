use super::operator::{Attention, CoreShape};
use crate::nn::{Block, BlockConfig, Condition, Linear, Norm, interpolation, pair_means};
use crate::params::Builder;
use crate::pass::Pass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::residual::Residual;
use tensor::ops::token_map::TokenMap;
use tensor::{Tensor, Var};
use unix::Result;

/// Blocks on a pyramid of token sequences: pairs of tokens are averaged on the way down, interpolated
/// on the way up, and each level's state is handed across.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PdetUnet {
    /// Features of a token inside the model.
    #[schemars(range(min = 1))]
    pub hidden: usize,
    /// Number of blocks on each level, the finest first.
    pub depths: Vec<usize>,
    /// Global mixing of tokens in the blocks.
    #[serde(default)]
    pub attention: Attention,
    /// Side of the depthwise filter over tokens in each block; 0 for none.
    #[serde(default)]
    pub filter: usize,
    /// Hidden features of the feed-forward parts, as a multiple of `hidden`.
    #[serde(default = "two")]
    #[schemars(range(min = 1))]
    pub mlp_ratio: usize,
}

fn two() -> usize {
    2
}

#[derive(Clone, Debug)]
struct Level {
    down_blocks: Vec<Block>,
    down: Linear,
    up_blocks: Vec<Block>,
    across: Linear,
    /// [coarse, fine] and back.
    pool: Tensor,
    unpool: Tensor,
}

/// The layers of a [`PdetUnet`].
#[derive(Clone, Debug)]
pub(super) struct Unet {
    input: Linear,
    levels: Vec<Level>,
    bottom: Vec<Block>,
    norm: Norm,
    output: Linear,
}

impl Unet {
    /// One-dimensional grids only: pairs are neighbours along the sequence.
    pub(super) fn new(b: &mut Builder, c: &PdetUnet, shape: &CoreShape) -> Self {
        let blocks = |b: &mut Builder, name: &str, count: usize, tokens: usize| -> Vec<Block> {
            let config = BlockConfig {
                width: c.hidden,
                mlp_ratio: c.mlp_ratio,
                mixing: c.attention.mixing(),
                filter: shape.filter(c.filter),
                grid: [1, tokens],
                condition: shape.condition,
                branch_scale: None,
            };
            (0..count).map(|i| Block::new(b, format!("{name}.{i}"), &config)).collect()
        };
        let input = Linear::new(b, "input", shape.dim, c.hidden);
        let mut tokens = shape.grid[0] * shape.grid[1];
        let mut levels = Vec::new();
        for (i, depth) in c.depths.iter().take(c.depths.len() - 1).enumerate() {
            let coarse = tokens.div_ceil(2);
            levels.push(b.scope(format!("levels.{i}"), |b| Level {
                down_blocks: blocks(b, "down_blocks", *depth, tokens),
                down: Linear::new(b, "down", c.hidden, c.hidden),
                up_blocks: blocks(b, "up_blocks", *depth, tokens),
                across: Linear::new(b, "across", c.hidden, c.hidden),
                pool: pair_means(tokens),
                unpool: interpolation(coarse, tokens),
            }));
            tokens = coarse;
        }
        let bottom = c.depths.last().copied().unwrap_or(0);
        Self {
            input,
            levels,
            bottom: blocks(b, "bottom", bottom, tokens),
            norm: Norm::new(b, "norm", c.hidden, Condition::Fixed),
            output: Linear::new(b, "output", c.hidden, shape.dim),
        }
    }

    pub(super) fn forward(&self, pass: &Pass, z: &Var, condition: Option<&Var>) -> Result<Var> {
        let run = |blocks: &[Block], mut x: Var| -> Result<Var> {
            for block in blocks {
                x = block.forward(pass, &x, condition)?;
            }
            Ok(x)
        };
        let map = |m: &Tensor, x: &Var| {
            let m = pass.narrow(&pass.constant(m)?)?;
            pass.apply(TokenMap, &[&m, x])
        };
        let mut x = self.input.forward(pass, z)?;
        let mut skips = Vec::new();
        for level in &self.levels {
            x = run(&level.down_blocks, x)?;
            skips.push(x.clone());
            x = level.down.forward(pass, &map(&level.pool, &x)?)?;
        }
        x = run(&self.bottom, x)?;
        for (level, skip) in self.levels.iter().zip(&skips).rev() {
            let across = level.across.forward(pass, skip)?;
            x = pass.apply(Residual::Plain, &[&map(&level.unpool, &x)?, &across])?;
            x = run(&level.up_blocks, x)?;
        }
        self.output.forward(pass, &self.norm.forward(pass, &x, None)?)
    }
}
