//! A micro-batch of named tensors with its weight, and the model's predictions for it.

use super::parts::{Part, Parts, scales};
use crate::forward::Forward;
use crate::params::to_device;
use tensor::random::{Philox, Purpose};
use tensor::{Device, Tensor, Var};
use unix::{Error, Result};

/// Input of one forward pass: named tensors, created on the host and used on a device, and the sum of the sample
/// weights.
#[derive(Clone, Debug)]
pub struct Batch {
    tensors: Vec<(String, Tensor)>,
    total: f64,
    weight: Tensor,
    counter: Tensor,
    variant: u32,
    pub(super) parts: Option<Parts>,
}

impl Batch {
    /// Creates a batch whose sample weights sum to `weight`, e.g. the number of samples or of tokens.
    pub fn new(weight: f64) -> Self {
        let counter = Tensor::from_slice(&[0i32; 4], &[4]);
        let (tensors, total, weight) = (Vec::new(), weight, scalar(weight));
        Self { tensors, total, weight, counter, variant: 0, parts: None }
    }

    /// Declares the parts of the loss, for [`Loss::of_parts`](super::Loss::of_parts). All batches of a task must have
    /// the same parts, of which some may have weight 0. The batch's own weight, which must not be 0 in total, remains
    /// the denominator of [terms](super::Term) without a weight: it is best the number of samples.
    #[must_use]
    pub fn with_parts(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.parts = Some(Parts::new(parts.into_iter().collect(), self.total));
        self
    }

    /// Sets the dropout counter for a run with `seed`, given the index of the micro-batch and the index `first` of the
    /// batch's first sample within it.
    pub(crate) fn with_counter(mut self, seed: u64, micro_batch: u64, first: u64) -> Self {
        let key = Philox::new(seed, Purpose::Dropout).key();
        let counter = [key[0], key[1], micro_batch as u32, first as u32].map(u32::cast_signed);
        self.counter = Tensor::from_slice(&counter, &[4]);
        self
    }

    /// Sets the variant of the loss, 0 by default. A loss that branches on anything but the shapes of its batch, e.g.
    /// on a kind of sample, must number the branches here: `training.compile` captures a CUDA graph for each
    /// (shapes, variant). If the terms for the log differ between variants, [`Task::terms`](super::Task::terms) lists
    /// all of them.
    #[must_use]
    pub fn with_variant(mut self, variant: u32) -> Self {
        self.variant = variant;
        self
    }

    /// Variant of the loss.
    pub fn variant(&self) -> u32 {
        self.variant
    }

    /// Replaces the sum of the sample weights.
    #[must_use]
    pub fn weighing(mut self, weight: f64) -> Self {
        (self.total, self.weight) = (weight, scalar(weight));
        self.parts = self.parts.map(|parts| Parts::new(parts.all, weight));
        self
    }

    /// Adds a tensor.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, tensor: Tensor) -> Self {
        self.tensors.push((name.into(), tensor));
        self
    }

    /// Returns tensor `name` as a constant of `forward`. Errors: no such tensor exists, which is a bug in the task.
    pub fn input(&self, forward: &Forward, name: &str) -> Result<Var> {
        let found = self.tensors.iter().find(|(own, _)| own == name);
        let (_, tensor) = found.ok_or_else(|| Error::bug(format!("no `{name}` in a batch")))?;
        forward.constant(tensor)
    }

    /// Tensor names, in insertion order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|(name, _)| name.as_str())
    }

    /// Sum of the sample weights, f32 [1].
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Dropout counter, i32 [4]: the two words of the Philox key, the micro-batch index, and the index of the batch's
    /// first sample within it. It is a tensor so that a captured graph can be replayed with new values.
    pub fn counter(&self) -> &Tensor {
        &self.counter
    }

    /// Parts of the loss; empty if it has only one.
    pub fn parts(&self) -> &[Part] {
        self.parts.as_ref().map_or(&[], |parts| &parts.all)
    }

    /// The sum of the sample weights as it is in [`Batch::weight`], then the weight of each part.
    pub(crate) fn weights(&self) -> impl Iterator<Item = f64> {
        let total = f64::from(self.total as f32);
        std::iter::once(total).chain(self.parts().iter().map(|part| part.weight))
    }

    /// Returns the factor of each part's sum in an update with these total [`Batch::weights`].
    pub(crate) fn scales(&self, totals: &[f64]) -> Vec<f32> {
        totals.split_first().map_or(Vec::new(), |(all, each)| scales(self.parts(), *all, each))
    }

    /// Sets the factor of each part's sum, f32 \[parts\], on the device of the batch.
    pub(crate) fn set_scales(&mut self, scales: Tensor) {
        self.parts.iter_mut().for_each(|parts| parts.scales = scales.clone());
    }

    /// All tensors: first the named ones in insertion order, then weight and counter, and what belongs to parts.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let of_parts = self.parts.iter().flat_map(|parts| [&parts.weights, &parts.scales]);
        let own = [&self.weight, &self.counter].into_iter().chain(of_parts);
        self.tensors.iter().map(|(_, tensor)| tensor).chain(own)
    }

    /// Moves the batch to `device`.
    pub fn to_device(self, device: Device) -> Result<Self> {
        let tensors = to_device(&self.tensors, device)?;
        let (weight, counter) = (self.weight.to_device(device)?, self.counter.to_device(device)?);
        let parts = self.parts.map(|parts| parts.to_device(device)).transpose()?;
        Ok(Self { tensors, weight, counter, parts, ..self })
    }
}

/// A number in f32, [1].
fn scalar(number: f64) -> Tensor {
    Tensor::from_slice(&[number as f32], &[1])
}

/// Predictions of a model for a batch: named f32 arrays on the host, one row per sample.
#[derive(Clone, Debug, Default)]
pub struct Predictions {
    arrays: Vec<(&'static str, usize, Vec<f32>)>,
}

impl Predictions {
    /// Adds an array of shape [samples, `width`].
    #[must_use]
    pub fn with(mut self, name: &'static str, width: usize, values: Vec<f32>) -> Self {
        self.arrays.push((name, width, values));
        self
    }

    /// Returns the rows of array `name`, one per sample. Errors: no such array exists, which is a bug in the task.
    pub fn rows(&self, name: &str) -> Result<std::slice::ChunksExact<'_, f32>> {
        let found = self.arrays.iter().find(|(own, ..)| *own == name);
        let missing = || Error::bug(format!("no `{name}` among the predictions"));
        found.map(|(_, width, values)| values.chunks_exact(*width)).ok_or_else(missing)
    }
}
