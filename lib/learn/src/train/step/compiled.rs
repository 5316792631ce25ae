//! Forward and backward passes captured as CUDA graphs (`training.compile`): a pass whose shapes equal those of the
//! previous one is captured, and later passes replay it with new values.

use super::gradients::Sink;
use super::learner::Learner;
use super::numerics::Numerics;
use crate::task::{Batch, Task};
use tensor::kernel::Graph;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// Context needed to compute a forward and backward pass.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    pub task: &'a dyn Task,
    pub learner: &'a Learner,
    pub numerics: &'a Numerics,
}

/// Properties that a captured graph depends on; the graph is valid only while they are unchanged.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    inputs: Vec<(Vec<usize>, Dtype)>,
    /// Storage IDs of the parameters. Updates change them in place, but a rewind creates new tensors.
    params: Vec<usize>,
    loss_scale: usize,
    /// Which blocks keep their activations; None until this has been decided.
    plan: Option<Vec<bool>>,
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

/// Holds the captured graph, if any.
pub struct Compiled {
    enabled: bool,
    key: Option<Key>,
    recorded: Option<Recorded>,
}

impl Compiled {
    /// Creates the runner. Graphs are captured if `enabled`, except on the CPU, where they have no benefit.
    pub fn new(enabled: bool, device: Device) -> Self {
        Self { enabled: enabled && device != Device::Cpu, key: None, recorded: None }
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
        let learner = model.learner;
        let key = Key {
            inputs: batch.tensors().map(|t| (t.shape().to_vec(), t.dtype())).collect(),
            params: learner.params.trained.tensors().map(Tensor::storage_id).collect(),
            loss_scale: learner.loss_scale().storage_id(),
            plan: model.numerics.recompute.plan().map(|plan| plan.keep),
        };
        if self.key.as_ref() != Some(&key) {
            // The first pass is not captured: it loads kernels, copies constants and measures the cost of blocks.
            (self.key, self.recorded) = (Some(key), None);
            return model.pass(&batch, keep, sink);
        }
        let mut buffers: Vec<Option<Tensor>> = sink.buffers()?.into_iter().map(Some).collect();
        let addresses: Vec<u64> = buffers.iter().flatten().map(Tensor::address).collect();
        let mut values: Vec<Tensor> = batch.tensors().cloned().collect();
        let recorded = match &mut self.recorded {
            Some(recorded) if recorded.buffers == addresses => recorded,
            other => {
                // The graph owns the input memory used during capture, so pass copies to `replay`, which writes them
                // into that memory.
                let copies = values.iter().map(Tensor::copied).collect();
                let inputs = std::mem::replace(&mut values, copies);
                *other = None;
                other.insert(record(model, &batch, inputs, &mut buffers, addresses, sink)?)
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
        Ok(outputs.into_iter().take(recorded.losses).map(own).collect())
    }
}

/// Captures a forward and backward pass with the input shapes of `batch`, in segments that end where the sink completes
/// a bucket. On return, `buffers` holds the tensors into which the gradients are computed.
fn record(
    model: Model,
    batch: &Batch,
    inputs: Vec<Tensor>,
    buffers: &mut Vec<Option<Tensor>>,
    addresses: Vec<u64>,
    sink: &Sink,
) -> Result<Recorded> {
    let Model { task, learner, numerics } = model;
    let given: Vec<Tensor> = std::mem::take(buffers).into_iter().flatten().collect();
    buffers.resize(given.len(), None);
    let mut is_cut = sink.bucket_boundaries();
    let (mut segments, mut losses) = (vec![Vec::new()], 0);
    let graph = Graph::record(learner.params.trained.device(), inputs, |graph| {
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
