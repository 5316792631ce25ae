//! Generation with a decoder: the keys and values of the tokens that were read stay in a cache on the device.
//!
//! The cache of a layer holds keys and values [B, S, kv_heads·D] each, in the compute dtype, where S is the largest number
//! of tokens that a sequence may have. Every sequence has its own length and its own next position, so prompts of different
//! lengths are padded at the end: what a longer prompt leaves behind a shorter one is overwritten before it is visible.

use super::batch::Labelled;
use super::model::Sequences;
use super::sft::{Language, float_of};
use super::vision::Images;
use learn::forward::Forward;
use learn::generate;
use tensor::functions::gather::gather;
use tensor::ops::cast::Cast;
use tensor::updates::append::append;
use tensor::{Device, Dtype, Tensor, Var, constant};
use unix::{Error, Result};

/// A decoder with its parameters, which continues sequences of tokens.
pub struct Generator<'a> {
    forward: Forward<'a>,
    model: &'a Language,
    /// Those of each prompt; empty if none has any.
    images: &'a [Images<'a>],
}

/// Keys and values of some sequences.
#[derive(Debug)]
pub struct Cache {
    /// Keys and values of each layer, [B, S, kv_heads·D].
    layers: Vec<[Tensor; 2]>,
    /// Number of tokens of each sequence.
    lengths: Vec<i32>,
    /// What the position of the next token exceeds this number by: 0, or less than 0 after an image.
    offsets: Vec<i32>,
    /// Angles of the positions, [S, D].
    angles: Tensor,
    /// One token for each sequence, i32 [B].
    ones: Tensor,
}

impl Cache {
    /// Number of tokens of each sequence that were read.
    pub fn lengths(&self) -> &[i32] {
        &self.lengths
    }

    /// Memory of keys and values in bytes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(Tensor::bytes).sum()
    }
}

impl<'a> Generator<'a> {
    /// Generates with the parameters of `forward`, as constants and in evaluation mode.
    pub fn new(forward: &Forward<'a>, model: &'a Language) -> Self {
        Self { forward: forward.without_gradients(), model, images: &[] }
    }

    /// Continues prompts with these images, one item for each prompt of a batch, in their order.
    pub fn with_images(self, images: &'a [Images<'a>]) -> Self {
        Self { images, ..self }
    }

    /// Integers on the device.
    fn integers(&self, values: &[i32], shape: &[usize]) -> Result<Tensor> {
        Tensor::from_slice(values, shape).to_device(self.forward.device())
    }

    /// Logits for hidden states [B, 1, H], as f32 [B, V].
    fn logits(&self, states: &Var) -> Result<Tensor> {
        let logits = self.model.decoder.logits_of(&self.forward, states)?;
        let logits = logits.reshape(&[logits.shape()[0], logits.value().width()]);
        match (logits.value().dtype(), logits.value().device()) {
            (Dtype::F32, _) => Ok(logits.value().clone()),
            (_, Device::Cpu) => Ok(logits.value().to_dtype(Dtype::F32)),
            _ => Ok(self.forward.apply(Cast(Dtype::F32), &[&logits])?.value().clone()),
        }
    }

    /// Errors: 65 for an id that is not in the vocabulary.
    fn require_ids(&self, ids: &[i32]) -> Result<()> {
        let is_known = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < self.model.vocabulary);
        match ids.iter().find(|id| !is_known(id)) {
            None => Ok(()),
            Some(id) => Err(Error::data(format!(
                "token {id} is not in the vocabulary of the model, which has {} tokens",
                self.model.vocabulary
            ))),
        }
    }

    /// Errors: 78 if sequences of `capacity` tokens are longer than the model allows.
    fn require_room(&self, longest: usize, capacity: usize) -> Result<()> {
        if longest.max(capacity) <= self.model.longest {
            return Ok(());
        }
        Err(Error::config(format!(
            "a prompt of {longest} tokens with its continuation takes up to {} tokens, but max_position_embeddings of the \
             model is {}; generate fewer tokens or use shorter prompts",
            longest.max(capacity),
            self.model.longest
        )))
    }
}

