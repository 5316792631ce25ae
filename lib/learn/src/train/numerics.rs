//! How a run computes: the type inside the model, and what of it is computed again.

use crate::config::{Precision, Training};
use crate::recompute::Recompute;
use std::rc::Rc;
use tensor::{Device, Dtype};

/// What passes compute in.
#[derive(Clone, Debug)]
pub struct Numerics {
    /// Element type inside the model; parameters, losses and updates are in f32 always.
    pub dtype: Dtype,
    /// Which blocks of the model are computed again rather than kept.
    pub recompute: Rc<Recompute>,
}

impl Numerics {
    /// What `training` asks for on `device`, as far as that can be had; what cannot is said.
    pub fn new(training: &Training, device: Device) -> Self {
        if training.amp && device == Device::Cpu {
            unix::note!("training.amp: the CPU computes in f32, which is as precise and more");
        }
        tensor::kernel::set_tf32(training.tf32);
        let recompute = Rc::new(Recompute::new(training.mem_budget));
        Self { dtype: dtype(training, device), recompute }
    }
}

/// The element type that `training` asks for on `device`. The CPU has f32 only.
pub(super) fn dtype(training: &Training, device: Device) -> Dtype {
    match (training.amp && device != Device::Cpu, training.precision) {
        (false, _) => Dtype::F32,
        (true, Precision::Bf16) => Dtype::Bf16,
        (true, Precision::F16) => Dtype::F16,
    }
}
