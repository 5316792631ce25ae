//! Kernel launches.

use super::Cast;
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, Table};
use crate::kernel::{ALL_DTYPES, Grid, LentMemory, Source, source};
use crate::op::{Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the cast kernels.
pub static SOURCE: Source = source!("cast", ALL_DTYPES);

impl Launch for Cast {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        cast(inputs[0], out, false);
        vec![]
    }

    fn launch_backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if dy.dtype() == grads.dtype(0) {
            return grads.accumulate(0, dy);
        }
        if let Some(grad) = grads.buffer(0) {
            cast(&dy, &mut grad.tensor, grad.accumulate);
        }
    }

    fn is_cast(&self) -> bool {
        true
    }
}

/// Casts f32 tensors on `device` to a 16-bit dtype by one launch, into one block of memory.
pub(super) fn cast_all(device: Device, from: &[&Tensor], dtype: Dtype) -> Option<Vec<Tensor>> {
    let shapes = from.iter().map(|tensor| tensor.shape().to_vec()).collect();
    let mut memory = LentMemory::uninitialized(device, dtype, shapes);
    // Addresses of parameters do not change, and offsets neither: a table of them is uploaded once.
    let entries = from.iter().zip(memory.offsets());
    let entries = entries.map(|(tensor, at)| Entry::new(tensor.len(), [tensor.address(), at]));
    let table = Table::new(device, entries);
    let mut all = memory.lend_all()?;
    table.launch(&SOURCE, dtype, "cast_all", args![&mut all]);
    drop(all);
    memory.lend()
}

/// Casts `from` to `to`, or accumulates if `add` is set, for any two dtypes; via f32 between 16-bit dtypes.
pub(super) fn cast(from: &Tensor, to: &mut Tensor, add: bool) {
    const THREADS: usize = 256;
    const ELEMENTS: usize = 8;
    let grid = Grid::new(from.len().div_ceil(THREADS * ELEMENTS), THREADS);
    let len = from.len() as i64;
    if from.dtype() == Dtype::F32 {
        SOURCE.launch(to.dtype(), "cast_from_f32", grid, args![from, to, len, add]);
    } else if to.dtype() == Dtype::F32 {
        SOURCE.launch(from.dtype(), "cast_to_f32", grid, args![from, to, len, add]);
    } else {
        let mut middle = Tensor::empty_on(from.device(), from.shape(), Dtype::F32);
        cast(from, &mut middle, false);
        cast(&middle, to, add);
    }
}
