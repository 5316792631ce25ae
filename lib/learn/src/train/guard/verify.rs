//! Detects faulty hardware (`training.verify_every`): the same batch and parameters always give bit-identical results.
//! If they do not, a processor or memory is faulty, not the data or the numerics.

use crate::params::Params;
use crate::train::end::{End, Halt};
use crate::train::session::Session;
use crate::train::sync::gather;
use serde::{Deserialize, Serialize};
use tensor::Tensor;
use unix::{Error, Result};

/// Losses and gradients of a batch.
type Computed = (Vec<Tensor>, Vec<Tensor>);

/// Difference between two computations of the same gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::train) struct Mismatch {
    /// First difference: `loss`, or the name of the parameter whose gradient differs.
    pub of: String,
    /// Number of differing gradients.
    pub gradients: usize,
    /// Text on which of the two computations was wrong, according to a third one.
    pub verdict: String,
    /// Device that computed the gradients.
    pub device: String,
}

impl Session<'_> {
    /// Before every `training.verify_every`-th update, with number `update` (from 0), computes the gradients of its
    /// first micro-batch twice. Halts when they differ on any rank.
    pub fn verify_machine(&mut self, update: u64) -> Result<(), Halt> {
        let every = self.job.task.config.training.verify_every;
        if every == 0 || !(update + 1).is_multiple_of(every) {
            return Ok(());
        }
        let ranks = self.job.ranks;
        let own = self.mismatch(update)?;
        for (rank, found) in gather(ranks, own)?.into_iter().enumerate() {
            let Some(mismatch) = found else { continue };
            self.retire(0)?;
            let (update, host) = (update + 1, ranks.host(rank));
            self.reporter.machine(update, rank, &host, &mismatch);
            let by = if ranks.size() > 1 { format!("by rank {rank} ") } else { String::new() };
            let Mismatch { of, gradients, verdict, device } = mismatch;
            let why = format!(
                "machine, not data: update {update} computed twice {by}on {host} ({device}) gave different bits \
                 ({of}, {gradients} gradients), and {verdict}; resume on another machine and have {host} tested"
            );
            return Err(End::Machine(why).into());
        }
        Ok(())
    }

    /// Computes the gradients twice on this rank, and describes the difference if there is one.
    fn mismatch(&self, update: u64) -> Result<Option<Mismatch>> {
        let trainer = &self.trainer;
        let batch = trainer.first_batch(update, self.progress.skipped_samples)?;
        let params = &trainer.learner.params.trained;
        let compute = || trainer.learner.gradients(&*trainer.task, &batch, &trainer.numerics);
        let (first, second) = (compute()?, compute()?);
        let Some((of, gradients)) = difference(params, &first, &second)? else { return Ok(None) };
        let third = compute()?;
        let is = |other: &Computed| Ok::<_, Error>(difference(params, &third, other)?.is_none());
        let verdict = match (is(&first)?, is(&second)?) {
            (true, _) => "a third computation agrees with the first: the second was wrong",
            (_, true) => "a third computation agrees with the second: the first was wrong",
            _ => "a third computation agrees with neither",
        };
        let device = params.device().to_string();
        Ok(Some(Mismatch { of, gradients, verdict: verdict.into(), device }))
    }
}

/// Returns the name of the first difference, and the number of differing gradients.
fn difference(params: &Params, a: &Computed, b: &Computed) -> Result<Option<(String, usize)>> {
    let mut names = Vec::new();
    for ((name, _), (a, b)) in params.entries().iter().zip(a.1.iter().zip(&b.1)) {
        if a.to_host()?.as_bytes() != b.to_host()?.as_bytes() {
            names.push(name);
        }
    }
    // NaNs with identical bits count as equal.
    for (a, b) in a.0.iter().zip(&b.0) {
        if a.to_host()?.as_bytes() != b.to_host()?.as_bytes() {
            return Ok(Some(("loss".into(), names.len())));
        }
    }
    Ok(names.first().map(|name| ((*name).clone(), names.len())))
}
