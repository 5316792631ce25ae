//! Work recorded once and done again in one call.
//!
//! A short kernel is over before the next one is launched from the host; a graph takes the launches off
//! it. A recording has fixed addresses: what it works on lives in memory of its own, which nobody else is
//! given as long as the graph lives, and a replay first overwrites the inputs, which the graph alone holds.

use super::{Grid, Source, Value, backend, cuda, memory, state};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::sync::{PoisonError, RwLock};
use unix::{Error, Result};

/// Held for writing while a graph is recorded: on a GPU everything that is given to its stream becomes
/// part of it, whichever thread gives it.
static RECORDING: RwLock<()> = RwLock::new(());

thread_local! {
    /// What this thread is recording for the emulator.
    static STEPS: RefCell<Option<Vec<Step>>> = const { RefCell::new(None) };
    /// What the recording of this thread reads of what was there before.
    static HELD: RefCell<Vec<Tensor>> = const { RefCell::new(Vec::new()) };
}

/// Something that the emulator does in the order of launches.
#[derive(Debug)]
pub(super) enum Step {
    Launch(&'static Source, Dtype, &'static str, Grid, Vec<Value>),
    Copy { to: u64, from: u64, bytes: usize },
    Zero { address: u64, bytes: usize },
}

#[derive(Debug)]
enum Recorded {
    Cuda(cuda::Graph),
    Emu(Vec<Step>),
}

/// Recorded work.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    recorded: Recorded,
    /// What a replay overwrites, and what it makes.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Constants that it reads, which were there before.
    _held: Vec<Tensor>,
    /// Dropped last: the memory is anybody's then.
    graph_pool: memory::GraphPool,
}

/// Moves a value between host and device when no graph is being recorded. Errors: this thread records
/// one, which cannot hold such a move.
pub(super) fn outside<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    if memory::GraphPool::is_entered() {
        return Err(Error::bug("a value moves between host and device while a graph is recorded"));
    }
    let _shared = RECORDING.read().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Lets the recording of this thread, if there is one, keep the memory of a tensor.
pub(super) fn hold(tensor: &Tensor) {
    if memory::GraphPool::is_entered() {
        HELD.with_borrow_mut(|held| held.push(tensor.clone()));
    }
}

/// Keeps a step of the emulator's for later, when this thread is recording; whether it did.
pub(super) fn keep(step: impl FnOnce() -> Step) -> bool {
    STEPS.with_borrow_mut(|steps| match steps {
        Some(steps) => {
            steps.push(step());
            true
        }
        None => false,
    })
}

impl Graph {
    /// Records what `work` gives to `device`, without doing it. `inputs` are the tensors that `work` reads and
    /// that differ from replay to replay. `work` was done once before, so that all kernels are loaded.
    /// Errors: `work` moved values between host and device, or its own.
    pub fn record(
        device: Device,
        inputs: Vec<Tensor>,
        work: impl FnOnce() -> Result<Vec<Tensor>>,
    ) -> Result<Graph> {
        // An output in the memory of an input would keep that from being the graph's alone.
        let apart = |made: Tensor| {
            let is_input = inputs.iter().any(|input| input.identity() == made.identity());
            if is_input { made.copied() } else { made }
        };
        let work = || Ok::<_, Error>(work()?.into_iter().map(apart).collect());
        let _alone = RECORDING.write().unwrap_or_else(PoisonError::into_inner);
        let graph_pool = memory::GraphPool::new(device);
        let entered = graph_pool.enter();
        let (recorded, made) = match device {
            Device::Cpu => return Err(Error::bug("the host records no graphs")),
            Device::Cuda(n) => {
                let mut made = None;
                let graph = cuda::Gpu::open(n)?.capture(|| made = Some(work()))?;
                (Recorded::Cuda(graph), made)
            }
            Device::Emu => {
                STEPS.set(Some(Vec::new()));
                let made = work();
                (Recorded::Emu(STEPS.take().unwrap_or_default()), Some(made))
            }
        };
        drop(entered);
        let held = HELD.take();
        state::finish(device)?;
        let outputs = made.ok_or_else(|| Error::bug("a graph of no work"))??;
        Ok(Graph { device, recorded, inputs, outputs, _held: held, graph_pool })
    }

    /// Bytes that it holds on the device.
    pub fn bytes(&self) -> usize {
        self.graph_pool.bytes()
    }

    /// Does it all once, in the order of launches, with these values of the inputs; returns what it makes, in
    /// memory that the next replay overwrites. Errors: a bug of ours, when the inputs are not like those that
    /// were recorded, or somebody else holds one of those.
    pub fn replay<'a>(
        &mut self,
        inputs: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<&[Tensor]> {
        let mut given = inputs.into_iter();
        for own in &mut self.inputs {
            let Some(from) = given.next().filter(|from| own.is_like(from)) else {
                return Err(Error::bug(format!("{own:?} is an input of a graph, and not given")));
            };
            if !own.is_unique() {
                return Err(Error::bug(format!("{own:?}, an input of a graph, is shared")));
            }
            let (to, from, bytes) = (own.address_mut(), from.address(), own.bytes());
            state::run(self.device, || backend::copy(self.device, to, from, bytes));
        }
        state::run(self.device, || match &self.recorded {
            Recorded::Cuda(graph) => graph.replay(),
            Recorded::Emu(steps) => steps.iter().try_for_each(|step| match step {
                Step::Launch(source, element, kernel, grid, values) => {
                    backend::launch(self.device, source, *element, kernel, *grid, values)
                }
                Step::Copy { to, from, bytes } => backend::copy(self.device, *to, *from, *bytes),
                Step::Zero { address, bytes } => backend::zero(self.device, *address, *bytes),
            }),
        });
        Ok(&self.outputs)
    }
}
