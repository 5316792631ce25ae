//! Tokenizers in Hugging Face's files: tokenizer.json, BERT's vocab.txt, or RoBERTa's vocab.json and merges.txt, with
//! the options of tokenizer_config.json.

mod class;
mod folder;
mod hostile;
mod keys;
mod settings;

use super::chat::{ChatTemplate, ChatTokenizer, ImageTokens, LossOn};
use folder::Folder;
pub(super) use folder::file_of;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokenizers::{EncodeInput, Encoding};
use unix::cli::catch_panics;
use unix::{Error, Result};

/// The ids of special tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// Padding token of batches.
    pub padding: i32,
    /// Classification token: the first token of a text, whose state represents the text.
    pub cls: Option<i32>,
    /// Separator between texts and at the end.
    pub sep: Option<i32>,
    /// Replaces a masked token.
    pub mask: Option<i32>,
    /// Replaces a word outside the vocabulary.
    pub unk: Option<i32>,
    /// Begins a text; only of decoders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos: Option<i32>,
    /// Ends a text, or a turn of a conversation; only of decoders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos: Option<i32>,
}

/// The tokens of a text, or of a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<i32>,
    /// The segment of each token: 0, or 1 for the second text of a pair if the model distinguishes them.
    pub types: Vec<u8>,
    /// The character range of each token in its text, with an exclusive end; [0, 0] for special tokens.
    pub offsets: Vec<[i32; 2]>,
    /// The range of the tokens of the last text, without special tokens.
    pub last: Range<usize>,
    /// Whether tokens beyond the maximum length were left out.
    pub truncated: bool,
}

impl Encoded {
    /// Leaves out tokens beyond `most`: the last ones, or the first ones if `left`.
    pub(super) fn truncate(&mut self, most: usize, left: bool) {
        let all = self.ids.len();
        if all <= most {
            return;
        }
        let kept = if left { all - most..all } else { 0..most };
        self.ids = self.ids[kept.clone()].to_vec();
        self.types = self.types[kept.clone()].to_vec();
        self.offsets = self.offsets[kept].to_vec();
        (self.last, self.truncated) = (0..most, true);
    }
}

/// A tokenizer with a maximum length.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The file with the vocabulary.
    path: PathBuf,
    max_length: usize,
    cut: Cut,
    special: SpecialTokens,
    vocabulary: usize,
    json: String,
    hash: String,
}

/// How tokens are cut before models read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Truncation removes the first tokens of long texts instead of the last ones.
    pub left: bool,
    /// All segments are 0, because models with this tokenizer take no segments.
    pub no_segments: bool,
}

impl Tokenizer {
    /// Reads the tokenizer in `folder`, which will truncate texts to `max_length` tokens.
    ///
    /// Errors: 66 when it has no tokenizer; 65 when its files are damaged or not supported, or `max_length` leaves no
    /// room for a text.
    pub fn open(folder: &Path, max_length: usize) -> Result<Self> {
        let (own, _) = Self::read(folder, max_length)?;
        own.require_room()?;
        Ok(own)
    }

    /// Reads the tokenizer of a decoder and its chat template in `folder`; conversations will be truncated to `max_length`
    /// tokens.
    ///
    /// Errors: 66 when it has no tokenizer or no template; 65 when its files are damaged or not supported.
    pub fn open_chat(folder: &Path, max_length: usize, loss_on: LossOn) -> Result<ChatTokenizer> {
        let (own, tokens) = Self::open_decoder(folder, max_length)?;
        let template = ChatTemplate::open(folder, tokens)?;
        let images = ImageTokens::open(folder, &own)?;
        Ok(ChatTokenizer { tokenizer: own, template, loss_on, images })
    }

    /// Reads the tokenizer of a decoder in `folder`, and its special tokens by key, such as `eos_token`.
    ///
    /// Errors: 66 when it has no tokenizer; 65 when its files are damaged or not supported.
    pub fn open_decoder(
        folder: &Path,
        max_length: usize,
    ) -> Result<(Self, BTreeMap<String, String>)> {
        let (mut own, tokens) = Self::read(folder, max_length)?;
        let id = |key: &str| own.inner.token_to_id(tokens.get(key)?)?.try_into().ok();
        (own.special.bos, own.special.eos) = (id("bos_token"), id("eos_token"));
        Ok((own, tokens))
    }

