use super::LowRank;
use crate::args;
use crate::kernel::product::{Epilogue, Matrix, Product};
use crate::kernel::{ALL_DTYPES, Source, flat, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the kernel that multiplies by the factor.
pub static SOURCE: Source = source!("low_rank", ALL_DTYPES);

impl LowRank {
    /// x ← s·x.
    pub(crate) fn multiply(&self, x: &mut Tensor) {
        if self.scale != 1.0 {
            let (dtype, len) = (x.dtype(), x.len());
            let arguments = args![x, self.scale as f32, len as i64];
            SOURCE.launch(dtype, "low_rank_scale", flat::grid(len, dtype), arguments);
        }
    }

    /// Returns s·x Aᵀ.
    fn low(&self, x: &Tensor, a: &Tensor) -> Tensor {
        let ([r, k], rows) = ([0, 1].map(|axis| a.shape()[axis]), x.rows());
        let mut low = Tensor::empty_on(x.device(), &[rows, r], x.dtype());
        let (of_x, of_a) = (Matrix::new(x, rows, k), Matrix::new(a, r, k).transposed());
        Product::new(of_x, of_a).write(&mut low, Epilogue::default());
        self.multiply(&mut low);
        low
    }
}

impl Launch for LowRank {
    fn launch_forward(&self, others: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, a, b] = [0, 1, 2].map(|i| others[i]);
        let ([n, r], rows) = ([0, 1].map(|axis| b.shape()[axis]), x.rows());
        if self.merged {
            return vec![x.clone(), a.clone(), b.clone()];
        }
        let low = self.low(x, a);
        let (of_low, of_b) = (Matrix::new(&low, rows, r), Matrix::new(b, n, r).transposed());
        Product::new(of_low, of_b).write(out, Epilogue { add: true, ..Epilogue::default() });
        vec![x.clone(), a.clone(), b.clone(), low]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let [x, a, b] = [0, 1, 2].map(|i| &saved[i]);
        let low = saved.get(3).cloned().unwrap_or_else(|| self.low(x, a));
        let ([n, r], k, rows) = ([0, 1].map(|axis| b.shape()[axis]), x.width(), x.rows());
        grads.widen(&[2]);
        grads.widen(&[3]);
        let tensor = Tensor::empty_on(dy.device(), &[rows, r], dy.dtype());
        let mut of_low = GradBuffer { tensor, accumulate: false };
        let of_y = Matrix::new(&dy, rows, n);
        Product::new(of_y, Matrix::new(b, n, r)).put(&mut of_low);
        if let Some(grad) = grads.buffer(3) {
            Product::new(of_y.transposed(), Matrix::new(&low, rows, r)).put(grad);
        }
        let mut of_low = of_low.tensor;
        self.multiply(&mut of_low);
        let of_low = Matrix::new(&of_low, rows, r);
        if let Some(grad) = grads.buffer(2) {
            Product::new(of_low.transposed(), Matrix::new(x, rows, k)).put(grad);
        }
        if !self.merged {
            Product::new(of_low, Matrix::new(a, r, k)).put_input(grads, 1);
        }
        grads.accumulate(0, dy);
    }
}
