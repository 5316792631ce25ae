//! What a run does so that it needs less memory than configured (`training.adapt_to_memory`).

use super::step::Trainer;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a run whose device ran out of memory was adapted: stored in every later checkpoint, and so kept by later attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAdaptation {
    /// Whether the samples of a pass are computed in two passes.
    pub halved: bool,
    /// Whether all blocks are recomputed in the backward pass, whatever `training.mem_budget` is.
    pub recomputed: bool,
}

impl MemoryAdaptation {
    /// Whether the run is computed as configured.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns this and `other` together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            halved: self.halved || other.halved,
            recomputed: self.recomputed || other.recomputed,
        }
    }

    /// Returns the next adaptation after `trainer` ran out of memory; None if nothing is left to do.
    pub(super) fn next(self, trainer: &Trainer, mem_budget: f64) -> Option<Self> {
        if !self.halved && trainer.samples_per_pass().is_multiple_of(2) {
            return Some(Self { halved: true, ..self });
        }
        (!self.recomputed && mem_budget > 0.0).then_some(Self { recomputed: true, ..self })
    }
}

impl fmt::Display for MemoryAdaptation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match (self.halved, self.recomputed) {
            (false, false) => "as configured",
            (true, false) => "with passes of half as many samples",
            (false, true) => "with all blocks recomputed",
            (true, true) => "with passes of half as many samples and all blocks recomputed",
        })
    }
}
