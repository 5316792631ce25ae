//! Images in sequences of tokens, as in Qwen3-VL (Bai et al. 2025, "Qwen3-VL technical report"): a vision tower makes features of
//! their patches, which take the places of image tokens in a decoder.

mod config;
mod images;
mod positions;
mod tower;

pub(super) use config::parts;
pub(super) use images::{placed, tensors};
pub(super) use tower::VisionTower;

pub use config::VisionConfig;
pub use images::Images;
pub use positions::{Grid, Placed, place};

/// The layers that unsloth adapts by default, as a regular expression: those of attention and feed-forward networks of tower and
/// decoder, but neither mergers nor the embedding of patches. PEFT, which fails on other modules that match, takes it too.
pub const ADAPTED: &str = r".*\.(attn|self_attn|mlp)\.(qkv|linear_fc\d|\w*proj)";
