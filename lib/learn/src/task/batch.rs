//! One micro-batch: named tensors and what they weigh.

use crate::pass::Pass;
use tensor::{Device, Tensor, Var};
use unix::{Error, Result};

/// What one forward pass needs: named tensors, made on the host and used on a device, and the sum of the
/// weights of their samples.
#[derive(Clone, Debug)]
pub struct Batch {
    tensors: Vec<(String, Tensor)>,
    weight: Tensor,
}

impl Batch {
    /// A batch of samples whose weights add up to `weight`: their number, or that of their tokens.
    pub fn new(weight: f64) -> Self {
        Self { tensors: Vec::new(), weight: Tensor::of(&[weight as f32], &[1]) }
    }

    /// The same batch with one tensor more.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, tensor: Tensor) -> Self {
        self.tensors.push((name.into(), tensor));
        self
    }

    /// A tensor by its name, as a constant of `pass`. Errors: there is none, a bug of the task.
    pub fn input(&self, pass: &Pass, name: &str) -> Result<Var> {
        let found = self.tensors.iter().find(|(own, _)| own == name);
        let (_, tensor) = found.ok_or_else(|| Error::bug(format!("no `{name}` in a batch")))?;
        pass.constant(tensor)
    }

    /// Sum of the weights of its samples, f32 [1].
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// All tensors but the weight, in the order in which they were added.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().map(|(_, tensor)| tensor)
    }

    /// The same batch on `device`.
    pub fn to_device(self, device: Device) -> Result<Self> {
        let moved = |(name, tensor): (String, Tensor)| Ok((name, tensor.to_device(device)?));
        let tensors = self.tensors.into_iter().map(moved).collect::<Result<_>>()?;
        Ok(Self { tensors, weight: self.weight.to_device(device)? })
    }
}
