use super::VectorNorm;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{Grid, ONLY_F32, Source, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the vector norm kernels.
pub static SOURCE: Source = source!("vector_norm", ONLY_F32);

/// Returns a grid with one block per row.
fn grid(x: &Tensor) -> Grid {
    Grid::new(x.rows(), if x.width() > 1024 { 256 } else { 32 })
}

impl Launch for VectorNorm {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let args = args![x, &mut *out, x.width(), self.floor() as f32, self.kind()];
        SOURCE.launch(Dtype::F32, "vector_norm_forward", grid(x), args);
        vec![x.clone(), out.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let (x, y) = (&saved[0], &saved[1]);
        let args = args![x, y, &dy, dx, x.width(), self.kind(), *accumulate];
        SOURCE.launch(Dtype::F32, "vector_norm_backward", grid(x), args);
    }
}
