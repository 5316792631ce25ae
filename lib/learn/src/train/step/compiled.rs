//! Forward and backward passes recorded as CUDA graphs (`training.compile`): a pass with the shapes of the previous
//! one is recorded, and later ones replay it with other values.

use super::learner::Learner;
use super::numerics::Numerics;
use crate::task::{Batch, Task};
use tensor::kernel::Graph;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// What must be unchanged for a recording to be valid.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    inputs: Vec<(Vec<usize>, Dtype)>,
    /// Identities of the parameters and of the loss scale: updates change them in place; after a rewind they are other
    /// tensors.
    params: Vec<usize>,
    loss_scale: usize,
    /// Which blocks are recomputed, once that is decided.
    plan: Option<Vec<bool>>,
}

struct Recorded {
    graph: Graph,
    batch: Batch,
    losses: Vec<Tensor>,
    gradients: Vec<Tensor>,
}

/// The recording, when there is one.
pub struct Compiled {
    enabled: bool,
    key: Option<Key>,
    recorded: Option<Recorded>,
}

impl Compiled {
    /// Recordings are made where asked for, on devices that gain by it.
    pub fn new(enabled: bool, device: Device) -> Self {
        Self { enabled: enabled && device != Device::Cpu, key: None, recorded: None }
    }

    /// Whether passes are recorded.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// [`Learner::gradients`]. Unless `keep`, the next call overwrites the results.
    pub fn gradients(
        &mut self,
        task: &dyn Task,
        learner: &Learner,
        batch: Batch,
        numerics: &Numerics,
        keep: bool,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        if !self.enabled {
            return learner.gradients(task, &batch, numerics);
        }
        let key = Key {
            inputs: batch.tensors().map(|t| (t.shape().to_vec(), t.dtype())).collect(),
            params: learner.params.trained.tensors().map(Tensor::identity).collect(),
            loss_scale: learner.loss_scale().identity(),
            plan: numerics.recompute.plan().map(|plan| plan.keep),
        };
        if self.key.as_ref() != Some(&key) {
            // The first pass is not recorded: it loads kernels, copies constants and measures blocks.
            (self.key, self.recorded) = (Some(key), None);
            return learner.gradients(task, &batch, numerics);
        }
        let recorded = match &mut self.recorded {
            Some(recorded) => {
                for (to, from) in recorded.batch.tensors().zip(batch.tensors()) {
                    to.overwrite(from);
                }
                recorded
            }
            none => {
                let (graph, (losses, gradients)) =
                    Graph::record(learner.params.trained.device(), || {
                        learner.gradients(task, &batch, numerics)
                    })?;
                none.insert(Recorded { graph, batch, losses, gradients })
            }
        };
        recorded.graph.replay();
        let own = |t: &Tensor| if keep { t.copied() } else { t.clone() };
        let all = |tensors: &[Tensor]| tensors.iter().map(own).collect();
        Ok((all(&recorded.losses), all(&recorded.gradients)))
    }
}
