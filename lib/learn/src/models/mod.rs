//! The models, a file each.

pub mod codec;
pub mod operator;
mod pdet_stack;
mod pdet_unet;

pub use codec::{Codec, CodecModel};
pub use operator::{Operator, OperatorModel};
pub use pdet_stack::PdetStack;
pub use pdet_unet::PdetUnet;
