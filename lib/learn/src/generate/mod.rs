//! Autoregressive generation: continues prompts token by token with a model that keeps what it has read ([`Decoder`]).
//!
//! Draws are a function of (seed, number of the prompt, position of the token): the text of a prompt depends neither on
//! the prompts beside it nor on the rank that generates it, as long as its logits do not. Logits of other batches may
//! differ in their last bits, because matrix products of other sizes add in another order.

mod sampling;
mod steps;

pub use sampling::Sampling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use steps::generate;
use tensor::Tensor;
use unix::Result;

/// A model that continues sequences of tokens.
pub trait Decoder {
    /// Keys and values of the tokens that were read.
    type Cache;

    /// Reads prompts, each of at least one token, and makes room for `capacity` tokens of each sequence in all. Returns
    /// the cache and the logits of the next token of each sequence, f32 [B, V], on the model's device. Errors: `capacity`
    /// tokens are too many, an id is not in the vocabulary, or device errors.
    fn prefill(&self, prompts: &[&[i32]], capacity: usize) -> Result<(Self::Cache, Tensor)>;

    /// Reads one more token of each sequence. Returns the logits of the next one, f32 [B, V]. Errors: a bug if there is no
    /// room or `tokens` are not one for each sequence; device errors.
    fn step(&self, cache: &mut Self::Cache, tokens: &[i32]) -> Result<Tensor>;

    /// Keeps only these sequences of the cache, in this order. Errors: a bug if one does not exist; device errors.
    fn keep(&self, cache: &mut Self::Cache, rows: &[usize]) -> Result<()>;
}

/// What is generated, and when it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Maximum number of generated tokens.
    pub max_new_tokens: usize,
    /// Ids of tokens that end a sample.
    pub stop: Vec<i32>,
    /// A sample ends when its last `max_repeat` tokens only repeat a block of at most 32 tokens, at least four times;
    /// 0: never.
    pub max_repeat: usize,
}

/// A prompt.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Token ids, at least one.
    pub ids: &'a [i32],
    /// Identifies the prompt in random draws.
    pub number: u64,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// A stop token was generated.
    Stop,
    /// `max_new_tokens` were generated.
    Length,
    /// The last `max_repeat` tokens only repeat a block.
    Runaway,
}

/// A continuation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Generated {
    /// Generated tokens, without the prompt and without the stop token.
    pub ids: Vec<i32>,
    /// Why it ended.
    pub finish: Finish,
}

#[cfg(test)]
mod tests;
