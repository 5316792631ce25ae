//! Forward and backward passes captured as CUDA graphs (`training.compile`): a pass whose shapes and variant
//! ([`Batch::variant`]) equal those of an earlier one is captured, and later passes replay it with new values.
//!
//! Graphs are replayed one after another, so they share the memory of activations and, from the second graph on, that
//! of gradients.

use super::gradients::Sink;
use super::learner::Learner;
use super::numerics::Numerics;
use crate::task::{Batch, Task};
use tensor::kernel::{Graph, LentMemory};
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// Context needed to compute a forward and backward pass.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    pub task: &'a dyn Task,
    pub learner: &'a Learner,
    pub numerics: &'a Numerics,
}

/// Maximum number of graphs. When it is exceeded, the one that was not used for the longest time is dropped.
const MOST: usize = 16;

/// Properties that distinguish graphs.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    inputs: Vec<(Vec<usize>, Dtype)>,
    variant: u32,
    /// Which blocks keep their activations; None until this has been decided.
    plan: Option<Vec<bool>>,
}

/// Storage IDs of tensors that every graph depends on.
#[derive(Debug, Default, PartialEq)]
struct State {
    /// Parameters. Updates change them in place, but a rewind creates new tensors.
    params: Vec<usize>,
    loss_scale: usize,
}

struct Recorded {
    graph: Graph,
    /// Addresses of the gradient buffers at the time of capture.
    buffers: Vec<u64>,
    /// Gradients completed by each segment: parameter index and location of the gradient.
    segments: Vec<Vec<(usize, GradientPlace)>>,
    /// Number of graph outputs that belong to the loss; the remaining outputs are gradients.
    losses: usize,
}

/// Location of a gradient in a captured graph.
#[derive(Clone, Copy)]
enum GradientPlace {
    /// In the gradient buffer of its parameter.
    Buffer,
    /// In the graph output with this index.
    Output(usize),
}

/// Holds the captured graphs.
pub struct Compiled {
    enabled: bool,
    state: State,
    /// Graphs, the most recently used last; None after the first pass, which is not captured: it loads kernels, copies
    /// constants and measures the cost of blocks.
    graphs: Vec<(Key, Option<Recorded>)>,
    /// Gradient buffers of all graphs but the first, for passes to which the exchange lends none.
    gradients: Option<LentMemory>,
}

impl Compiled {
    /// Creates the runner. Graphs are captured if `enabled`, except on the CPU, where they have no benefit.
    pub fn new(enabled: bool, device: Device) -> Self {
        let (enabled, state) = (enabled && device != Device::Cpu, State::default());
        Self { enabled, state, graphs: Vec::new(), gradients: None }
    }

    /// Runs a forward and backward pass: returns the losses like [`Learner::gradients`], and passes each gradient to
    /// `sink` as soon as the work that computes it has been submitted. Unless `keep` is set, the next call overwrites
    /// the results.
    pub fn pass(
        &mut self,
        model: Model,
        batch: Batch,
        keep: bool,
        sink: &mut Sink,
    ) -> Result<Vec<Tensor>> {
        if !self.enabled {
            return model.pass(&batch, keep, sink);
        }
        let Some((key, before)) = self.take(&model, &batch) else {
            return model.pass(&batch, keep, sink);
        };
        let Some(buffers) = self.buffers(model.learner, before.as_ref(), sink)? else {
            self.graphs.push((key, before));
            return model.pass(&batch, keep, sink);
        };
        let mut buffers: Vec<Option<Tensor>> = buffers.into_iter().map(Some).collect();
        let addresses: Vec<u64> = buffers.iter().flatten().map(Tensor::address).collect();
        let mut values: Vec<Tensor> = batch.tensors().cloned().collect();
        let mut recorded = match before {
            Some(recorded) if recorded.buffers == addresses => recorded,
            outdated => {
                drop(outdated);
                // The graph owns the input memory used during capture, so pass copies to `replay`, which writes them
                // into that memory.
                let copies = values.iter().map(Tensor::copied).collect();
                let inputs = std::mem::replace(&mut values, copies);
                let other = self.graphs.iter().find_map(|(_, recorded)| recorded.as_ref());
                let inputs = (inputs, other.map(|other| &other.graph));
                record(model, &batch, inputs, &mut buffers, addresses, sink)?
            }
        };
        drop(batch);
        let own = |t: Tensor| if keep { t.copied() } else { t };
        let outputs = recorded.graph.outputs().to_vec();
        recorded.graph.replay(&values, |segment| {
            for (parameter, place) in recorded.segments.get(segment).into_iter().flatten() {
                let buffer = buffers.get_mut(*parameter).and_then(Option::take);
                let gradient = match place {
                    GradientPlace::Buffer => buffer,
                    GradientPlace::Output(index) => {
                        // The buffer must be free when its bucket is submitted.
                        drop(buffer);
                        outputs.get(*index).cloned()
                    }
                };
                gradient.into_iter().for_each(|gradient| sink.take(*parameter, own(gradient)));
            }
            Ok(())
        })?;
        let losses = outputs.into_iter().take(recorded.losses).map(own).collect();
        self.graphs.push((key, Some(recorded)));
        Ok(losses)
    }

