//! The tokens of conversations.

use super::images::{ImageInfo, ImageTokens};
use super::{ChatTemplate, MARK, Rendered, count_images, is_assistant, pair};
use crate::text::tokenizer::{Encoded, Tokenizer};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
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
    /// How images became tokens; None if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageInfo>,
}

/// Why a conversation with images cannot be encoded.
pub(in crate::text) const NO_PROCESSOR: &str = "it has images, but the folder of the tokenizer has no processor_config.json and no \
     preprocessor_config.json; take them from the model";

/// A tokenizer with the chat template of its model.
#[derive(Clone, Debug)]
pub struct ChatTokenizer {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The template.
    pub template: ChatTemplate,
    /// The tokens that a loss counts.
    pub loss_on: LossOn,
    /// What becomes of images; None for a model of texts.
    pub images: Option<ImageTokens>,
}

/// A conversation, and how many tokens each of its images has.
pub type WithImages<'a> = (&'a [Value], &'a [usize]);

impl ChatTokenizer {
    /// Description of the encoding.
    pub fn info(&self) -> ChatInfo {
        let template = blake3::hash(self.template.source().as_bytes()).to_hex().to_string();
        let images = self.images.as_ref().map(ImageTokens::info);
        ChatInfo { template, loss_on: self.loss_on, images }
    }

    /// Number of tokens of an image with these rows and columns of patches.
    pub fn image_tokens(&self, [rows, columns]: [usize; 2]) -> usize {
        let merge = self.images.as_ref().map_or(1, |own| own.processor.merge_size as usize);
        rows * columns / (merge * merge)
    }

    /// Encodes a text that the template rendered.
    fn encode_rendered(&self, text: &str, images: &[usize]) -> Result<Encoded> {
        let mut found = self.tokenizer.encode_rendered(text)?;
        match &self.images {
            Some(own) => own.expand(&mut found, images).map_err(Error::data)?,
            None if images.is_empty() => {}
            None => return Err(Error::data(NO_PROCESSOR)),
        }
        Ok(found)
    }

    /// Encodes conversations on all processors, in order: the type of a token is 1 if the loss counts it, otherwise 0. Also
    /// returns the number of turns that are rendered in another way when the conversation goes on. An error is that of one
    /// conversation: the template refuses it, the tokenizer cannot encode it, or the loss counts none of its tokens.
    pub fn encode(&self, all: &[WithImages]) -> Vec<Result<(Encoded, usize)>> {
        all.par_iter().map(|own| self.encode_one(*own)).collect()
    }

    fn encode_one(&self, (messages, images): WithImages) -> Result<(Encoded, usize)> {
        let Rendered { text, turns, changed } = self.template.rendered(messages)?;
        let mut found = self.encode_rendered(&text, images)?;
        match self.loss_on {
            LossOn::Assistant => found.types = marks(&found.offsets, &turns),
            LossOn::All => found.types.fill(1),
        }
        // Nothing is learnt from reading an image.
        let token = self.images.as_ref().map(|own| own.token);
        for (own, id) in found.types.iter_mut().zip(&found.ids) {
            *own &= u8::from(Some(*id) != token);
        }
        let all = found.ids.len();
        let of_images = images.iter().sum::<usize>();
        found.truncate(self.tokenizer.max_length(), self.tokenizer.cut().left);
        if found.ids.iter().filter(|id| Some(**id) == token).count() < of_images {
            return Err(Error::data(format!(
                "its images take {of_images} of {all} tokens and would be cut after {}; raise --max-length, or lower \
                 --max-image-tokens",
                found.ids.len()
            )));
        }
        // The first token has nothing that it could be predicted from.
        match found.types.iter().skip(1).any(|own| *own == 1) {
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

/// An assistant's turn with what precedes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The ids of the prompt.
    pub prompt: Vec<i32>,
    /// The ids of the turn, without the token that ends it and what follows.
    pub answer: Vec<i32>,
}

impl ChatTokenizer {
    /// The ids of messages and of the beginning of the assistant's next turn, however many. Errors: 65 for messages that
    /// the template refuses.
    pub fn prompt(&self, (messages, images): WithImages) -> Result<Vec<i32>> {
        let text = self.template.render(messages, true)?;
        Ok(self.encode_rendered(&text, images)?.ids)
    }

    /// The last assistant's turn of a conversation, if there is one that the template renders. `stops` are the tokens that
    /// end a turn. Errors: those of [`Self::prompt`].
    pub fn last_turn(&self, (messages, images): WithImages, stops: &[i32]) -> Result<Option<Turn>> {
        let Some(last) = messages.iter().rposition(is_assistant) else { return Ok(None) };
        let Rendered { text, turns, .. } = self.template.rendered(&messages[..=last])?;
        let Some(turn) = turns.last().filter(|turn| !turn.is_empty()) else { return Ok(None) };
        let images_before =
            |end: usize| &images[..count_images(&messages[..end]).min(images.len())];
        let found = self.encode_rendered(&text, images_before(last + 1))?;
        let begins =
            |offset: &[i32; 2]| usize::try_from(offset[0]).is_ok_and(|at| at >= turn.start);
        let start = found.offsets.iter().position(begins).unwrap_or(found.ids.len());
        let answer = found.ids[start..].split(|id| stops.contains(id)).next().unwrap_or_default();
        let prompt = self.prompt((&messages[..last], images_before(last)))?;
        Ok(Some(Turn { prompt, answer: answer.to_vec() }))
    }

    /// The tokens that end an assistant's turn: the end-of-sequence token of the tokenizer, and the special token that the
    /// template puts there.
    pub fn stops(&self) -> Result<Vec<i32>> {
        let eos = self.tokenizer.special().eos;
        let end = self.turn_end()?.filter(|end| eos != Some(*end));
        Ok(eos.into_iter().chain(end).collect())
    }

    /// The special token that the template puts at the end of an assistant's turn. None if there is none, or if the template
    /// refuses a conversation of two turns.
    pub fn turn_end(&self) -> Result<Option<i32>> {
        let rendered = self.template.render(&pair("?", MARK), false).unwrap_or_default();
        let Some((_, ending)) = rendered.split_once(MARK) else { return Ok(None) };
        let ids = self.tokenizer.encode_rendered(ending)?.ids;
        Ok(ids.into_iter().find(|id| self.tokenizer.is_added(*id)))
    }
}

impl ChatTokenizer {
    /// The marks, such as `<|im_start|>`, that the template writes around turns, but that are not tokens: the tokenizer divides
    /// them, so it is probably that of another model. None if the template refuses a conversation of two turns.
    pub fn divided_marks(&self) -> Result<Vec<String>> {
        let rendered = self.template.render(&pair("?", MARK), true).unwrap_or_default();
        let mut found: Vec<String> = Vec::new();
        for part in rendered.split("<|").skip(1) {
            let Some((name, _)) = part.split_once("|>") else { continue };
            let mark = format!("<|{name}|>");
            let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
            if is_name
                && !found.contains(&mark)
                && self.tokenizer.encode_rendered(&mark)?.ids.len() > 1
            {
                found.push(mark);
            }
        }
        Ok(found)
    }
}

/// Whether each token begins within a turn: 1, otherwise 0.
fn marks(offsets: &[[i32; 2]], turns: &[Range<usize>]) -> Vec<u8> {
    let within = |at: usize| turns.iter().any(|turn| turn.contains(&at));
    let is_counted = |[start, _]: &[i32; 2]| usize::try_from(*start).is_ok_and(within);
    offsets.iter().map(|offset| u8::from(is_counted(offset))).collect()
}
