//! Losses of several parts with denominators of their own, e.g. a text part per masked token and a latent part per
//! sample.
//!
//! The loss of an update is Σ_p f_p·(Σ S_p)/(Σ W_p): S_p and W_p are the sum and the weight of part p in a batch, added
//! up over all micro-batches and ranks of the update, and f_p is the factor of the part. The engine divides by the sum
//! N of [`Batch::weight`], so each batch hands f_p·N/W_p to its loss, with the totals of the update. A part without
//! weight in the update contributes nothing.

use super::{Batch, Loss, Term};
use crate::forward::Forward;
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::narrow::Narrow;
use tensor::ops::reduce::Reduce;
use tensor::{Device, Tensor, Var};
use unix::{Error, Result};

/// A part of a loss, declared by the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the part, and of its mean in the log.
    pub name: String,
    /// Sum of the weights in this batch, the batch's share of the part's denominator. At least 0.
    pub weight: f64,
    /// Factor of the part in the total loss, 1 by default. It is data, so it may change with every update.
    pub factor: f64,
}

impl Part {
    /// Creates a part with factor 1.
    pub fn new(name: impl Into<String>, weight: f64) -> Self {
        Self { name: name.into(), weight, factor: 1.0 }
    }

    /// Sets the factor.
    #[must_use]
    pub fn times(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }
}

/// The parts of a batch. The tensors are f32 \[parts\]; as inputs of a captured graph they may differ between replays.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub all: Vec<Part>,
    pub weights: Tensor,
    /// The factor of each part's sum in the loss of the batch.
    pub scales: Tensor,
}

impl Parts {
    /// Creates the parts of a batch with weight `total`, scaled as if the batch were the whole update.
    pub fn new(all: Vec<Part>, total: f64) -> Self {
        let weights: Vec<f32> = all.iter().map(|part| part.weight as f32).collect();
        let own: Vec<f64> = all.iter().map(|part| part.weight).collect();
        let scales = scales(&all, total, &own);
        let [weights, scales] =
            [weights, scales].map(|values| Tensor::from_slice(&values, &[values.len()]));
        Self { all, weights, scales }
    }

    pub fn to_device(&self, device: Device) -> Result<Self> {
        let (weights, scales) = (self.weights.to_device(device)?, self.scales.to_device(device)?);
        Ok(Self { all: self.all.clone(), weights, scales })
    }
}

/// Returns f_p·N/W_p for the `total` N and the weights W of an update; 0 for a part without weight.
pub(super) fn scales(parts: &[Part], total: f64, weights: &[f64]) -> Vec<f32> {
    let scale = |(part, weight): (&Part, &f64)| match *weight > 0.0 {
        true => (part.factor * (total / weight)) as f32,
        false => 0.0,
    };
    parts.iter().zip(weights).map(scale).collect()
}

impl Loss {
    /// Creates the loss of a batch [with parts](Batch::with_parts) from the sum S_p of each, f32 [1]. The log gets the
    /// mean ΣS_p/ΣW_p of every part under its name. Sums must be finite even where the weight is 0; parts without
    /// weight in this batch may be left out. Errors: a bug if the batch declares no such part, or if a part with weight
    /// has no sum.
    pub fn of_parts(forward: &Forward, batch: &Batch, sums: &[(&str, &Var)]) -> Result<Self> {
        let Some(Parts { all, weights, scales }) = &batch.parts else {
            return Err(Error::bug("the loss has parts, but the batch declares none"));
        };
        if let Some((name, _)) = sums.iter().find(|(name, _)| all.iter().all(|p| p.name != *name)) {
            return Err(Error::bug(format!("the batch declares no part {name:?} of the loss")));
        }
        let (weights, scales) = (forward.constant(weights)?, forward.constant(scales)?);
        let (mut found, mut terms) = (Vec::new(), Vec::new());
        for (i, part) in all.iter().enumerate() {
            let sum = match sums.iter().find(|(name, _)| part.name == *name) {
                Some((_, sum)) => (*sum).clone(),
                None if part.weight > 0.0 => {
                    let Part { name, weight, .. } = part;
                    let text = format!("the loss lacks its part {name:?}, of weight {weight}");
                    return Err(Error::bug(text));
                }
                None => forward.full(&[1], 0.0)?,
            };
            let narrow = Narrow { axis: 0, start: i, length: 1 };
            let weight = forward.apply(narrow, &[&weights])?.value().clone();
            let (name, value) = (part.name.clone(), sum.value().clone());
            terms.push(Term { name, sum: value, weight: Some(weight) });
            found.push(sum);
        }
        let sums = forward.apply(Concat { axis: 0 }, &found.iter().collect::<Vec<_>>())?;
        let scaled = forward.apply(Binary::Multiply, &[&sums, &scales])?;
        Ok(Self { sum: forward.apply(Reduce::Sum(0), &[&scaled])?, terms })
    }
}
