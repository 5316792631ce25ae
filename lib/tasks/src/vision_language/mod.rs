//! Models of images and text: Qwen3-VL (Bai et al. 2025, "Qwen3-VL technical report"), a vision tower whose features take the
//! places of tokens in a decoder.

mod config;
mod model;
mod positions;
mod vision;

pub use config::{VisionConfig, VisionLanguageConfig};
pub use model::{Images, Inputs, VisionLanguage};
pub use positions::{Grid, Placed, place};

/// The layers that LoRA adapts by default, as a regular expression: those of attention and feed-forward networks of tower and
/// decoder, but neither mergers nor the embedding of patches.
pub const ADAPTED: &str = r".*\.(blocks|layers)\.\d+\.(attn|self_attn|mlp)\..*";
