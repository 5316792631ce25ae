//! Forward and backward passes recorded as CUDA graphs (`training.compile`): a pass with the shapes of the previous
//! one is recorded, and later ones replay it with other values.

use super::learner::Learner;
use super::numerics::Numerics;
use crate::task::{Batch, Task};
use tensor::kernel::Graph;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// The properties that a captured graph depends on; it is valid only while they are unchanged.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    inputs: Vec<(Vec<usize>, Dtype)>,
    /// Identities of the parameters and the loss scale. Updates change them in place, but a rewind creates new tensors.
    params: Vec<usize>,
    loss_scale: usize,
    /// Which blocks are recomputed, once that has been decided.
    plan: Option<Vec<bool>>,
}

struct Recorded {
    graph: Graph,
    /// How many of its outputs belong to the loss; the rest are gradients.
    losses: usize,
}

/// The captured graph, if there is one.
pub struct Compiled {
    enabled: bool,
    key: Option<Key>,
    recorded: Option<Recorded>,
}

impl Compiled {
    /// Graphs are captured if `enabled`, except on the CPU, where they have no benefit.
    pub fn new(enabled: bool, device: Device) -> Self {
        Self { enabled: enabled && device != Device::Cpu, key: None, recorded: None }
    }

    /// Whether graphs are captured.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Like [`Learner::gradients`]. Unless `keep` is set, the next call overwrites the results.
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
            // The first pass is not captured: it loads kernels, copies constants and measures blocks.
            (self.key, self.recorded) = (Some(key), None);
            return learner.gradients(task, &batch, numerics);
        }
        let mut values: Vec<Tensor> = batch.tensors().cloned().collect();
        let recorded = match &mut self.recorded {
            Some(recorded) => recorded,
            none => {
                // The graph owns the memory that the recording reads; these values are copied there like any others.
                let copies = values.iter().map(Tensor::copied).collect();
                let (inputs, mut losses) = (std::mem::replace(&mut values, copies), 0);
                let graph = Graph::record(learner.params.trained.device(), inputs, || {
                    let (numbers, gradients) = learner.gradients(task, &batch, numerics)?;
                    losses = numbers.len();
                    Ok(numbers.into_iter().chain(gradients).collect())
                })?;
                none.insert(Recorded { graph, losses })
            }
        };
        drop(batch);
        let (losses, gradients) = recorded.graph.replay(&values)?.split_at(recorded.losses);
        let own = |t: &Tensor| if keep { t.copied() } else { t.clone() };
        Ok((losses.iter().map(own).collect(), gradients.iter().map(own).collect()))
    }
}
