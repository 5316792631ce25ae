//! Decoders of language: the models of Qwen3, Qwen2 and Llama in folders of transformers.

mod config;
mod generator;
mod model;
mod rope;

pub use config::{ARCHITECTURES, Architecture, DecoderConfig};
pub use generator::{Cache, Generator};
pub use model::{Decoder, Sequences};
pub use rope::{ROPE_TYPES, Rope, RopeParameters};
