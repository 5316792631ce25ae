//! Plans of discrete Fourier transforms in f64.
//!
//! A crate of its own because the code of all transforms is generated in the crate that plans one, which takes half a
//! minute in a release build.

#![forbid(unsafe_code)]

pub use realfft::{ComplexToReal, RealToComplex};
pub use rustfft::Fft;
pub use rustfft::num_complex::Complex64;

use realfft::RealFftPlanner;
use rustfft::FftPlanner;
use std::sync::Arc;

/// The transform of `n` real numbers to n / 2 + 1 coefficients, and its inverse times n.
pub fn real(n: usize) -> (Arc<dyn RealToComplex<f64>>, Arc<dyn ComplexToReal<f64>>) {
    let mut planner = RealFftPlanner::new();
    (planner.plan_fft_forward(n), planner.plan_fft_inverse(n))
}

/// The transform of `n` complex numbers, and its inverse times n.
pub fn complex(n: usize) -> (Arc<dyn Fft<f64>>, Arc<dyn Fft<f64>>) {
    let mut planner = FftPlanner::new();
    (planner.plan_fft_forward(n), planner.plan_fft_inverse(n))
}