impl generate::Decoder for Generator<'_> {
    type Cache = Cache;

    fn prefill(&self, prompts: &[&[i32]], capacity: usize) -> Result<(Cache, Tensor)> {
        let (batch, forward) = (prompts.len(), &self.forward);
        let tokens = prompts.iter().map(|ids| ids.len()).max().unwrap_or(0);
        if prompts.iter().any(|ids| ids.is_empty()) || batch == 0 {
            return Err(Error::bug("a prompt without tokens, or no prompt"));
        }
        self.require_room(tokens, capacity)?;
        let capacity = capacity.max(tokens);
        if !self.images.is_empty() && self.images.len() != batch {
            let own = self.images.len();
            return Err(Error::bug(format!("images of {own} prompts for {batch}")));
        }
        let (mut sequences, mut last) = (Vec::new(), Vec::new());
        for (row, ids) in prompts.iter().enumerate() {
            self.require_ids(ids)?;
            let images = self.images.get(row).copied().unwrap_or_default();
            sequences.push(Labelled { ids, counted: &[], images });
            last.push((row * tokens + ids.len() - 1) as i32);
        }
        let lengths: Vec<i32> = prompts.iter().map(|ids| ids.len() as i32).collect();
        let dtype = float_of(forward);
        let (padded, next) = self.model.layout.padded(&sequences, 1, dtype)?;
        let inputs = self.model.inputs(forward, &padded.to_device(forward.device())?)?;
        let zeros = self.integers(&vec![0; batch], &[batch])?;
        let mut layers = Vec::new();
        let states = self.model.decoder.states_with(forward, &inputs, |_, layer, qkv| {
            let mut own = [&qkv[1], &qkv[2]].map(|x| {
                let x = x.value();
                Tensor::empty_on(x.device(), &[batch, capacity, x.width()], x.dtype())
            });
            for (cache, x) in own.iter_mut().zip(&qkv[1..]) {
                append(x.value(), &zeros, inputs.lengths.value(), cache)?;
            }
            layers.push(own);
            layer.attend(forward, &qkv, &inputs.lengths)
        })?;
        let states = states.value();
        let rows = states.reshape(&[batch * tokens, states.width()]);
        let last = gather(&rows, &self.integers(&last, &[batch, 1])?)?;
        let logits = self.logits(&constant(last))?;
        let ones = self.integers(&vec![1; batch], &[batch])?;
        let positions: Vec<i32> = (0..capacity as i32).collect();
        let angles = self.model.layout.rope.table(&positions, dtype).to_device(forward.device())?;
        let offsets = next.iter().zip(&lengths).map(|(next, length)| next - length).collect();
        Ok((Cache { layers, lengths, offsets, angles, ones }, logits))
    }

    fn step(&self, cache: &mut Cache, tokens: &[i32]) -> Result<Tensor> {
        let (batch, forward) = (cache.lengths.len(), &self.forward);
        let capacity = cache.angles.shape()[0];
        let is_full = cache.lengths.iter().any(|length| *length as usize >= capacity);
        if tokens.len() != batch || is_full {
            let (count, lengths) = (tokens.len(), &cache.lengths);
            return Err(Error::bug(format!(
                "{count} tokens for sequences of {lengths:?} tokens in a cache for {capacity}"
            )));
        }
        self.require_ids(tokens)?;
        let ids = constant(self.integers(tokens, &[batch, 1])?);
        let start = self.integers(&cache.lengths, &[batch])?;
        let places =
            cache.lengths.iter().zip(&cache.offsets).map(|(length, offset)| length + offset);
        let places = self.integers(&places.collect::<Vec<_>>(), &[batch, 1])?;
        cache.lengths.iter_mut().for_each(|length| *length += 1);
        let lengths = constant(self.integers(&cache.lengths, &[batch])?);
        let angles = constant(gather(&cache.angles, &places)?);
        let Cache { layers, ones, .. } = cache;
        let decoder = &self.model.decoder;
        let inputs = decoder.inputs(forward, &Sequences { ids, angles, lengths })?;
        let states = decoder.states_with(forward, &inputs, |number, layer, [q, k, v]| {
            let own = &mut layers[number];
            for (cache, x) in own.iter_mut().zip([&k, &v]) {
                append(x.value(), &start, ones, cache)?;
            }
            let [keys, values] = own.each_ref().map(|x| constant(x.clone()));
            layer.attend_cached(forward, &q, [&keys, &values], &inputs.lengths)
        })?;
        self.logits(&states)
    }

    fn keep(&self, cache: &mut Cache, rows: &[usize]) -> Result<()> {
        let batch = cache.lengths.len();
        if let Some(row) = rows.iter().find(|row| **row >= batch) {
            return Err(Error::bug(format!("sequence {row} of {batch} in a cache")));
        }
        let index: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
        let index = self.integers(&index, &[rows.len()])?;
        for x in cache.layers.iter_mut().flatten() {
            let [_, capacity, width] = [0, 1, 2].map(|axis| x.shape()[axis]);
            let kept = gather(&x.reshape(&[batch, capacity * width]), &index)?;
            *x = kept.reshape(&[rows.len(), capacity, width]);
        }
        for own in [&mut cache.lengths, &mut cache.offsets] {
            *own = rows.iter().map(|row| own[*row]).collect();
        }
        cache.ones = self.integers(&vec![1; rows.len()], &[rows.len()])?;
        Ok(())
    }
}