    /// Returns the tokenizer in `folder` and its special tokens by key.
    fn read(folder: &Path, max_length: usize) -> Result<(Self, BTreeMap<String, String>)> {
        let found = Folder::open(folder)?;
        let Folder { path, inner, special, named, cut } = found;
        let unusable = |cause| Error::data(format!("{}: {cause}", path.display()));
        let json = inner.to_string(false).map_err(unusable)?;
        let hash = blake3::hash(json.as_bytes()).to_hex().to_string();
        let last = inner.get_vocab(true).into_values().max().unwrap_or(0);
        let vocabulary = last as usize + 1;
        let own = Self { inner, path, max_length, cut, special, vocabulary, json, hash };
        Ok((own, named))
    }

    /// Returns a copy without a maximum length.
    pub fn unlimited(&self) -> Self {
        Self { max_length: usize::MAX, ..self.clone() }
    }

    /// Number of ids, which is the largest id plus one.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The ids of special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// BLAKE3 hash of the tokenizer, independent of the files it came from.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The content of its tokenizer.json.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Whether Qwen2Tokenizer of transformers, which rebuilds everything but the vocabulary, would be the same tokenizer.
    pub fn is_of_qwen2(&self) -> bool {
        folder::is_of_qwen2(&self.json)
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<i32> {
        self.inner.token_to_id(token)?.try_into().ok()
    }

    /// Returns the text of a token.
    pub fn token(&self, id: i32) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// Whether a token was added to the vocabulary, as special tokens are.
    pub fn is_added(&self, id: i32) -> bool {
        u32::try_from(id).is_ok_and(|id| self.inner.get_added_tokens_decoder().contains_key(&id))
    }

    /// Returns the text of tokens, without special ones. Errors: 65 for ids that the tokenizer cannot decode.
    pub fn decode(&self, ids: &[i32]) -> Result<String> {
        let ids: Vec<u32> = ids.iter().map(|id| id.cast_unsigned()).collect();
        let found = catch_panics(|| self.inner.decode(&ids, true));
        let found = found.map_err(|cause| self.unusable(&cause))?;
        found.map_err(|cause| self.unusable(&cause.to_string()))
    }

    /// How tokens are cut before models read them.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Encodes a text, or a pair of texts. Errors: 65 for a text that the tokenizer cannot encode.
    pub fn encode(&self, text: &str, text2: Option<&str>) -> Result<Encoded> {
        self.encode_with(input(text, text2), true, self.max_length)
    }

    /// Encodes a text that has its special tokens already, without truncation. Errors: those of [`encode`](Self::encode).
    pub fn encode_rendered(&self, text: &str) -> Result<Encoded> {
        self.encode_with(input(text, None), false, usize::MAX)
    }

    /// Maximum number of tokens of a text.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    fn encode_with(&self, input: EncodeInput, special: bool, most: usize) -> Result<Encoded> {
        let found = catch_panics(|| self.inner.encode_char_offsets(input, special));
        let found = found.map_err(|cause| self.unusable(&cause))?;
        self.encoded(&found.map_err(|cause| self.unusable(&cause.to_string()))?, most)
    }

    /// Encodes texts on all processors, in order. Errors: those of [`encode`](Self::encode).
    pub fn encode_all(&self, texts: &[[Option<&str>; 2]]) -> Result<Vec<Encoded>> {
        let inputs = texts.iter().map(|[text, text2]| input(text.unwrap_or_default(), *text2));
        let inputs = inputs.collect();
        let found = catch_panics(|| self.inner.encode_batch_char_offsets(inputs, true));
        let found = found.map_err(|cause| self.unusable(&cause))?;
        let found = found.map_err(|cause| self.unusable(&cause.to_string()))?;
        found.iter().map(|found| self.encoded(found, self.max_length)).collect()
    }

    fn unusable(&self, cause: &str) -> Error {
        Error::data(format!("{}: cannot encode or decode a text: {cause}", self.path.display()))
    }

