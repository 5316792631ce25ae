use super::{ChannelSeparatedAttention, Condition, DepthwiseConv, Linear, MultiHead, Norm};
use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::residual::Residual;
use unix::Result;

/// Global token mixing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// No attention.
    None,
    /// Multi-head attention.
    MultiHead {
        /// Number of heads.
        heads: usize,
        /// Whether queries and keys are normalised (QK norm).
        qk_norm: bool,
    },
    /// Attention over groups of features with shared projections.
    ChannelSeparated {
        /// Features per group.
        group: usize,
        /// Heads per group.
        heads: usize,
    },
}

/// Configuration of a residual block.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// Features per token.
    pub width: usize,
    /// Hidden width of the feed-forward part, as a multiple of `width`.
    pub mlp_ratio: usize,
    /// Global mixing of tokens.
    pub mixing: Mixing,
    /// Local token mixing: kernel size and padding of the depthwise convolution before the feed-forward part.
    pub filter: Option<(usize, Padding)>,
    /// Rows and columns of the token grid.
    pub grid: [usize; 2],
    /// Conditioning of the normalisations.
    pub condition: Condition,
    /// Initial value of the learned scale of each residual branch (layer scale); None: no scale.
    pub branch_scale: Option<f64>,
}

#[derive(Clone, Debug)]
enum Attention {
    MultiHead(MultiHead),
    ChannelSeparated(ChannelSeparatedAttention),
}

/// A pre-norm residual block on tokens [B, T, H]:
/// x += s₁ ∘ attention(norm(x)), then x += s₂ ∘ W₂ gelu(W₁ norm(conv(x))).
///
/// Without attention it is a ConvNeXt block (Liu et al. 2022); without the convolution, a transformer block. The layer
/// scales s (Touvron et al. 2021), the attention and the convolution are each optional.
#[derive(Clone, Debug)]
pub struct Block {
    attention: Option<(Norm, Attention, Option<ParamId>)>,
    conv: Option<DepthwiseConv>,
    norm: Norm,
    up: Linear,
    down: Linear,
    scale: Option<ParamId>,
}

impl Block {
    /// Registers the parameters under the prefix `name`.
    pub fn new(b: &mut Builder, name: impl std::fmt::Display, c: &BlockConfig) -> Self {
        b.scope(name, |b| {
            let scale = |b: &mut Builder, name: &str| {
                c.branch_scale.map(|s| b.param(name, &[c.width], Init::Constant(s)))
            };
            let attention =
                match c.mixing {
                    Mixing::None => None,
                    Mixing::MultiHead { heads, qk_norm } => Some(Attention::MultiHead(
                        MultiHead::new(b, "attention", c.width, heads, qk_norm),
                    )),
                    Mixing::ChannelSeparated { group, heads } => Some(Attention::ChannelSeparated(
                        ChannelSeparatedAttention::new(b, "attention", group, heads),
                    )),
                };
            let attention = attention.map(|attention| {
                let norm = Norm::new(b, "attention_norm", c.width, c.condition);
                (norm, attention, scale(b, "attention_scale"))
            });
            Self {
                attention,
                conv: c.filter.map(|(side, padding)| {
                    DepthwiseConv::new(b, "conv", c.width, c.grid, side, padding)
                }),
                norm: Norm::new(b, "mlp_norm", c.width, c.condition),
                up: Linear::new(b, "mlp_up", c.width, c.mlp_ratio * c.width).then(Activation::Gelu),
                down: Linear::new(b, "mlp_down", c.mlp_ratio * c.width, c.width),
                scale: scale(b, "mlp_scale"),
            }
        })
    }

    /// Maps x [B, T, H] to the same shape; adaptive normalisation requires `condition` [B, c].
    pub fn forward(&self, forward: &Forward, x: &Var, condition: Option<&Var>) -> Result<Var> {
        let (block, inputs): (Self, Vec<&Var>) =
            (self.clone(), [x].into_iter().chain(condition).collect());
        forward.block(&inputs, move |forward, vars| block.layers(forward, &vars[0], vars.get(1)))
    }

    /// Applies `blocks` in sequence.
    pub fn all(blocks: &[Self], forward: &Forward, x: Var, condition: Option<&Var>) -> Result<Var> {
        blocks.iter().try_fold(x, |x, block| block.forward(forward, &x, condition))
    }

    fn layers(&self, forward: &Forward, x: &Var, condition: Option<&Var>) -> Result<Var> {
        let mut x = x.clone();
        if let Some((norm, attention, scale)) = &self.attention {
            let h = norm.forward(forward, &x, condition)?;
            let branch = match attention {
                Attention::MultiHead(a) => a.forward(forward, &h)?,
                Attention::ChannelSeparated(a) => a.forward(forward, &h)?,
            };
            x = join(forward, &x, &branch, *scale)?;
        }
        let h = match &self.conv {
            Some(conv) => conv.forward(forward, &x)?,
            None => x.clone(),
        };
        let h = self.norm.forward(forward, &h, condition)?;
        let branch = self.down.forward(forward, &self.up.forward(forward, &h)?)?;
        join(forward, &x, &branch, self.scale)
    }
}

/// Residual connection x + s ∘ branch.
fn join(forward: &Forward, x: &Var, branch: &Var, scale: Option<ParamId>) -> Result<Var> {
    match scale {
        Some(scale) => forward.apply(Residual::Scaled, &[x, branch, forward.get(scale)]),
        None => forward.apply(Binary::Add, &[x, branch]),
    }
}
