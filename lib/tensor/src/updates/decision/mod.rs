//! Decides whether an update is applied and computes its scalars from the loss, the gradient norm and the previous
//! decision. On a GPU, a kernel makes the decision, so that the host can submit updates without waiting and read the
//! decision later.
//!
//! With the losses L and weights w of the micro-batches, W = Σw, the mean loss l = ΣL/W, the scale s of the gradients
//! (the loss scale times [`StepPolicy::unit`]), the norm n = √Σg²/(W·s) and t steps including this one: the update is
//! applied if l and n are finite; scale = min(1, clip/(n + 1e-6))/(W·s); rate = η/(1-β₁ᵗ); root = 1/√(1-β₂ᵗ);
//! correction = 1/(1-β₁ᵗ); decay = min(d, (1 + t)/(10 + t)) with warm-up, otherwise d. With loss scaling, s is adjusted
//! after each update ([`LossScale`]): gradients have overflowed if l is finite, n is not, and s > 1.

mod loss_scale;

pub use loss_scale::LossScale;

use super::norm;
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::table::{Entry, THREADS, Table};
use crate::kernel::{self, Arg, Grid, ONLY_F32, PendingRead, Source, source};
use crate::tensor::Tensor;
use unix::Result;

/// Source of the kernel that makes decisions.
pub(crate) static SOURCE: Source = source!("decision", ONLY_F32);

/// Parameters of the decisions, constant during a run.
#[derive(Clone, Copy, Debug)]
pub struct StepPolicy {
    /// Maximum gradient norm; infinite for no clipping.
    pub clip: f64,
    /// β₁ and β₂ of the moving averages, for bias correction; 0 without averages.
    pub betas: [f64; 2],
    /// Decay d of the parameter EMA.
    pub decay: f64,
    /// Whether the decay ramps up to d over the first steps, so that the EMA soon forgets the initial parameters.
    pub warmup: bool,
    /// Whether the loss is scaled, for gradients in half precision.
    pub scaled: bool,
    /// Additional factor of the loss scale, a power of two: about 1/(weight of a micro-batch) with loss scaling, so
    /// that the range of half-precision gradients does not depend on the batch size; otherwise 1.
    pub unit: f64,
}

/// Scalars of an update, in the order that kernels use (`include/decision.cuh`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepControl {
    /// Mean loss.
    pub loss: f64,
    /// Norm of the mean gradient, before clipping.
    pub norm: f64,
    /// Whether parameters change; false if the loss or the norm is not finite.
    pub applied: bool,
    /// Number of steps done, including this one.
    pub steps: u64,
    /// Factor of the gradients: clipping, averaging over micro-batches, and removal of the loss scale.
    pub scale: f64,
    /// Learning rate with the first bias correction, η/(1-β₁ᵗ).
    pub rate: f64,
    /// Second bias correction, 1/√(1-β₂ᵗ).
    pub root: f64,
    /// Decay of the parameter EMA.
    pub decay: f64,
    /// Whether the update was skipped because the loss scale was too large, rather than because the model diverged.
    pub overflow: bool,
    /// Loss scale of the next update.
    pub loss_scale: LossScale,
    /// First bias correction, 1/(1-β₁ᵗ), for optimizers that do not multiply it by the learning rate.
    pub correction: f64,
}

/// The most recent decision, on the device of the gradients.
#[derive(Debug)]
pub struct DeviceStepControl {
    /// f64 [12] in the order of [`StepControl`].
    numbers: Tensor,
    /// Loss scale of the next update times the unit, f32 [1]. Updated in place because captured graphs read it.
    loss_scale: Tensor,
}

/// A decision being copied to the host.
#[derive(Debug)]
pub struct PendingStepControl(PendingRead);

impl StepPolicy {
    /// Decides on an update with the given mean loss and gradient norm, following the decision `before`. The gradients
    /// must still be divided by `weight` and the loss scale.
    pub fn decide(
        &self,
        before: &StepControl,
        [loss, norm]: [f64; 2],
        weight: f64,
        learning_rate: f64,
    ) -> StepControl {
        let applied = loss.is_finite() && norm.is_finite();
        let mut loss_scale = before.loss_scale;
        let divisor = weight * loss_scale.scale * self.unit;
        let overflow =
            self.scaled && !applied && loss.is_finite() && loss_scale.may_have_overflowed();
        if self.scaled {
            loss_scale.update(overflow);
        }
        let steps = before.steps + u64::from(applied);
        let power = i32::try_from(steps).unwrap_or(i32::MAX);
        let [b1, b2] = self.betas;
        let n = steps as f64;
        StepControl {
            loss,
            norm,
            applied,
            steps,
            scale: norm::clip_scale(norm, self.clip) * (1.0 / divisor),
            rate: learning_rate / (1.0 - b1.powi(power)),
            root: 1.0 / (1.0 - b2.powi(power)).sqrt(),
            decay: if self.warmup { self.decay.min((1.0 + n) / (10.0 + n)) } else { self.decay },
            overflow,
            loss_scale,
            correction: 1.0 / (1.0 - b1.powi(power)),
        }
    }

