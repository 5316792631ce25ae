//! How the kernels are launched.

use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, flat};
use crate::op::Slot;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "squared_error", text: include_str!("squared_error.cu"), elements: ONLY_F32 };

/// Inputs: prediction, target, weights of samples and of channels.
pub(super) fn forward([p, t, w, v]: [&Tensor; 4], out: &mut Tensor) {
    let (samples, n, channels) = (w.len(), p.len() / w.len().max(1), v.len());
    let (chunk, chunks) = flat::chunks(n);
    let mut partials = Tensor::arbitrary_on(p.device(), &[samples, chunks], Dtype::F32);
    let grid = Grid::new(samples * chunks, flat::THREADS);
    let args = args![p, t, v, &mut partials, n as i64, channels, chunk, chunks];
    SOURCE.launch(Dtype::F32, "squared_error_partials", grid, args);
    let args = args![&partials, w, out, n.max(1) as i64, samples, chunks];
    SOURCE.launch(Dtype::F32, "squared_error_total", Grid::new(1, flat::THREADS), args);
}

pub(super) fn backward(
    [p, t, w, v]: [&Tensor; 4],
    dy: &Tensor,
    dp: &mut Option<Slot>,
    dt: &mut Option<Slot>,
) {
    let (samples, n, channels) = (w.len(), p.len() / w.len().max(1), v.len());
    let (chunk, chunks) = flat::chunks(n);
    let adds = [&*dp, &*dt].map(|slot| slot.as_ref().is_some_and(|slot| slot.add));
    let [dp, dt] = [dp, dt].map(|slot| slot.as_mut().map(|slot| &mut slot.tensor));
    SOURCE.launch(
        Dtype::F32,
        "squared_error_backward",
        Grid::new(samples * chunks, flat::THREADS),
        args![p, t, w, v, dy, dp, adds[0], dt, adds[1], n as i64, channels, chunk, chunks],
    );
}
