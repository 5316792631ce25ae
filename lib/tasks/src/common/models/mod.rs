//! Networks that map tokens to the same number of tokens, one file each, and the patches that fields are cut into.

mod autoencoder;
pub mod backbone;
mod conv_layer;
mod fno;
mod mlp;
mod patches;
mod pdet_stack;
mod pdet_unet;
mod resnet;
mod unet;

pub use autoencoder::Autoencoder;
pub use conv_layer::{ConvActivation, ConvNorm};
pub use fno::Fno;
pub use mlp::Mlp;
pub use patches::Patches;
pub use pdet_stack::PdetStack;
pub use pdet_unet::PdetUnet;
pub use resnet::Resnet;
pub use unet::{ConvUnet, Upsample};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::depthwise_conv::Padding;

/// Padding of the convolutions at the boundary of the domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMode {
    /// Circular (circular) padding.
    #[default]
    Circular,
    /// Zeros padding.
    Zeros,
}

impl From<PaddingMode> for Padding {
    fn from(padding_mode: PaddingMode) -> Padding {
        match padding_mode {
            PaddingMode::Circular => Padding::Periodic,
            PaddingMode::Zeros => Padding::Zero,
        }
    }
}

/// Returns `N`, the default of a configuration key.
pub(crate) fn number<const N: usize>() -> usize {
    N
}