    /// Replaces `decided` with the decision on an update whose micro-batches have the given losses and weights, f32 [1]
    /// each. `squares`, f64, adds up to the squared norm of the summed gradients ([`norm::squares`] or
    /// [`norm::square`]), which must still be divided by the total weight and the loss scale. All tensors share a
    /// device.
    pub fn decide_on_device(
        &self,
        decided: &mut DeviceStepControl,
        losses: &[Tensor],
        weights: &[Tensor],
        squares: &Tensor,
        learning_rate: f64,
    ) {
        match decided.numbers.device() {
            Device::Cpu => {
                let before = decided.on_host();
                let [loss, weight] = [losses, weights]
                    .map(|numbers| numbers.iter().fold(0.0, |sum, number| sum + number.item()));
                let seed = before.loss_scale.scale * self.unit;
                let norm = squares.to_f64().iter().sum::<f64>().sqrt() / (weight * seed);
                let made = self.decide(&before, [loss / weight, norm], weight, learning_rate);
                decided.numbers = made.numbers();
                if made.loss_scale.scale != before.loss_scale.scale {
                    decided.loss_scale.write()[0] = (made.loss_scale.scale * self.unit) as f32;
                }
            }
            device => {
                let before = &decided.numbers;
                let number = |x: &Tensor| Entry::new(1, [x.address()]);
                let table = Table::new(device, losses.iter().chain(weights).map(number));
                let mut made = Tensor::empty_on(device, before.shape(), Dtype::F64);
                let [beta1, beta2] = self.betas;
                let patience = if self.scaled { LossScale::PATIENCE } else { 0 };
                let scale = &mut decided.loss_scale;
                let args = [
                    args![
                        &table.entries,
                        losses.len(),
                        squares,
                        squares.len(),
                        before,
                        &mut made,
                        scale
                    ],
                    &[learning_rate, self.clip, beta1, beta2, self.decay].map(Arg::from),
                    args![self.warmup, self.unit, patience],
                ];
                let grid = Grid::new(1, THREADS);
                SOURCE.launch(Dtype::F32, "decision_make", grid, &args.concat());
                decided.numbers = made;
            }
        }
    }
}

impl StepControl {
    fn read(tensor: &Tensor) -> Self {
        let numbers: &[f64] = tensor.read();
        let [loss, norm, applied, steps, scale, rate, root, decay, overflow, s, grown, correction] =
            *numbers
        else {
            unreachable!("{tensor:?} was made as a decision")
        };
        let (applied, steps, overflow) = (applied == 1.0, steps as u64, overflow == 1.0);
        let loss_scale = LossScale { scale: s, growth_tracker: grown as u64 };
        Self {
            loss,
            norm,
            applied,
            steps,
            scale,
            rate,
            root,
            decay,
            overflow,
            loss_scale,
            correction,
        }
    }

    fn numbers(&self) -> Tensor {
        let [applied, overflow] =
            [self.applied, self.overflow].map(|told| f64::from(u8::from(told)));
        let numbers = [
            self.loss,
            self.norm,
            applied,
            self.steps as f64,
            self.scale,
            self.rate,
            self.root,
            self.decay,
            overflow,
            self.loss_scale.scale,
            self.loss_scale.growth_tracker as f64,
            self.correction,
        ];
        Tensor::from_slice(&numbers, &[numbers.len()])
    }
}

impl DeviceStepControl {
    /// Creates a copy of `decision` on the host, for a policy with the given [`StepPolicy::unit`].
    pub fn of(decision: &StepControl, unit: f64) -> Self {
        let loss_scale = Tensor::full(&[1], decision.loss_scale.scale * unit, Dtype::F32);
        Self { numbers: decision.numbers(), loss_scale }
    }

    /// Copies the decision to `device`. Errors: device errors.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        let Self { numbers, loss_scale } = self;
        let (numbers, loss_scale) = (numbers.to_device(device)?, loss_scale.to_device(device)?);
        Ok(Self { numbers, loss_scale })
    }

    /// Returns the factor of the next update's loss in its backward pass, f32 [1].
    pub fn loss_scale(&self) -> &Tensor {
        &self.loss_scale
    }

    /// Starts copying the decision to the host.
    pub fn read_async(&self) -> PendingStepControl {
        PendingStepControl(kernel::read_async(&self.numbers))
    }

    /// Returns the decision, which must be on the host.
    ///
    /// # Panics
    /// If the decision is on a device.
    pub(crate) fn on_host(&self) -> StepControl {
        StepControl::read(&self.numbers)
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.numbers
    }
}

impl PendingStepControl {
    /// Waits for the copy, but not for work submitted to the device after it. Errors: device errors.
    pub fn wait(self) -> Result<StepControl> {
        Ok(StepControl::read(&self.0.wait()?))
    }
}
