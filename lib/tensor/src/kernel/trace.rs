//! Records what would be launched, for models of the time that it takes.

use super::{Arg, Grid};
use crate::dtype::Dtype;
use std::cell::RefCell;

/// A launch.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The dtype that the kernel is compiled for.
    pub element: Dtype,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Blocks, threads, shared memory and operations.
    pub grid: Grid,
    /// Bytes of the tensors among its arguments, each once.
    pub bytes: usize,
}

thread_local! {
    static LAUNCHED: RefCell<Option<Vec<Launched>>> = const { RefCell::new(None) };
}

/// Runs `work` without any kernel that this thread launches meanwhile, and returns those launches. Results have
/// undefined values.
pub fn trace<R>(work: impl FnOnce() -> R) -> (R, Vec<Launched>) {
    LAUNCHED.set(Some(Vec::new()));
    let result = work();
    (result, LAUNCHED.take().unwrap_or_default())
}

/// Whether this thread runs in [`trace`].
pub(super) fn is_on() -> bool {
    LAUNCHED.with_borrow(Option::is_some)
}

/// Records a launch if this thread runs in [`trace`].
pub(super) fn record(element: Dtype, kernel: &'static str, grid: Grid, args: &[Arg]) -> bool {
    LAUNCHED.with_borrow_mut(|launched| {
        let Some(launched) = launched else { return false };
        let mut tensors: Vec<_> =
            args.iter().map(|arg| (arg.value().bits(), arg.bytes())).collect();
        tensors.sort_unstable();
        tensors.dedup();
        let bytes = tensors.iter().map(|(_, bytes)| bytes).sum();
        launched.push(Launched { element, kernel, grid, bytes });
        true
    })
}
