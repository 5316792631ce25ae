//! The models, one file each.

mod autoencoder;
pub(crate) mod backbone;
pub mod codec;
mod conv_layer;
pub mod critic;
pub mod denoiser;
mod fno;
mod mlp;
mod network;
pub mod operator;
pub mod patches;
mod pdet_stack;
mod pdet_unet;
mod resnet;
mod unet;

pub use autoencoder::Autoencoder;
pub use codec::{Codec, CodecModel};
pub use conv_layer::{ConvActivation, ConvNorm};
pub use critic::Critic;
pub use denoiser::Denoiser;
pub use fno::Fno;
pub use mlp::Mlp;
pub use network::{ConditionPath, Network, NetworkModel, NetworkShape};
pub use operator::{Operator, OperatorModel};
pub use patches::Patches;
pub use pdet_stack::PdetStack;
pub use pdet_unet::PdetUnet;
pub use resnet::Resnet;
pub use unet::{ConvUnet, Upsample};

/// The default `N` of a configuration key.
pub(crate) fn number<const N: usize>() -> usize {
    N
}
