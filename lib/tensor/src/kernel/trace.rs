//! Records launches without executing them, for time models.

use super::{Arg, Grid};
use crate::dtype::Dtype;
use std::cell::RefCell;

/// A recorded launch.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The dtype that the kernel is compiled for.
    pub element: Dtype,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Blocks, threads, shared memory and operations.
    pub grid: Grid,
    /// Total bytes of the tensor arguments, counting each tensor once.
    pub bytes: usize,
}

thread_local! {
    static LAUNCHED: RefCell<Option<Vec<Launched>>> = const { RefCell::new(None) };
}

/// Runs `work` without executing the kernels that this thread launches, and returns the recorded launches. Computed
/// values are undefined.
pub fn trace<R>(work: impl FnOnce() -> R) -> (R, Vec<Launched>) {
    LAUNCHED.set(Some(Vec::new()));
    let result = work();
    (result, LAUNCHED.take().unwrap_or_default())
}

/// Whether this thread runs inside [`trace`].
pub(super) fn is_on() -> bool {
    LAUNCHED.with_borrow(Option::is_some)
}

/// Records a launch if this thread runs inside [`trace`]; returns whether it was recorded.
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
