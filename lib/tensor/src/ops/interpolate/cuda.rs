use super::{Interpolate, Interpolation};
use crate::args;
use crate::kernel::{ALL_DTYPES, Arg, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::grid;
use crate::tensor::Tensor;

/// Source of the interpolation kernels.
pub static SOURCE: Source = source!("interpolate", ALL_DTYPES);

impl Interpolate {
    /// Returns the arguments shared by both kernels: sizes of x, new grid, channels, interpolation method.
    fn sizes(&self, x: &Tensor) -> [Arg<'static>; 8] {
        let ([_, depth, rows, columns, c], [to_depth, to_rows, to_columns]) =
            (grid::of(x), self.grid);
        let linear = usize::from(self.interpolation == Interpolation::Linear);
        [depth, rows, columns, to_depth, to_rows, to_columns, c, linear].map(Arg::from)
    }
}

impl Launch for Interpolate {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, element, cells) = (inputs[0], out.dtype(), out.rows());
        let args = [args![x, out, cells], &self.sizes(x)].concat();
        SOURCE.launch(
            element,
            "interpolate_forward",
            units::grid(element, cells, x.width()),
            &args,
        );
        vec![]
    }

    fn launch_backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let (element, cells) = (dy.dtype(), dx.rows());
        let (grid, sizes) = (units::grid(element, cells, dx.width()), self.sizes(dx));
        let args = [args![&dy, dx, cells], &sizes, args![*accumulate]].concat();
        SOURCE.launch(element, "interpolate_backward", grid, &args);
    }
}
