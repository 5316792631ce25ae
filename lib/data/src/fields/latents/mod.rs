//! Latents on disk: a folder of safetensors shards and an index, mapped into memory for reading.
//!
//! `index.json` says which codec, normalisation and data made them; they are valid for nothing else.
//! Each shard has a tensor `latents` `[n, frames, tokens, dim]`, f32, which begins at a multiple of 64
//! bytes, and `parameters` `[n]`, f64. Sample i of the store is trajectory i of the split.

mod index;
mod reader;
mod shard;
mod writer;

pub use index::{ChannelStatistics, Key, Layout};
pub use reader::LatentStore;
pub use writer::{Made, TrajectoryBatch, write_latents};
