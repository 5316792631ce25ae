//! Numerics of a run: the model's compute dtype, and the recomputation of blocks.

use crate::config::{Precision, Training};
use crate::recompute::Recompute;
use crate::train::Progress;
use std::rc::Rc;
use tensor::product::bf16::{self, Level, Rounding};
use tensor::{Device, Dtype};

/// Numerics of forward and backward passes.
#[derive(Clone, Debug)]
pub struct Numerics {
    /// Compute dtype of the model; trained parameters, losses and updates are always f32.
    pub dtype: Dtype,
    /// Decides which blocks of the model are recomputed in the backward pass.
    pub recompute: Rc<Recompute>,
    /// How matrix products are computed.
    pub products: Products,
}

/// How matrix products of f32 are computed.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    /// `training.tf32`: on a GPU.
    tf32: bool,
    /// `training.wgmma`: on a GPU.
    wgmma: bool,
    /// Whether operands are rounded to bf16 on the CPU, `training.amp` there.
    bf16: bool,
}

impl Products {
    /// The products of passes of `training`, or of its validations, on `device`. `amp_on_cpu` is [`Progress::amp_on_cpu`].
    pub fn new(training: &Training, amp: bool, device: Device, amp_on_cpu: bool) -> Self {
        let is_bf16 = training.amp && training.precision == Precision::Bf16;
        Self {
            tf32: training.tf32,
            wgmma: training.wgmma,
            bf16: amp && is_bf16 && device == Device::Cpu && amp_on_cpu,
        }
    }

    /// Whether operands are rounded to bf16 on the CPU.
    pub fn is_bf16(self) -> bool {
        self.bf16
    }

    /// Rounds operands on the CPU if they were not rounded before, and the other way round; returns whether they now are.
    pub fn toggle_bf16(&mut self) -> bool {
        self.bf16 = !self.bf16;
        self.bf16
    }

    /// Sets these modes for the pass about to begin; keep the result until the pass ends. They are process-wide, and other
    /// models in the process may use different ones.
    #[must_use]
    pub fn set(self) -> Option<Rounding> {
        tensor::kernel::set_tf32(self.tf32);
        tensor::kernel::set_wgmma(self.wgmma);
        self.bf16.then(Rounding::begin)
    }
}

/// What amp does on the CPU, with the instructions that products use there.
pub fn amp_note(level: Level) -> &'static str {
    match level {
        Level::Amx => "products of bf16 by AMX",
        Level::Avx512 => "products of bf16 by AVX-512",
        Level::Portable => {
            "operands of products are rounded to bf16 and multiplied in f32, which is seldom faster than f32 alone"
        }
    }
}

impl Numerics {
    /// Chooses the numerics for `training` on `device`; prints a note about 16-bit floats on the CPU.
    pub fn new(training: &Training, device: Device, progress: &Progress) -> Self {
        let products = Products::new(training, true, device, progress.amp_on_cpu);
        if training.amp && device == Device::Cpu {
            let says = match (products.bf16, bf16::level()) {
                (false, _) if training.precision == Precision::F16 => {
                    "has no effect with training.precision f16 on the CPU, which computes in f32"
                }
                (false, _) => {
                    "has no effect: the run was begun by a version that computed in f32 on the CPU"
                }
                (true, level) => amp_note(level.unwrap_or(Level::Portable)),
            };
            unix::note!("training.amp: {says}");
        }
        let recompute = Rc::new(Recompute::new(if progress.memory.recomputed {
            0.0
        } else {
            training.mem_budget
        }));
        Self { dtype: dtype(training.amp, training.precision, device), recompute, products }
    }
}

/// Returns the compute dtype of a model; the CPU computes in f32, where products may round their operands.
pub fn dtype(amp: bool, precision: Precision, device: Device) -> Dtype {
    match (amp && device != Device::Cpu, precision) {
        (false, _) => Dtype::F32,
        (true, Precision::Bf16) => Dtype::Bf16,
        (true, Precision::F16) => Dtype::F16,
    }
}
