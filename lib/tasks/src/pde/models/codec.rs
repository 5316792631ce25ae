//! The codec: encodes a field as a grid of latent tokens and decodes it, locally in both directions.
//!
//! Patches of the field are the tokens. A linear map between patch and latent represents the smooth part; it is
//! initialised to the discrete cosine transform along each axis, truncated to the number of latent features. A few
//! convolutional blocks on each side add the non-smooth part. Padding is periodic or zero; with periodic padding,
//! shifting a field by whole patches shifts the tokens, an exact symmetry that the training of the operator uses.
//!
//! With `hidden: 0` there are no blocks, and the codec is the linear map. With patches of one point and as many latent
//! features as channels, this map is the identity: the latents are the normalised fields.

use crate::common::models::{PaddingMode, Patches, number};
use learn::forward::Forward;
use learn::nn::{Block, BlockConfig, Condition, Linear, Mixing};
use learn::params::{Builder, Init};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::binary::Binary;
use tensor::{Tensor, Var};
use unix::Result;

/// Architecture of the codec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodecModel {
    /// Patch size in grid points along each axis. Each patch becomes one token.
    #[schemars(range(min = 1, max = 65536))]
    pub patch: usize,
    /// Features per latent token.
    #[schemars(range(min = 1, max = 65536))]
    pub latent: usize,
    /// Width: features per token inside the encoder and the decoder. 0: no blocks, only the linear map.
    #[schemars(range(min = 0, max = 65536))]
    pub hidden: usize,
    /// Number of blocks in the encoder.
    #[schemars(range(min = 0, max = 1024))]
    pub encoder_depth: usize,
    /// Number of blocks in the decoder.
    #[schemars(range(min = 0, max = 1024))]
    pub decoder_depth: usize,
    /// Side of the depthwise convolution filters, in tokens.
    #[serde(default = "number::<5>")]
    #[schemars(range(min = 1, max = 1023))]
    pub kernel_size: usize,
    /// Hidden width of the feed-forward parts, as a multiple of `hidden`.
    #[serde(default = "number::<2>")]
    #[schemars(range(min = 1, max = 256))]
    pub mlp_ratio: usize,
    /// Padding of the convolutions: circular for a periodic domain, else zeros.
    #[serde(default)]
    pub padding_mode: PaddingMode,
}

impl CodecModel {
    /// Returns the patches of fields of `channels` channels on `grid`. The error message names the mismatch.
    pub fn patches(&self, grid: &[usize], channels: usize) -> Result<Patches, String> {
        if grid.len() > 2 {
            return Err(format!("fields with {} axes; codecs support one or two", grid.len()));
        }
        let patches = Patches::new(grid, channels, self.patch)?;
        if self.latent > patches.patch_len() {
            return Err(format!(
                "latent = {} features must not exceed the {} numbers of a patch",
                self.latent,
                patches.patch_len()
            ));
        }
        Ok(patches)
    }

    /// Returns the violations in the values; keys are relative to `model`.
    pub fn violations(&self) -> Vec<(String, String)> {
        let mut violations = Vec::new();
        if self.kernel_size.is_multiple_of(2) {
            violations.push((
                "kernel_size".into(),
                format!("{} is even: use an odd side", self.kernel_size),
            ));
        }
        let depths = [("encoder_depth", self.encoder_depth), ("decoder_depth", self.decoder_depth)];
        for (key, depth) in depths {
            if self.hidden == 0 && depth > 0 {
                let text = format!("must be 0, not {depth}, because model.hidden is 0");
                violations.push((key.into(), text));
            }
        }
        violations
    }
}

#[derive(Clone, Debug)]
struct Side {
    /// The linear branch.
    direct: Linear,
    nonlinear: Option<Nonlinear>,
}

/// The nonlinear branch, whose output is added to that of the linear branch.
#[derive(Clone, Debug)]
struct Nonlinear {
    input: Linear,
    blocks: Vec<Block>,
    output: Linear,
}

impl Side {
    fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let x = &forward.to_compute_dtype(x)?;
        let direct = forward.to_param_dtype(&self.direct.forward(forward, x)?)?;
        let Some(Nonlinear { input, blocks, output }) = &self.nonlinear else { return Ok(direct) };
        let h = Block::all(blocks, forward, input.forward(forward, x)?, None)?;
        let rest = forward.to_param_dtype(&output.forward(forward, &h)?)?;
        forward.apply(Binary::Add, &[&direct, &rest])
    }
}

/// Encoder and decoder.
#[derive(Clone, Debug)]
pub struct Codec {
    encoder: Side,
    decoder: Side,
    patch_len: usize,
}

