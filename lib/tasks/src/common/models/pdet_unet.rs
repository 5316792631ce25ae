use super::backbone::{Attention, BackboneShape, Input};
use super::number;
use learn::forward::Forward;
use learn::nn::{Block, BlockConfig, Condition, Linear, Norm, interpolation, map_axes, pair_means};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::binary::Binary;
use tensor::{Tensor, Var};
use unix::Result;

/// A U-Net of blocks on a pyramid of token grids: pairs of tokens are averaged along each axis on the way down and
/// interpolated on the way up, with a skip connection at each level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PdetUnet {
    /// Width: features per token inside the model.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// Number of blocks on each level, from the finest grid to the coarsest.
    #[schemars(inner(range(min = 1, max = 1024)))]
    pub depths: Vec<usize>,
    /// Global mixing of tokens in the blocks.
    #[serde(default)]
    pub attention: Attention,
    /// Side of the depthwise convolution filter in each block, in tokens; 0 for none.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1023))]
    pub kernel_size: usize,
    /// Hidden width of the feed-forward parts, as a multiple of `hidden`.
    #[serde(default = "number::<2>")]
    #[schemars(range(min = 1, max = 256))]
    pub mlp_ratio: usize,
    /// Add learned position embeddings to the tokens, one per row and one per column of the token grid.
    // Not serialised when false, so that configurations older than this key keep their hash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub positions: bool,
}

#[derive(Clone, Debug)]
struct Level {
    down_blocks: Vec<Block>,
    down: Linear,
    up_blocks: Vec<Block>,
    across: Linear,
    /// Averaging matrices along rows and columns, each [coarse, fine]; `unpool` interpolates back.
    pool: [Tensor; 2],
    unpool: [Tensor; 2],
}

/// The layers of a [`PdetUnet`].
#[derive(Clone, Debug)]
pub(crate) struct Unet {
    input: Input,
    levels: Vec<Level>,
    bottom: Vec<Block>,
    norm: Norm,
    output: Linear,
}

impl Unet {
    pub(super) fn new(b: &mut Builder, c: &PdetUnet, shape: &BackboneShape) -> Self {
        let blocks = |b: &mut Builder, name: &str, count: usize, grid: [usize; 2]| -> Vec<Block> {
            let config = BlockConfig {
                width: c.hidden,
                mlp_ratio: c.mlp_ratio,
                mixing: c.attention.mixing(),
                filter: shape.filter(c.kernel_size),
                grid,
                condition: shape.condition,
                branch_scale: None,
            };
            (0..count).map(|i| Block::new(b, format!("{name}.{i}"), &config)).collect()
        };
        let input = Input::new(b, shape, c.hidden, c.positions);
        let mut grid = shape.plane(b, Some("kind: pdet_unet"));
        let mut levels = Vec::new();
        for (i, depth) in c.depths.iter().take(c.depths.len() - 1).enumerate() {
            let coarse = grid.map(|tokens| tokens.div_ceil(2));
            levels.push(b.scope(format!("levels.{i}"), |b| Level {
                down_blocks: blocks(b, "down_blocks", *depth, grid),
                down: Linear::new(b, "down", c.hidden, c.hidden),
                up_blocks: blocks(b, "up_blocks", *depth, grid),
                across: Linear::new(b, "across", c.hidden, c.hidden),
                pool: grid.map(pair_means),
                unpool: [0, 1].map(|axis| interpolation(coarse[axis], grid[axis])),
            }));
            grid = coarse;
        }
        let bottom = c.depths.last().copied().unwrap_or(0);
        Self {
            input,
            levels,
            bottom: blocks(b, "bottom", bottom, grid),
            norm: Norm::new(b, "norm", c.hidden, Condition::Fixed),
            output: Linear::new(b, "output", c.hidden, shape.output),
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let run = |blocks: &[Block], x: Var| Block::all(blocks, forward, x, condition);
        let mut x = self.input.forward(forward, z)?;
        let mut skips = Vec::new();
        for level in &self.levels {
            x = run(&level.down_blocks, x)?;
            skips.push(x.clone());
            x = level.down.forward(forward, &map_axes(forward, &level.pool, &x)?)?;
        }
        x = run(&self.bottom, x)?;
        for (level, skip) in self.levels.iter().zip(&skips).rev() {
            let across = level.across.forward(forward, skip)?;
            x = forward.apply(Binary::Add, &[&map_axes(forward, &level.unpool, &x)?, &across])?;
            x = run(&level.up_blocks, x)?;
        }
        self.output.forward(forward, &self.norm.forward(forward, &x, None)?)
    }
}
