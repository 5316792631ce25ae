//! The codec: a field becomes a grid of latent tokens and back, locally in both directions.
//!
//! Patches of the field are the tokens. A linear map between patch and latent carries the smooth part
//! (it starts as the discrete cosine transform, cut off after as many terms as the latent has), and a
//! few convolutional blocks on each side add what is not smooth. All is periodic or zero at the
//! border, so that moving a periodic field by whole patches moves the tokens: an exact symmetry that
//! the operator's training uses.

use crate::nn::{Block, BlockConfig, Condition, Linear, Mixing};
use crate::params::{Builder, Init};
use crate::pass::Pass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::residual::Residual;
use tensor::{Tensor, Var};
use unix::Result;

/// Sizes of a codec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodecModel {
    /// Grid points of a patch along each axis; each patch becomes a token.
    #[schemars(range(min = 1))]
    pub patch: usize,
    /// Features of a latent token.
    #[schemars(range(min = 1))]
    pub latent: usize,
    /// Features of a token inside the encoder and the decoder.
    #[schemars(range(min = 1))]
    pub hidden: usize,
    /// Blocks of the encoder.
    pub encoder_depth: usize,
    /// Blocks of the decoder.
    pub decoder_depth: usize,
    /// Side of the depthwise filters over tokens.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    pub filter: usize,
    /// Hidden features of the feed-forward parts, as a multiple of `hidden`.
    #[serde(default = "two")]
    #[schemars(range(min = 1))]
    pub mlp_ratio: usize,
    /// What lies beyond the border of the domain.
    #[serde(default)]
    pub border: Border,
}

fn five() -> usize {
    5
}

fn two() -> usize {
    2
}

/// What lies beyond the border of the domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Border {
    /// The other side.
    #[default]
    Periodic,
    /// Zero.
    Zero,
}

impl From<Border> for Padding {
    fn from(border: Border) -> Padding {
        match border {
            Border::Periodic => Padding::Periodic,
            Border::Zero => Padding::Zero,
        }
    }
}

impl CodecModel {
    /// Rows and columns of tokens of a field on `grid`; an error says what does not fit.
    pub fn tokens(&self, grid: &[usize]) -> Result<[usize; 2], String> {
        match grid {
            [x] if x % self.patch == 0 && *x > 0 => Ok([1, x / self.patch]),
            [x] => Err(format!("patch = {} does not divide the {x} grid points", self.patch)),
            _ => Err(format!("fields on {} axes; this codec reads one", grid.len())),
        }
    }

    /// Faults in the values, by key relative to the model.
    pub fn faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        if self.filter.is_multiple_of(2) {
            faults.push(("filter".into(), format!("{} is even: use an odd side", self.filter)));
        }
        if self.latent > self.patch {
            let text =
                format!("{} features for {} points do not compress", self.latent, self.patch);
            faults.push(("latent".into(), text));
        }
        faults
    }
}

#[derive(Clone, Debug)]
struct Side {
    /// The linear part.
    direct: Linear,
    input: Linear,
    blocks: Vec<Block>,
    output: Linear,
}

impl Side {
    fn forward(&self, pass: &Pass, x: &Var) -> Result<Var> {
        let x = &pass.narrow(x)?;
        let mut h = self.input.forward(pass, x)?;
        for block in &self.blocks {
            h = block.forward(pass, &h, None)?;
        }
        let direct = pass.widen(&self.direct.forward(pass, x)?)?;
        let rest = pass.widen(&self.output.forward(pass, &h)?)?;
        pass.apply(Residual::Plain, &[&direct, &rest])
    }
}

/// Encoder and decoder.
#[derive(Clone, Debug)]
pub struct Codec {
    encoder: Side,
    decoder: Side,
    patch: usize,
}

impl Codec {
    /// For fields whose tokens form `grid`.
    pub fn new(b: &mut Builder, c: &CodecModel, grid: [usize; 2]) -> Self {
        let side = |b: &mut Builder, name: &str, from: usize, to: usize, depth: usize, direct| {
            let block = BlockConfig {
                width: c.hidden,
                mlp_ratio: c.mlp_ratio,
                mixing: Mixing::None,
                filter: Some((c.filter, c.border.into())),
                grid,
                condition: Condition::Fixed,
                branch_scale: Some(0.1),
            };
            // The nonlinear part starts small beside the linear one.
            let small = Init::Uniform(0.1 / (c.hidden as f64).sqrt());
            b.scope(name, |b| Side {
                direct: Linear::from_weight(b, "direct", direct),
                input: Linear::new(b, "input", from, c.hidden),
                blocks: (0..depth).map(|i| Block::new(b, format!("blocks.{i}"), &block)).collect(),
                output: Linear::with_init(b, "output", c.hidden, to, small, Init::Constant(0.0)),
            })
        };
        let (p, d) = (c.patch, c.latent);
        let (forward, backward) = cosine_transform(p, d);
        Self {
            encoder: side(b, "encoder", p, d, c.encoder_depth, forward),
            decoder: side(b, "decoder", d, p, c.decoder_depth, backward),
            patch: p,
        }
    }

    /// u [B, X] -> latents [B, tokens, D].
    pub fn encode(&self, pass: &Pass, u: &Var) -> Result<Var> {
        let [batch, points] = [0, 1].map(|i| u.shape()[i]);
        self.encoder.forward(pass, &u.reshape(&[batch, points / self.patch, self.patch]))
    }

    /// z [B, tokens, D] -> field [B, X].
    pub fn decode(&self, pass: &Pass, z: &Var) -> Result<Var> {
        let u = self.decoder.forward(pass, z)?;
        let [batch, tokens] = [0, 1].map(|i| u.shape()[i]);
        Ok(u.reshape(&[batch, tokens * self.patch]))
    }
}

/// The first `d` rows of the orthonormal cosine transform (DCT-II) of `p` points [d, p], and its
/// transpose [p, d].
fn cosine_transform(p: usize, d: usize) -> (Tensor, Tensor) {
    let at = |j: usize, i: usize| {
        let norm = if j == 0 { 1.0 } else { 2.0_f64 };
        let angle = std::f64::consts::PI * j as f64 * (i as f64 + 0.5) / p as f64;
        ((norm / p as f64).sqrt() * angle.cos()) as f32
    };
    let rows: Vec<f32> = (0..d * p).map(|n| at(n / p, n % p)).collect();
    let columns: Vec<f32> = (0..d * p).map(|n| at(n % d, n / d)).collect();
    (Tensor::of(&rows, &[d, p]), Tensor::of(&columns, &[p, d]))
}
