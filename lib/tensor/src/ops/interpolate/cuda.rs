use super::{Interpolate, Interpolation};
use crate::args;
use crate::kernel::{ALL_DTYPES, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::pool::lengths;
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source = source!("interpolate", ALL_DTYPES);

impl Launch for Interpolate {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, element, cells) = (inputs[0], out.dtype(), out.rows());
        let ([_, rows, columns, c], [to_rows, to_columns]) = (lengths(x), self.grid);
        let linear = self.interpolation == Interpolation::Linear;
        SOURCE.launch(
            element,
            "interpolate_forward",
            units::grid(element, cells, c),
            args![x, out, cells, rows, columns, to_rows, to_columns, c, linear],
        );
        vec![]
    }

    fn launch_backward(&self, _saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let (element, cells) = (dy.dtype(), dx.rows());
        let ([_, rows, columns, c], [to_rows, to_columns]) = (lengths(dx), self.grid);
        let linear = self.interpolation == Interpolation::Linear;
        SOURCE.launch(
            element,
            "interpolate_backward",
            units::grid(element, cells, c),
            args![&dy, dx, cells, rows, columns, to_rows, to_columns, c, linear, *accumulate],
        );
    }
}
