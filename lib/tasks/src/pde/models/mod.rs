//! The models of PDE surrogates, one file each.

pub mod codec;
pub mod critic;
pub mod denoiser;
mod network;
pub mod operator;

pub use codec::{Codec, CodecModel};
pub use critic::Critic;
pub use denoiser::Denoiser;
pub use network::{ConditionPath, Network, NetworkModel, NetworkShape};
pub use operator::{Operator, OperatorModel};
