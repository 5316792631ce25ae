//! CUDA graphs: work recorded once and replayed in one call.
//!
//! A short kernel finishes before the host has launched the next one; a graph avoids the launch overhead. The addresses
//! in a recording are fixed, so a graph allocates from a private pool that is not used elsewhere while the graph
//! exists. A replay first overwrites the inputs, of which the graph is the only owner.
//!
//! A graph consists of segments, submitted one after another, so that other work can start in between: gradients are
//! all-reduced while the rest of the backward pass runs.

use super::{Grid, Source, Value, backend, cuda, memory, state};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::sync::{Arc, PoisonError, RwLock};
use unix::{Error, Result};

/// Write-locked while a graph is recorded: on a GPU everything submitted to its stream becomes part of the graph,
/// regardless of the submitting thread.
static RECORDING: RwLock<()> = RwLock::new(());

thread_local! {
    /// Operations that this thread has recorded for the emulator, by segment.
    static STEPS: RefCell<Option<Vec<Vec<StreamOp>>>> = const { RefCell::new(None) };
    /// Tensors that this thread's recording reads but that were created before it.
    static HELD: RefCell<Vec<Tensor>> = const { RefCell::new(Vec::new()) };
}

/// An operation that the emulator performs in stream order.
#[derive(Debug)]
pub(super) enum StreamOp {
    Launch(&'static Source, Dtype, &'static str, Grid, Vec<Value>),
    Copy { to: u64, from: u64, bytes: usize },
    Zero { address: u64, bytes: usize },
}

#[derive(Debug)]
enum Segment {
    Cuda(cuda::Graph),
    Emu(Vec<StreamOp>),
}

/// Splits the work being recorded into segments.
pub struct Segments<'a>(Option<&'a mut cuda::Capture>);

impl Segments<'_> {
    /// Ends the current segment. Errors: part of it failed.
    pub fn cut(&mut self) -> Result<()> {
        STEPS.with_borrow_mut(|steps| steps.iter_mut().for_each(|steps| steps.push(Vec::new())));
        self.0.as_mut().map_or(Ok(()), |capture| capture.cut())
    }
}

/// Recorded work.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    segments: Vec<Segment>,
    /// Tensors that a replay overwrites; `outputs` are the tensors that it computes.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Constants read by the graph that were created before the recording.
    _held: Vec<Tensor>,
    /// Dropped last: this releases the memory for other uses, once no other graph shares it.
    graph_pool: Arc<memory::GraphPool>,
}

/// Runs a transfer between host and device while no graph is being recorded. Errors: this thread is recording, and a
/// graph cannot contain such a transfer.
pub(super) fn outside<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    if memory::GraphPool::is_active() {
        return Err(Error::bug(
            "values are copied between host and device while a graph is recorded",
        ));
    }
    let _shared = RECORDING.read().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// If this thread is recording, makes the recording keep the memory of a tensor alive.
pub(super) fn hold(tensor: &Tensor) {
    if memory::GraphPool::is_active() {
        HELD.with_borrow_mut(|held| held.push(tensor.clone()));
    }
}

/// If this thread is recording for the emulator, records a step; returns whether the step was recorded.
pub(super) fn keep(step: impl FnOnce() -> StreamOp) -> bool {
    STEPS.with_borrow_mut(|steps| match steps {
        Some(segments) => segments.last_mut().is_some_and(|steps| {
            steps.push(step());
            true
        }),
        None => false,
    })
}

impl Graph {
    /// Records what `work` submits to `device`, without executing it. `inputs` are the tensors read by `work` that
    /// differ between replays. `work` must have run once before, so that all kernels are loaded. Errors: `work`
    /// transferred values between host and device, or failed.
    pub fn record(
        device: Device,
        inputs: Vec<Tensor>,
        work: impl FnOnce(&mut Segments) -> Result<Vec<Tensor>>,
    ) -> Result<Graph> {
        Self::record_beside(None, device, inputs, work)
    }

    /// Like [`Graph::record`], in memory that is shared with a graph `other` of the same device: each overwrites the
    /// intermediate values of the other, but not its inputs and outputs.
    pub fn record_beside(
        other: Option<&Graph>,
        device: Device,
        inputs: Vec<Tensor>,
        work: impl FnOnce(&mut Segments) -> Result<Vec<Tensor>>,
    ) -> Result<Graph> {
        // An output that shares memory with an input would prevent the graph from being the only owner of that input.
        let apart = |made: Tensor| {
            let is_input = inputs.iter().any(|input| input.storage_id() == made.storage_id());
            if is_input { made.copied() } else { made }
        };
        let work = |capture: Option<&mut cuda::Capture>| {
            let made = work(&mut Segments(capture))?;
            Ok::<Vec<Tensor>, Error>(made.into_iter().map(apart).collect())
        };
        let _alone = RECORDING.write().unwrap_or_else(PoisonError::into_inner);
        let graph_pool = match other.filter(|other| other.device == device) {
            Some(other) => Arc::clone(&other.graph_pool),
            None => Arc::new(memory::GraphPool::new(device)),
        };
        let entered = graph_pool.enter();
        let (segments, made) = match device {
            Device::Cpu => return Err(Error::bug("graphs cannot be recorded on the host")),
            Device::Cuda(n) => {
                let (graphs, made) = cuda::Gpu::open(n)?.capture(|capture| work(Some(capture)))?;
                (graphs.into_iter().map(Segment::Cuda).collect(), made)
            }
            Device::Emu => {
                STEPS.set(Some(vec![Vec::new()]));
                let made = work(None);
                let steps = STEPS.take().unwrap_or_default();
                (steps.into_iter().map(Segment::Emu).collect(), made)
            }
        };
        drop(entered);
        let held = HELD.take();
        state::finish(device)?;
        Ok(Graph { device, segments, inputs, outputs: made?, _held: held, graph_pool })
    }

    /// Device memory used by the graph, and by those that share it, in bytes.
    pub fn bytes(&self) -> usize {
        self.graph_pool.bytes()
    }

    /// Outputs of a replay, in memory that the next replay overwrites.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// Replays the graph once with these values of the inputs; calls `submitted` after each segment with its number.
    /// Errors: a bug if the inputs do not match the recorded ones, or if a recorded input is shared; errors of
    /// `submitted`.
    pub fn replay<'a>(
        &mut self,
        inputs: impl IntoIterator<Item = &'a Tensor>,
        mut submitted: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let mut given = inputs.into_iter();
        for own in &mut self.inputs {
            let Some(from) = given.next().filter(|from| own.is_like(from)) else {
                return Err(Error::bug(format!("graph input {own:?} is missing or differs")));
            };
            if !own.is_unique() {
                return Err(Error::bug(format!("graph input {own:?} is shared")));
            }
            own.assign(from);
        }
        for (number, segment) in self.segments.iter().enumerate() {
            state::run(self.device, || match segment {
                Segment::Cuda(graph) => graph.replay(),
                Segment::Emu(steps) => steps.iter().try_for_each(|step| match step {
                    StreamOp::Launch(source, element, kernel, grid, values) => {
                        backend::launch(self.device, source, *element, kernel, *grid, values)
                    }
                    StreamOp::Copy { to, from, bytes } => {
                        backend::copy(self.device, *to, *from, *bytes)
                    }
                    StreamOp::Zero { address, bytes } => {
                        backend::zero(self.device, *address, *bytes)
                    }
                }),
            });
            submitted(number)?;
        }
        Ok(())
    }
}
