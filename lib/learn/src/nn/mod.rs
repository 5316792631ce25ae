//! Layers: each registers its parameters when it is built and applies them in a [`Forward`](crate::forward::Forward).

mod attention;
mod block;
mod conv;
mod hyper_connection;
mod linear;
mod norm;
mod resample;
mod spectral_conv;

pub use attention::{ChannelSeparatedAttention, MultiHead};
pub use block::{Block, BlockConfig, Mixing};
pub use conv::{Conv, ConvTranspose, DepthwiseConv};
pub use hyper_connection::HyperConnection;
pub use linear::Linear;
pub use norm::{Condition, GroupNorm, LayerNorm, Norm, RmsNorm};
pub use resample::{interpolation, map_axes, pair_means};
pub use spectral_conv::SpectralConv;
