//! Denominators of the parts of a loss ([`crate::task::Part`]): the sums over all micro-batches and ranks of an update,
//! which every batch needs before its backward pass.

use super::Trainer;
use crate::task::Batch;
use dist::Collective;
use std::collections::VecDeque;
use std::time::Duration;
use tensor::{Device, Tensor};
use unix::{Error, Result};

/// Batches of an update that were taken from the loader ahead of their passes.
#[derive(Default)]
pub struct AheadBatches(VecDeque<Batch>);

impl AheadBatches {
    /// Returns the batch of the next of `passes` passes of an update, and the time spent waiting for the loader. If the
    /// loss has parts, the first call takes all batches of the update and adds up their weights over ranks.
    pub fn next(
        &mut self,
        trainer: &mut Trainer,
        (update, skipped): (u64, u64),
        passes: u64,
    ) -> Result<(Batch, Duration)> {
        if let Some(batch) = self.0.pop_front() {
            return Ok((batch, Duration::ZERO));
        }
        let (first, mut waited) = trainer.next_batch(update, skipped)?;
        if first.parts().is_empty() {
            return Ok((first, waited));
        }
        let mut batches = vec![first];
        for _ in 1..passes {
            let (batch, stall) = trainer.next_batch(update, skipped)?;
            batches.push(batch);
            waited += stall;
        }
        set_scales(&mut batches, trainer.ranks, trainer.device)?;
        self.0 = batches.into();
        let first = self.0.pop_front().ok_or_else(|| Error::bug("an update without batches"))?;
        Ok((first, waited))
    }
}

/// Sets the scales of the parts in this rank's batches of an update. A collective call.
fn set_scales(batches: &mut [Batch], ranks: &dyn Collective, device: Device) -> Result<()> {
    let totals = total_weights(batches, ranks)?;
    // Factors seldom differ within an update, so one upload serves all micro-batches.
    let mut last: Option<(Vec<f32>, Tensor)> = None;
    for batch in batches {
        let scales = batch.scales(&totals);
        let tensor = match last.take().filter(|(same, _)| *same == scales) {
            Some((_, tensor)) => tensor,
            None => Tensor::from_slice(&scales, &[scales.len()]).to_device(device)?,
        };
        batch.set_scales(tensor.clone());
        last = Some((scales, tensor));
    }
    Ok(())
}

/// Returns the sum of [`Batch::weights`] over all batches of an update. It is added up in the order of the slices, so
/// it has the same bits on every rank, and with `training.deterministic` for every number of ranks.
fn total_weights(batches: &[Batch], ranks: &dyn Collective) -> Result<Vec<f64>> {
    let names = |batch: &Batch| batch.parts().iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    let parts = batches.first().map(names).unwrap_or_default();
    for batch in batches {
        if names(batch) != parts {
            return Err(Error::bug("the parts of the loss changed between batches"));
        }
        let is_weight = |weight: f64| weight.is_finite() && weight >= 0.0;
        if let Some(part) = batch.parts().iter().find(|part| !is_weight(part.weight)) {
            return Err(Error::bug(format!(
                "part {:?} of the loss has weight {}, must be finite and at least 0",
                part.name, part.weight
            )));
        }
    }
    let own: Vec<u8> = batches.iter().flat_map(Batch::weights).flat_map(f64::to_le_bytes).collect();
    let mut totals = vec![0.0; parts.len() + 1];
    for bytes in ranks.all_gather_bytes(&own)? {
        if bytes.len() != own.len() {
            return Err(Error::bug("the parts of the loss differ between ranks"));
        }
        for (i, weight) in bytes.as_chunks().0.iter().enumerate() {
            totals[i % (parts.len() + 1)] += f64::from_le_bytes(*weight);
        }
    }
    Ok(totals)
}
