//! Truncated Fourier transforms of real fields on a periodic square.
//!
//! A field is [x, y] with n points per side. Its spectrum is [waves along y, waves along x]: the first axis has the
//! waves 0..=kept, the second all n in FFT order; waves beyond `kept` along y are dropped by the forward transform and
//! treated as zero by the inverse.

use fft::{Complex64, ComplexToReal, Fft, RealToComplex};
use std::sync::Arc;

/// Transforms for one grid; can be shared between threads.
#[derive(Clone)]
pub struct FftPlan {
    points: usize,
    kept: usize,
    rows_forward: Arc<dyn RealToComplex<f64>>,
    rows_inverse: Arc<dyn ComplexToReal<f64>>,
    columns_forward: Arc<dyn Fft<f64>>,
    columns_inverse: Arc<dyn Fft<f64>>,
}

/// Buffers for a transform.
pub struct Workspace {
    half: Vec<Complex64>,
    columns: Vec<Complex64>,
    scratch: Vec<Complex64>,
}

impl FftPlan {
    /// Creates a plan for `points` points per side. Waves up to the largest integer below points/3 are retained (the
    /// two-thirds rule), so that products of two fields are free of aliasing.
    pub fn new(points: usize) -> Self {
        let (rows_forward, rows_inverse) = fft::real(points);
        let (columns_forward, columns_inverse) = fft::complex(points);
        Self {
            points,
            kept: points.saturating_sub(1) / 3,
            rows_forward,
            rows_inverse,
            columns_forward,
            columns_inverse,
        }
    }

    /// Allocates buffers for one transform at a time.
    pub fn workspace(&self) -> Workspace {
        let scratch = [
            self.rows_forward.get_scratch_len(),
            self.rows_inverse.get_scratch_len(),
            self.columns_forward.get_inplace_scratch_len(),
            self.columns_inverse.get_inplace_scratch_len(),
        ];
        let zeros = |n: usize| vec![Complex64::default(); n];
        Workspace {
            half: zeros(self.points * self.width()),
            columns: zeros(self.spectrum_len()),
            scratch: zeros(scratch.into_iter().fold(0, usize::max)),
        }
    }

    fn width(&self) -> usize {
        self.points / 2 + 1
    }

    /// Number of values in a spectrum.
    pub fn spectrum_len(&self) -> usize {
        (self.kept + 1) * self.points
    }

    /// Returns the wave numbers [along x, along y] of each element of a spectrum; `None` for truncated waves.
    pub fn waves(&self) -> Vec<Option<[f64; 2]>> {
        let n = self.points;
        let along_x = |i: usize| if 2 * i <= n { i as f64 } else { i as f64 - n as f64 };
        let kept = |i: usize, j: usize| {
            (along_x(i).abs() <= self.kept as f64).then_some([along_x(i), j as f64])
        };
        (0..self.spectrum_len()).map(|at| kept(at % n, at / n)).collect()
    }

    /// Computes the spectrum of a field, divided by n²: u = Σ û_k exp(2πi k·x). Truncated waves along x are not set to
    /// zero here. `field` is overwritten.
    pub fn forward(&self, field: &mut [f64], spectrum: &mut [Complex64], work: &mut Workspace) {
        let (n, width) = (self.points, self.width());
        for (row, out) in field.chunks_exact_mut(n).zip(work.half.chunks_exact_mut(width)) {
            // The buffers have the lengths that the plan requires, so this cannot fail.
            let done = self.rows_forward.process_with_scratch(row, out, &mut work.scratch);
            debug_assert!(done.is_ok());
        }
        let scale = 1.0 / (n * n) as f64;
        for (j, column) in spectrum.chunks_exact_mut(n).enumerate() {
            for (i, value) in column.iter_mut().enumerate() {
                *value = work.half[i * width + j] * scale;
            }
        }
        self.columns_forward.process_with_scratch(spectrum, &mut work.scratch);
    }

    /// Computes the field from a spectrum whose truncated waves are zero.
    pub fn inverse(&self, spectrum: &[Complex64], field: &mut [f64], work: &mut Workspace) {
        let (n, width) = (self.points, self.width());
        work.columns.copy_from_slice(spectrum);
        self.columns_inverse.process_with_scratch(&mut work.columns, &mut work.scratch);
        work.half.fill(Complex64::default());
        for (j, column) in work.columns.chunks_exact(n).enumerate() {
            for (i, value) in column.iter().enumerate() {
                // The mean along y of a real field is real, except for rounding errors.
                work.half[i * width + j] = if j == 0 { value.re.into() } else { *value };
            }
        }
        for (row, out) in work.half.chunks_exact_mut(width).zip(field.chunks_exact_mut(n)) {
            let done = self.rows_inverse.process_with_scratch(row, out, &mut work.scratch);
            debug_assert!(done.is_ok());
        }
    }
}
