//! The tokens of conversations.

use super::{ChatTemplate, Messages, Rendered};
use crate::text::tokenizer::{Encoded, Tokenizer};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use unix::{Error, Result};

/// The tokens of a conversation that a loss counts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum LossOn {
    /// Those of the assistant's turns, up to the end of each.
    #[default]
    Assistant,
    /// All.
    All,
}

/// How conversations were encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatInfo {
    /// BLAKE3 hash of the chat template.
    pub template: String,
    /// The tokens that a loss counts.
    pub loss_on: LossOn,
}

/// A tokenizer with the chat template of its model.
#[derive(Clone, Debug)]
pub struct ChatTokenizer {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The template.
    pub template: ChatTemplate,
    /// The tokens that a loss counts.
    pub loss_on: LossOn,
}

impl ChatTokenizer {
    /// Description of the encoding.
    pub fn info(&self) -> ChatInfo {
        let template = blake3::hash(self.template.source().as_bytes()).to_hex().to_string();
        ChatInfo { template, loss_on: self.loss_on }
    }

    /// Encodes conversations on all processors, in order: the type of a token is 1 if the loss counts it, otherwise 0. Also
    /// returns the number of turns that are rendered in another way when the conversation goes on. An error is that of one
    /// conversation: the template refuses it, the tokenizer cannot encode it, or the loss counts none of its tokens.
    pub fn encode(&self, all: &[Messages]) -> Vec<Result<(Encoded, usize)>> {
        all.par_iter().map(|messages| self.encode_one(messages)).collect()
    }

    fn encode_one(&self, messages: &Messages) -> Result<(Encoded, usize)> {
        let Rendered { text, turns, changed } = self.template.rendered(messages)?;
        let mut found = self.tokenizer.encode_rendered(&text)?;
        match self.loss_on {
            LossOn::Assistant => found.types = marks(&found.offsets, &turns),
            LossOn::All => found.types.fill(1),
        }
        match found.types.contains(&1) {
            true => Ok((found, changed)),
            false if found.truncated => Err(Error::data(format!(
                "its first {} tokens have none that the loss counts; raise --max-length",
                found.ids.len()
            ))),
            false => Err(Error::data(
                "the template renders no assistant's turn, so there is nothing to learn",
            )),
        }
    }
}

/// Whether each token begins within a turn: 1, otherwise 0.
fn marks(offsets: &[[i32; 2]], turns: &[Range<usize>]) -> Vec<u8> {
    let within = |at: usize| turns.iter().any(|turn| turn.contains(&at));
    let is_counted = |[start, _]: &[i32; 2]| usize::try_from(*start).is_ok_and(within);
    offsets.iter().map(|offset| u8::from(is_counted(offset))).collect()
}
