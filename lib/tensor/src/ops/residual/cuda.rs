use super::Residual;
use crate::args;
use crate::kernel::{ALL_DTYPES, Source, source, units};
use crate::op::{Grads, Launch, Saved};
use crate::ops::linear::{Factor, multiply_and_sum};
use crate::tensor::Tensor;

/// Source of the residual kernel.
pub static SOURCE: Source = source!("residual", ALL_DTYPES);

/// Writes x + s ∘ y to `out`, or accumulates if `add` is set; a missing x counts as 0.
fn add_scaled(x: Option<&Tensor>, y: &Tensor, s: &Tensor, out: &mut Tensor, add: bool) {
    let (dtype, rows, width) = (y.dtype(), y.rows(), y.width());
    let args = args![x, y, s, out, rows, width, add];
    SOURCE.launch(dtype, "residual_add", units::grid(dtype, rows, width), args);
}

impl Launch for Residual {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, y, s] = [inputs[0], inputs[1], inputs[2]];
        add_scaled(Some(x), y, s, out, false);
        vec![y.clone(), s.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let ([y, s], [dbranch, ds]) = ([&saved[0], &saved[1]], grads.buffers([1, 2]));
        if let Some(grad) = dbranch {
            add_scaled(None, &dy, s, &mut grad.tensor, grad.accumulate);
        }
        multiply_and_sum(&dy, Some(Factor::Elements(y)), None, ds);
        grads.accumulate(0, dy);
    }
}
