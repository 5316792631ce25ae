//! A micro-batch of named tensors with its weight, and the model's predictions for it.

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
    weight: Tensor,
    counter: Tensor,
}

impl Batch {
    /// Creates a batch whose sample weights sum to `weight`, e.g. the number of samples or of tokens.
    pub fn new(weight: f64) -> Self {
        let (weight, counter) =
            (Tensor::from_slice(&[weight as f32], &[1]), Tensor::from_slice(&[0i32; 4], &[4]));
        Self { tensors: Vec::new(), weight, counter }
    }

    /// Sets the dropout counter for a run with `seed`, given the index of the micro-batch and the index `first` of the
    /// batch's first sample within it.
    pub(crate) fn with_counter(mut self, seed: u64, micro_batch: u64, first: u64) -> Self {
        let key = Philox::new(seed, Purpose::Dropout).key();
        let counter = [key[0], key[1], micro_batch as u32, first as u32].map(u32::cast_signed);
        self.counter = Tensor::from_slice(&counter, &[4]);
        self
    }

    /// Replaces the sum of the sample weights.
    #[must_use]
    pub fn weighing(mut self, weight: f64) -> Self {
        self.weight = Tensor::from_slice(&[weight as f32], &[1]);
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

    /// All tensors: first the named ones in insertion order, then weight and counter.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().map(|(_, tensor)| tensor).chain([&self.weight, &self.counter])
    }

    /// Moves the batch to `device`.
    pub fn to_device(self, device: Device) -> Result<Self> {
        let tensors = to_device(&self.tensors, device)?;
        let (weight, counter) = (self.weight.to_device(device)?, self.counter.to_device(device)?);
        Ok(Self { tensors, weight, counter })
    }
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
