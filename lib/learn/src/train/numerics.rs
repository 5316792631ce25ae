//! In which numbers a run computes: the type inside the model, and the scale that keeps gradients in
//! the range of half precision (Micikevicius et al. 2018, §3.2).

use super::progress::Progress;
use crate::config::{Precision, Training};
use crate::recompute::Recompute;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use tensor::{Device, Dtype};

/// What passes compute in.
#[derive(Clone, Debug)]
pub struct Numerics {
    /// Element type inside the model; parameters, losses and updates are in f32 always.
    pub dtype: Dtype,
    /// What the loss is multiplied with before it is differentiated.
    pub loss_scale: f64,
    /// Which blocks of the model are computed again rather than kept.
    pub recompute: Rc<Recompute>,
}

impl Numerics {
    /// What the first pass computes in.
    pub fn new(training: &Training, device: Device) -> Self {
        tensor::kernel::set_tf32(training.tf32);
        let recompute = Rc::new(Recompute::new(training.mem_budget));
        Self { dtype: dtype(training, device), loss_scale: 1.0, recompute }
    }

    /// What the next pass computes in.
    pub fn at(&self, progress: &Progress) -> Self {
        let loss_scale = match self.dtype {
            Dtype::F16 => progress.loss_scale.unwrap_or_default().scale,
            _ => 1.0,
        };
        Self { loss_scale, ..self.clone() }
    }

    /// Lets the loss scale follow an update that was applied or not; whether gradients beyond the range of
    /// half precision are why it was not, which is no fault of the model's.
    pub fn follow(&self, progress: &mut Progress, loss: f64, applied: bool) -> bool {
        if self.dtype != Dtype::F16 {
            return false;
        }
        let scale = progress.loss_scale.get_or_insert_default();
        let overflow = !applied && loss.is_finite() && scale.is_to_blame();
        scale.follow(overflow);
        overflow
    }
}

/// The element type that `training` asks for on `device`. The CPU has f32 only, which is said.
fn dtype(training: &Training, device: Device) -> Dtype {
    match (training.amp, device) {
        (false, _) => Dtype::F32,
        (true, Device::Cpu) => {
            unix::note!("training.amp: the CPU computes in f32, which is as precise and more");
            Dtype::F32
        }
        (true, _) => match training.precision {
            Precision::Bf16 => Dtype::Bf16,
            Precision::F16 => Dtype::F16,
        },
    }
}

/// The scale of the loss in half precision: as large as gradients allow. It is halved when they
/// overflow, and the update is skipped; after enough updates without, it is doubled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The scale, a power of two.
    pub scale: f64,
    /// Updates since it last changed.
    pub steady: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: 65536.0, steady: 0 }
    }
}

impl LossScale {
    /// Updates without overflow after which the scale is doubled.
    const PATIENCE: u64 = 2000;

    /// Whether gradients that are not finite may be the scale's fault.
    pub fn is_to_blame(&self) -> bool {
        self.scale > 1.0
    }

    /// Takes note of an update.
    pub fn follow(&mut self, overflow: bool) {
        self.steady += 1;
        if overflow {
            *self = Self { scale: (self.scale * 0.5).max(1.0), steady: 0 };
        } else if self.steady == Self::PATIENCE {
            *self = Self { scale: self.scale * 2.0, steady: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_halved_at_an_overflow_and_doubled_after_2000_updates_without() {
        let mut scale = LossScale::default();
        assert_eq!(scale.scale, 65536.0);
        scale.follow(true);
        assert_eq!(scale.scale, 32768.0);
        (0..1999).for_each(|_| scale.follow(false));
        assert_eq!(scale.scale, 32768.0);
        scale.follow(false);
        assert_eq!(scale, LossScale { scale: 65536.0, steady: 0 });
        // An overflow begins the count again.
        (0..1500).for_each(|_| scale.follow(false));
        scale.follow(true);
        (0..1999).for_each(|_| scale.follow(false));
        assert_eq!(scale.scale, 32768.0);
    }

    #[test]
    fn a_scale_of_one_blames_the_model() {
        let mut scale = LossScale::default();
        for _ in 0..40 {
            scale.follow(true);
        }
        assert_eq!(scale.scale, 1.0);
        assert!(!scale.is_to_blame());
    }
}