    /// Returns the gradient buffers for a pass: those of the exchange or, for all graphs but the first, those that
    /// graphs share; empty if there are none. None if gradients of the previous pass are still in use.
    fn buffers(
        &mut self,
        learner: &Learner,
        recorded: Option<&Recorded>,
        sink: &mut Sink,
    ) -> Result<Option<Vec<Tensor>>> {
        let given = sink.buffers()?;
        let is_first = match recorded {
            Some(recorded) => recorded.buffers.is_empty(),
            None => self.graphs.iter().all(|(_, recorded)| recorded.is_none()),
        };
        if is_first || !given.is_empty() {
            return Ok(Some(given));
        }
        let memory = self.gradients.get_or_insert_with(|| {
            let params = &learner.params.trained;
            let shapes = params.tensors().map(|t| t.shape().to_vec()).collect();
            LentMemory::uninitialized(params.device(), Dtype::F32, shapes)
        });
        Ok(memory.lend())
    }

    /// Takes the graph for this batch out of the list, with its key; None if there has been no pass like this before,
    /// which is then noted.
    fn take(&mut self, model: &Model, batch: &Batch) -> Option<(Key, Option<Recorded>)> {
        let learner = model.learner;
        let state = State {
            params: learner.params.trained.tensors().map(Tensor::storage_id).collect(),
            loss_scale: learner.loss_scale().storage_id(),
        };
        if self.state != state {
            (self.state, self.graphs, self.gradients) = (state, Vec::new(), None);
        }
        let key = Key {
            inputs: batch.tensors().map(|t| (t.shape().to_vec(), t.dtype())).collect(),
            variant: batch.variant(),
            plan: model.numerics.recompute.plan_of(batch.variant()).map(|plan| plan.keep),
        };
        match self.graphs.iter().position(|(known, _)| *known == key) {
            Some(at) => Some(self.graphs.remove(at)),
            None => {
                if self.graphs.len() == MOST {
                    self.graphs.remove(0);
                }
                self.graphs.push((key, None));
                None
            }
        }
    }
}

/// Captures a forward and backward pass with the input shapes of `batch`, in segments that end where the sink completes
/// a bucket, in memory that is shared with another graph if there is one. On return, `buffers` holds the tensors into which the gradients are computed.
fn record(
    model: Model,
    batch: &Batch,
    (inputs, other): (Vec<Tensor>, Option<&Graph>),
    buffers: &mut Vec<Option<Tensor>>,
    addresses: Vec<u64>,
    sink: &Sink,
) -> Result<Recorded> {
    let Model { task, learner, numerics } = model;
    let given: Vec<Tensor> = std::mem::take(buffers).into_iter().flatten().collect();
    buffers.resize(given.len(), None);
    let mut is_cut = sink.bucket_boundaries();
    let (mut segments, mut losses) = (vec![Vec::new()], 0);
    let graph = Graph::record_beside(other, learner.params.trained.device(), inputs, |graph| {
        let forward = learner.forward(task, batch, numerics)?;
        let (mut elsewhere, mut cut) = (Vec::new(), Ok(()));
        let numbers = learner.backward(forward, given, |parameter, gradient| {
            let place = match addresses.get(parameter) == Some(&gradient.address()) {
                true => GradientPlace::Buffer,
                false => GradientPlace::Output(elsewhere.len()),
            };
            match place {
                GradientPlace::Buffer => buffers[parameter] = Some(gradient),
                GradientPlace::Output(_) => elsewhere.push(gradient),
            }
            segments.last_mut().into_iter().for_each(|ready| ready.push((parameter, place)));
            if is_cut(parameter) && cut.is_ok() {
                cut = graph.cut();
                segments.push(Vec::new());
            }
        })?;
        cut?;
        losses = numbers.len();
        Ok(numbers.into_iter().chain(elsewhere).collect())
    })?;
    for (_, place) in segments.iter_mut().flatten() {
        if let GradientPlace::Output(index) = place {
            *index += losses;
        }
    }
    Ok(Recorded { graph, buffers: addresses, segments, losses })
}

impl Model<'_> {
    /// Runs a pass without a graph. Buffers are requested as late as possible, because other ranks may still be reading
    /// them.
    fn pass(&self, batch: &Batch, keep: bool, sink: &mut Sink) -> Result<Vec<Tensor>> {
        let forward = self.learner.forward(self.task, batch, self.numerics)?;
        // Gradients that are kept must not lie in a buffer that the next pass overwrites.
        let buffers = if keep { Vec::new() } else { sink.buffers()? };
        self.learner.backward(forward, buffers, |i, gradient| sink.take(i, gradient))
    }
}
