//! Numerics of a run: the model's compute dtype, and the recomputation of blocks.

use crate::config::{Precision, Training};
use crate::recompute::Recompute;
use std::rc::Rc;
use tensor::{Device, Dtype};

/// Numerics of forward and backward passes.
#[derive(Clone, Debug)]
pub struct Numerics {
    /// Compute dtype of the model; trained parameters, losses and updates are always f32.
    pub dtype: Dtype,
    /// Decides which blocks of the model are recomputed in the backward pass.
    pub recompute: Rc<Recompute>,
    /// Settings `training.tf32` and `training.wgmma`.
    pub products: [bool; 2],
}

impl Numerics {
    /// Chooses the numerics for `training` on `device`, with all blocks `recomputed` or as configured; prints a note if the
    /// device does not support 16-bit floats.
    pub fn new(training: &Training, device: Device, recomputed: bool) -> Self {
        if training.amp && device == Device::Cpu {
            unix::note!("training.amp has no effect on the CPU, which computes in f32");
        }
        let recompute = Rc::new(Recompute::new(if recomputed { 0.0 } else { training.mem_budget }));
        let products = [training.tf32, training.wgmma];
        Self { dtype: dtype(training, device), recompute, products }
    }
}

/// Sets the matrix-product modes, tf32 and wgmma, for the pass about to begin. They are process-wide, and other models
/// in the process may use different ones.
pub(in crate::train) fn set_matmul_modes([tf32, wgmma]: [bool; 2]) {
    tensor::kernel::set_tf32(tf32);
    tensor::kernel::set_wgmma(wgmma);
}

/// Returns the compute dtype of the model; the CPU only supports f32.
pub(in crate::train) fn dtype(training: &Training, device: Device) -> Dtype {
    match (training.amp && device != Device::Cpu, training.precision) {
        (false, _) => Dtype::F32,
        (true, Precision::Bf16) => Dtype::Bf16,
        (true, Precision::F16) => Dtype::F16,
    }
}
