//! The parts of the memory of an update, as an estimate for absent GPUs prints them.

use serde::Serialize;
use serde_json::{Map, Value};

/// Bytes of memory on each GPU during an update.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryParts {
    /// Parameters as they are stored.
    pub parameters: f64,
    /// Parameters in the 16-bit type of `training.amp`.
    pub copies: f64,
    /// Gradients.
    pub gradients: f64,
    /// State of the optimizer.
    pub optimizer: f64,
    /// Moving average (`training.ema`).
    pub average: f64,
    /// What the forward pass keeps for the backward pass; inputs of recomputed blocks are among it.
    pub activations: f64,
    /// The shares of `activations` that the model names ([`crate::forward::Forward::part`]), in order.
    pub activations_by_part: Map<String, Value>,
    /// What a block keeps while it is computed again (`training.mem_budget`); that of the largest one.
    pub block: f64,
    /// The logits of some rows of a large vocabulary.
    pub logits: f64,
    /// The largest inputs and outputs of an op, whose gradients exist at the same time, and the largest frozen weight, which
    /// is dequantised for a product.
    pub workspace: f64,
    /// The driver's own.
    pub context: f64,
}

impl MemoryParts {
    /// The parts with their names.
    pub fn each(&self) -> [(&'static str, f64); 10] {
        [
            ("parameters", self.parameters),
            ("16-bit copies", self.copies),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("average", self.average),
            ("activations", self.activations),
            ("one block", self.block),
            ("logits", self.logits),
            ("workspace", self.workspace),
            ("driver", self.context),
        ]
    }
}