impl Codec {
    /// Builds a codec for fields cut into `patches`.
    pub fn new(b: &mut Builder, c: &CodecModel, patches: &Patches) -> Self {
        let [_, rows, columns] = patches.tokens();
        let side = |b: &mut Builder, name: &str, from: usize, to: usize, depth: usize, direct| {
            let block = BlockConfig {
                width: c.hidden,
                mlp_ratio: c.mlp_ratio,
                mixing: Mixing::None,
                filter: Some((c.kernel_size, c.padding_mode.into())),
                grid: [rows, columns],
                condition: Condition::Fixed,
                branch_scale: Some(0.1),
            };
            // The nonlinear branch starts small compared with the linear one.
            let small = Init::Uniform(0.1 / (c.hidden as f64).sqrt());
            let zero = Init::Constant(0.0);
            b.scope(name, |b| Side {
                direct: Linear::from_weight(b, "direct", direct),
                nonlinear: (c.hidden > 0).then(|| Nonlinear {
                    input: Linear::new(b, "input", from, c.hidden),
                    blocks: (0..depth)
                        .map(|i| Block::new(b, format!("blocks.{i}"), &block))
                        .collect(),
                    output: Linear::with_init(b, "output", c.hidden, to, small, zero),
                }),
            })
        };
        let (p, d) = (patches.patch_len(), c.latent);
        let (forward, backward) = cosine_transform(c.patch, patches, d);
        Self {
            encoder: side(b, "encoder", p, d, c.encoder_depth, forward),
            decoder: side(b, "decoder", d, p, c.decoder_depth, backward),
            patch_len: p,
        }
    }

    /// Encodes u [B, tokens·patch], patch by patch, to latents [B, tokens, D].
    pub fn encode(&self, forward: &Forward, u: &Var) -> Result<Var> {
        let [batch, points] = [0, 1].map(|i| u.shape()[i]);
        let shape = [batch, points / self.patch_len, self.patch_len];
        self.encoder.forward(forward, &u.reshape(&shape))
    }

    /// Decodes z [B, tokens, D] to a field [B, tokens·patch], patch by patch.
    pub fn decode(&self, forward: &Forward, z: &Var) -> Result<Var> {
        let u = self.decoder.forward(forward, z)?;
        let [batch, tokens] = [0, 1].map(|i| u.shape()[i]);
        Ok(u.reshape(&[batch, tokens * self.patch_len]))
    }
}

/// Returns the first `d` rows of the orthonormal cosine transform (DCT-II) of a patch of `side` points along each axis,
/// [d, patch], and the transpose, [patch, d]. Low frequencies come first; all channels of a frequency are adjacent.
fn cosine_transform(side: usize, patches: &Patches, d: usize) -> (Tensor, Tensor) {
    let (channels, p) = (patches.channels(), patches.patch_len());
    let columns = side;
    let rows = p / channels / columns;
    let mut waves: Vec<[usize; 3]> =
        (0..p).map(|n| [n / channels / columns, n / channels % columns, n % channels]).collect();
    waves.sort_by_key(|[i, j, c]| (i * i + j * j, *i, *c));
    let along = |wave: usize, at: usize, points: usize| {
        let norm = if wave == 0 { 1.0 } else { 2.0_f64 };
        let angle = std::f64::consts::PI * wave as f64 * (at as f64 + 0.5) / points as f64;
        (norm / points as f64).sqrt() * angle.cos()
    };
    let at = |row: usize, n: usize| {
        let [i, j, c] = waves[row];
        if n % channels != c {
            return 0.0;
        }
        let n = n / channels;
        (along(i, n / columns, rows) * along(j, n % columns, columns)) as f32
    };
    let forward: Vec<f32> = (0..d * p).map(|n| at(n / p, n % p)).collect();
    let backward: Vec<f32> = (0..d * p).map(|n| at(n % d, n / d)).collect();
    (Tensor::from_slice(&forward, &[d, p]), Tensor::from_slice(&backward, &[p, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cosine_transform_is_orthonormal_on_any_patch() {
        for (grid, channels, side) in [(&[8][..], 1, 8), (&[12, 6], 1, 3), (&[4, 8], 2, 4)] {
            let patches = Patches::new(grid, channels, side).unwrap();
            let p = patches.patch_len();
            let (forward, backward) = cosine_transform(side, &patches, p);
            let (f, b) = (forward.read::<f32>(), backward.read::<f32>());
            for (i, k) in (0..p * p).map(|n| (n / p, n % p)) {
                let sum: f32 = (0..p).map(|j| f[i * p + j] * b[j * p + k]).sum();
                let expected = if i == k { 1.0 } else { 0.0 };
                assert!((sum - expected).abs() < 1e-5, "{grid:?}: {sum} at {i}, {k}");
            }
            // The first rows are the channel means.
            let mean = (channels as f32 / p as f32).sqrt();
            assert!((0..p).all(|n| f[n] == if n % channels == 0 { f[0] } else { 0.0 }));
            assert!((f[0] - mean).abs() < 1e-6);
        }
    }
}
