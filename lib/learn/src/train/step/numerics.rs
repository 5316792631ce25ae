//! Numerics of a run: the compute dtype of the model, and which blocks are recomputed.

use crate::config::{Precision, Training};
use crate::recompute::Recompute;
use std::rc::Rc;
use tensor::{Device, Dtype};

/// Numerics of forward and backward passes.
#[derive(Clone, Debug)]
pub struct Numerics {
    /// Compute dtype of the model; trained parameters, losses and updates are always f32.
    pub dtype: Dtype,
    /// Which blocks of the model are recomputed in the backward pass.
    pub recompute: Rc<Recompute>,
    /// `training.tf32` and `training.wgmma`.
    pub products: [bool; 2],
}

impl Numerics {
    /// The numerics of `training` on `device`; prints a note if the device does not support 16-bit floats.
    pub fn new(training: &Training, device: Device) -> Self {
        if training.amp && device == Device::Cpu {
            unix::note!("training.amp has no effect on the CPU, which computes in f32");
        }
        let recompute = Rc::new(Recompute::new(training.mem_budget));
        let products = [training.tf32, training.wgmma];
        Self { dtype: dtype(training, device), recompute, products }
    }
}

/// Chooses how the pass that begins multiplies matrices: with tf32 and wgmma. The choice holds for the process, in which
/// there may be other models.
pub(in crate::train) fn set_matmul_modes([tf32, wgmma]: [bool; 2]) {
    tensor::kernel::set_tf32(tf32);
    tensor::kernel::set_wgmma(wgmma);
}

/// The compute dtype of the model; the CPU only supports f32.
pub(in crate::train) fn dtype(training: &Training, device: Device) -> Dtype {
    match (training.amp && device != Device::Cpu, training.precision) {
        (false, _) => Dtype::F32,
        (true, Precision::Bf16) => Dtype::Bf16,
        (true, Precision::F16) => Dtype::F16,
    }
}
