//! Gradient accumulation: a += b.

use crate::args;
use crate::device::Device;
use crate::dtype::Float;
use crate::kernel::table::{Entry, Table};
use crate::kernel::{ALL_DTYPES, Source, flat, source};
use crate::parallel::{BLOCK_ELEMENTS, row_blocks};
use crate::tensor::Tensor;
use crate::vectorize;
use crate::with_float;

/// Source of the accumulation kernels.
pub(crate) static SOURCE: Source = source!("sum", ALL_DTYPES);

/// Adds b to a, with the same shape and on the same device. If `a` shares its memory, the memory is copied first.
pub fn add(a: &mut Tensor, b: &Tensor) {
    match a.device() {
        Device::Cpu => with_float!(a.dtype(), T => on_cpu::<T>(a.write(), b.read())),
        _ => {
            let (len, dtype) = (a.len(), a.dtype());
            SOURCE.launch(dtype, "sum_add", flat::grid(len, dtype), args![a, b, len as i64]);
        }
    }
}

/// Adds b to a for each pair (a, b); all tensors have the same dtype.
pub fn add_all<'a>(pairs: impl IntoIterator<Item = (&'a mut Tensor, &'a Tensor)>) {
    let mut pairs = pairs.into_iter().peekable();
    match pairs.peek().map(|(a, _)| (a.device(), a.dtype())) {
        None => {}
        Some((Device::Cpu, _)) => pairs.for_each(|(a, b)| add(a, b)),
        Some((device, dtype)) => {
            let entries = pairs.map(|(a, b)| Entry::new(a.len(), [b.address(), a.address_mut()]));
            Table::new(device, entries).launch(&SOURCE, dtype, "sum_add_all", &[]);
        }
    }
}

fn on_cpu<T: Float>(a: &mut [T], b: &[T]) {
    row_blocks((a, 1), BLOCK_ELEMENTS, |range, a| {
        vectorize!({
            for (a, b) in a.iter_mut().zip(&b[range]) {
                *a += *b;
            }
        });
    });
}
