//! Batches of texts of different lengths, and the encoder that reads them.

use super::encoder::{Encoder, EncoderConfig, Tokens};
use data::text::{RecordTokens, TokenInfo, Window};
use learn::adapt::Lora;
use learn::forward::Forward;
use learn::params::Builder;
use learn::task::Batch;
use tensor::{Tensor, Var};
use unix::Result;

/// Token ids and segments of a text.
pub type EncodedText<'a> = (&'a [i32], &'a [u8]);

/// Sequence lengths are rounded up to a multiple of this, for which kernels are faster.
const MULTIPLE: usize = 8;
/// Added to the states of padding before a maximum.
const MASKED: f32 = -1e30;

/// A batch of texts. Each is padded with token `padding` to the length of the longest one, rounded up to a multiple of
/// 8. `first` is the position of the first token. Tensors: `ids`, `types` and `positions`, i32 [B, T]; `lengths`, i32
/// [B]; `mean`, [B, 1, T], the weights of a mean over the tokens of each text; `hidden`, [B, T, 1], 0 at tokens and
/// -1e30 at padding. The weight of the batch is the number of texts.
pub fn padded(texts: &[EncodedText], padding: i32, first: usize) -> Batch {
    with_texts(Batch::new(texts.len() as f64), "", texts, padding, first)
}

/// Adds the tensors of [`padded`] to a batch, with names that begin with `prefix`.
pub fn with_texts(
    batch: Batch,
    prefix: &str,
    texts: &[EncodedText],
    padding: i32,
    first: usize,
) -> Batch {
    let longest = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let (count, width) = (texts.len(), longest.max(1).next_multiple_of(MULTIPLE));
    let mut ids = vec![padding; count * width];
    let mut types = vec![0; count * width];
    let mut mean = vec![0.0_f32; count * width];
    let mut hidden = vec![MASKED; count * width];
    let mut positions = vec![first as i32; count * width];
    for (row, (of_text, segments)) in texts.iter().enumerate() {
        let own = row * width..row * width + of_text.len();
        ids[own.clone()].copy_from_slice(of_text);
        for (found, segment) in types[own.clone()].iter_mut().zip(*segments) {
            *found = i32::from(*segment);
        }
        mean[own.clone()].fill(1.0 / of_text.len() as f32);
        hidden[own.clone()].fill(0.0);
        let mut next = first as i32;
        for (position, id) in positions[own].iter_mut().zip(*of_text) {
            // RoBERTa's positions count only tokens other than padding; texts may contain the padding token themselves.
            let is_counted = first == 0 || *id != padding;
            *position = if is_counted { next } else { padding };
            next += i32::from(is_counted);
        }
    }
    let lengths: Vec<i32> = texts.iter().map(|(ids, _)| ids.len() as i32).collect();
    let name = |name: &str| format!("{prefix}{name}");
    batch
        .with(name("ids"), Tensor::from_slice(&ids, &[count, width]))
        .with(name("types"), Tensor::from_slice(&types, &[count, width]))
        .with(name("positions"), Tensor::from_slice(&positions, &[count, width]))
        .with(name("lengths"), Tensor::from_slice(&lengths, &[count]))
        .with(name("mean"), Tensor::from_slice(&mean, &[count, 1, width]))
        .with(name("hidden"), Tensor::from_slice(&hidden, &[count, width, 1]))
}

/// An encoder with the properties of the tokenizer that it depends on.
#[derive(Clone, Debug)]
pub struct TextEncoder {
    encoder: Encoder,
    /// Id of the padding token.
    padding: i32,
    /// Position of the first token.
    first: usize,
}

/// The last hidden states of a batch of texts, with the mask and lengths that heads require.
pub struct States {
    /// [B, T, H]; those of padding have no meaning.
    pub states: Var,
    /// The weights of a mean over the tokens of each text, [B, 1, T].
    pub mean: Var,
    /// 0 at tokens and -1e30 at padding, [B, T, 1].
    pub hidden: Var,
    /// Lengths of the texts, i32 [B].
    pub lengths: Var,
}

impl TextEncoder {
    /// Builds the encoder for the tokenizer described by `info`.
    pub fn new(
        b: &mut Builder,
        config: &EncoderConfig,
        lora: Option<&Lora>,
        info: &TokenInfo,
    ) -> Self {
        Self::with_vocabulary(b, config, lora, info.vocabulary, info.special.padding)
    }

    /// Builds the encoder for a tokenizer with `vocabulary` ids and this padding token.
    pub fn with_vocabulary(
        b: &mut Builder,
        config: &EncoderConfig,
        lora: Option<&Lora>,
        vocabulary: usize,
        padding: i32,
    ) -> Self {
        Self {
            encoder: b.adapted(lora, |b| Encoder::new(b, config, vocabulary)),
            padding,
            first: config.first_position(padding as usize),
        }
    }

    /// Adds texts to a batch, as tensors with names that begin with `prefix`.
    pub fn add(&self, batch: Batch, prefix: &str, texts: &[EncodedText]) -> Batch {
        with_texts(batch, prefix, texts, self.padding, self.first)
    }

    /// A batch of windows.
    pub fn windows(&self, windows: &[(RecordTokens, &Window)]) -> Batch {
        let tokens: Vec<_> = windows.iter().map(|(record, own)| record.of_window(own)).collect();
        let texts: Vec<EncodedText> =
            tokens.iter().map(|(ids, types)| (&ids[..], &types[..])).collect();
        self.add(Batch::new(windows.len() as f64), "", &texts)
    }

    /// Encodes the texts whose tensors have names that begin with `prefix`.
    pub fn forward(&self, forward: &Forward, batch: &Batch, prefix: &str) -> Result<States> {
        let tokens = Tokens::of(batch, forward, prefix)?;
        let input = |name: &str| batch.input(forward, &format!("{prefix}{name}"));
        Ok(States {
            states: self.encoder.forward(forward, &tokens)?,
            mean: input("mean")?,
            hidden: input("hidden")?,
            lengths: tokens.lengths,
        })
    }
}

impl Tokens {
    /// The token inputs in a batch made by [`padded`] or [`TextEncoder::add`]; their names begin with `prefix`.
    pub fn of(batch: &Batch, forward: &Forward, prefix: &str) -> Result<Self> {
        let input = |name: &str| batch.input(forward, &format!("{prefix}{name}"));
        let [ids, types, positions, lengths] = ["ids", "types", "positions", "lengths"].map(input);
        Ok(Self { ids: ids?, types: types?, positions: positions?, lengths: lengths? })
    }
}