    fn encoded(&self, found: &Encoding, most: usize) -> Result<Encoded> {
        let wrong = |_| Error::data("an id or offset of the tokenizer is too large");
        let number = |n: usize| i32::try_from(n).map_err(|_| wrong(()));
        // If a tokenizer records no sequences, all its tokens count as sequence 0, so added special tokens are
        // excluded.
        let (added, sequences) = (found.get_special_tokens_mask(), found.get_sequence_ids());
        let is_of = |i: usize, text: usize| sequences[i] == Some(text) && added[i] == 0;
        let kept = self.kept(added.len(), most, is_of);
        let last_text = found.n_sequences().saturating_sub(1);
        let of_last = |at: &usize| is_of(kept[*at], last_text);
        let start = (0..kept.len()).find(of_last).unwrap_or(0);
        let end = (start..kept.len()).rev().find(of_last).map_or(start, |last| last + 1);
        let (ids, types, offsets) = (found.get_ids(), found.get_type_ids(), found.get_offsets());
        let types = kept.iter().map(|i| match self.cut.no_segments {
            true => Ok(0),
            false => u8::try_from(types[*i]).map_err(|_| wrong(())),
        });
        let offsets = kept.iter().map(|i| Ok([number(offsets[*i].0)?, number(offsets[*i].1)?]));
        Ok(Encoded {
            ids: kept.iter().map(|i| number(ids[*i] as usize)).collect::<Result<_>>()?,
            last: start..end,
            types: types.collect::<Result<_>>()?,
            offsets: offsets.collect::<Result<_>>()?,
            truncated: kept.len() < added.len(),
        })
    }

    /// Returns the tokens of `all` that truncation keeps; `is_of` says whether a token belongs to a text. The longer
    /// text is truncated until both are equally long, then both are, like `longest_first` in transformers. The
    /// library's own truncation stops reading at the maximum length, and so does not know which text is longer.
    fn kept(
        &self,
        all: usize,
        max_length: usize,
        is_of: impl Fn(usize, usize) -> bool,
    ) -> Vec<usize> {
        let lengths = [0, 1].map(|text| (0..all).filter(|i| is_of(*i, text)).count());
        let added = all - lengths[0] - lengths[1];
        let most = max_length.saturating_sub(added);
        if all <= max_length {
            return (0..all).collect();
        }
        let second_is_shorter = lengths[0] > lengths[1];
        let shorter = lengths[0].min(lengths[1]);
        let mut rest = shorter.max(most.saturating_sub(shorter));
        let mut few = shorter;
        if few + rest > most {
            few = most / 2;
            rest = few + most % 2;
        }
        let room = if second_is_shorter { [rest, few] } else { [few, rest] };
        let mut seen = [0; 2];
        let keep = |i: &usize| {
            let Some(text) = [0, 1].into_iter().find(|text| is_of(*i, *text)) else { return true };
            let at = seen[text];
            seen[text] += 1;
            match self.cut.left {
                true => at + room[text] >= lengths[text],
                false => at < room[text],
            }
        };
        (0..all).filter(keep).collect()
    }

    /// Checks that special tokens do not fill the maximum length and that texts begin with the classification token.
    /// Errors: 65.
    fn require_room(&self) -> Result<()> {
        let added = self.unlimited().encode("", Some(""))?.ids;
        let path = self.path.display();
        if added.is_empty() || added.first().copied() != self.special.cls {
            return Err(Error::data(format!(
                "{path}: texts do not begin with the classification token, [CLS] or <s>, which encoders of BERT and RoBERTa \
                 need; its post-processor must add it"
            )));
        }
        let special = added.len();
        match self.max_length > special {
            true => Ok(()),
            false => Err(Error::data(format!(
                "{path}: {special} special tokens leave no room for a text in {} tokens; raise --max-length",
                self.max_length
            ))),
        }
    }
}

fn input<'a>(text: &'a str, text2: Option<&'a str>) -> EncodeInput<'a> {
    match text2 {
        None => EncodeInput::Single(text.into()),
        Some(text2) => EncodeInput::Dual(text.into(), text2.into()),
    }
}
