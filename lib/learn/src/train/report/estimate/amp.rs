//! What `training.amp` gains on the CPU of this machine.

use serde::Serialize;
use std::time::Instant;
use tensor::ops::activation::Activation;
use tensor::ops::linear::Linear;
use tensor::product::bf16::{self, Rounding};
use tensor::{Dtype, Tape, Tensor};
use unix::Result;

/// Rows, and inputs and outputs, of the linear layer whose products are measured.
const SIZE: [usize; 2] = [1024, 768];
/// Repetitions, the fastest of which counts.
const REPETITIONS: usize = 5;

/// Median times of updates on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct AmpTimes {
    /// Instructions of products of bf16: portable, avx512 or amx.
    pub instructions: &'static str,
    /// Seconds per update with products of f32.
    pub f32_seconds: f64,
    /// Seconds per update with products of bf16.
    pub bf16_seconds: f64,
}

impl AmpTimes {
    /// How many times as fast updates are with amp.
    pub fn gain(&self) -> f64 {
        self.f32_seconds / self.bf16_seconds
    }
}

/// Measures products of f32 and of bf16, and describes both.
pub fn measured_products() -> Result<String> {
    let name = bf16::level()?.name();
    let [single, rounded] = tensor::parallel::inside(|| Ok([rate(false)?, rate(true)?]))?;
    Ok(format!(
        "products of bf16 ({name}) at {:.0} GFLOP/s, of f32 at {:.0}",
        rounded / 1e9,
        single / 1e9
    ))
}

/// Floating-point operations per second of a linear layer.
fn rate(amp: bool) -> Result<f64> {
    let _rounding = amp.then(Rounding::begin);
    let [rows, width] = SIZE;
    let [x, weight] = [rows, width].map(|n| Tensor::full(&[n, width], 0.5, Dtype::F32));
    let [x, weight] = [x, weight].map(tensor::constant);
    let linear = Linear { bias: false, activation: Activation::Identity };
    let mut best = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let started = Instant::now();
        Tape::without_gradients().apply(linear, &[&x, &weight])?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok((2 * rows * width * width) as f64 / best)
}
