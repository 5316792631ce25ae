//! Passes recorded as graphs (`training.compile`): on a device a pass whose shapes are those of the pass
//! before is recorded, and from then on done again with other values.

use super::learner::Learner;
use super::numerics::Numerics;
use crate::task::{Batch, Task};
use tensor::kernel::Graph;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// What must be the same for a recording to be right.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    inputs: Vec<(Vec<usize>, Dtype)>,
    /// Where the parameters and the scale of the loss are: they change in place, and are elsewhere after a
    /// rewind.
    params: Vec<usize>,
    loss_scale: usize,
    /// A plan of what is computed again, once it is made.
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

    /// Gives the memory of the recording back, for a pass that is made without; the next one is recorded
    /// again.
    pub fn forget(&mut self) {
        self.recorded = None;
    }

    /// [`Learner::gradients`]. The results are in memory that the next call overwrites, unless `keep`.
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
            params: learner.params.tensors().map(Tensor::identity).collect(),
            loss_scale: learner.loss_scale().identity(),
            plan: numerics.recompute.plan().map(|plan| plan.keep),
        };
        if self.key.as_ref() != Some(&key) {
            // Once as it is: kernels are loaded, constants copied, and blocks measured.
            (self.key, self.recorded) = (Some(key), None);
            return learner.gradients(task, &batch, numerics);
        }
        let recorded = match &mut self.recorded {
            Some(recorded) => {
                for (to, from) in recorded.batch.tensors().zip(batch.tensors()) {
                    to.overwrite(from);
                }
                recorded.batch.weight().overwrite(batch.weight());
                recorded
            }
            none => {
                let (graph, (losses, gradients)) = Graph::record(learner.params.device(), || {
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
