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
    /// How many of its outputs are numbers of the loss; the rest are gradients.
    losses: usize,
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
        let mut values: Vec<Tensor> = batch.tensors().chain([batch.weight()]).cloned().collect();
        let recorded = match &mut self.recorded {
            Some(recorded) => recorded,
            none => {
                // What the recording reads is the graph's alone: these values are given like any others.
                let copies = values.iter().map(Tensor::copied).collect();
                let (inputs, mut losses) = (std::mem::replace(&mut values, copies), 0);
                let graph = Graph::record(learner.params.device(), inputs, || {
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
