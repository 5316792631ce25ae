use super::{Pool, Pooling};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Arg, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::grid;
use crate::tensor::Tensor;

/// Source of the pooling kernels.
pub static SOURCE: Source = source!("pool", ALL_DTYPES);

impl Pool {
    /// Returns the arguments shared by both kernels: `cells`, the sizes of x and y, the window and its stride.
    fn sizes(&self, cells: usize, x: &Tensor, y: &Tensor) -> Vec<Arg<'static>> {
        let ([_, from @ .., c], [_, to @ .., _]) = (grid::of(x), grid::of(y));
        [&[cells][..], &from, &to, &[c], &self.window, &self.stride]
            .concat()
            .into_iter()
            .map(Arg::from)
            .collect()
    }
}

impl Launch for Pool {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let mut chosen = (self.pooling == Pooling::Max)
            .then(|| Tensor::empty_on(x.device(), out.shape(), Dtype::I32));
        let (element, cells) = (out.dtype(), out.rows());
        let (grid, sizes) = (units::grid(element, cells, x.width()), self.sizes(cells, x, out));
        let args = [args![x, out, chosen.as_mut()], &sizes].concat();
        SOURCE.launch(element, "pool_forward", grid, &args);
        chosen.into_iter().collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let (element, cells) = (dy.dtype(), dx.rows());
        let (grid, sizes) = (units::grid(element, cells, dy.width()), self.sizes(cells, dx, &dy));
        let args = [args![&dy, saved.first(), dx], &sizes, args![*accumulate]].concat();
        SOURCE.launch(element, "pool_backward", grid, &args);
    }
}
