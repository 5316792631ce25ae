use super::{Pool, Pooling, lengths};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "pool", text: include_str!("pool.cu"), dtypes: ALL_DTYPES };

impl Launch for Pool {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let x = inputs[0];
        let mut chosen = (self.pooling == Pooling::Max)
            .then(|| Tensor::empty_on(x.device(), out.shape(), Dtype::I32));
        let ([_, rows, columns, c], [_, to_rows, to_columns, _]) = (lengths(x), lengths(out));
        let (element, cells) = (out.dtype(), out.rows());
        SOURCE.launch(
            element,
            "pool_forward",
            units::grid(element, cells, c),
            args![
                x,
                out,
                chosen.as_mut(),
                cells,
                rows,
                columns,
                to_rows,
                to_columns,
                c,
                self.window[0],
                self.window[1],
                self.stride[0],
                self.stride[1],
            ],
        );
        chosen.into_iter().collect()
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let Some(GradBuffer { tensor: dx, accumulate }) = grads.buffer(0) else { return };
        let ([_, rows, columns, c], [_, to_rows, to_columns, _]) = (lengths(dx), lengths(&dy));
        let (element, cells) = (dy.dtype(), dx.rows());
        SOURCE.launch(
            element,
            "pool_backward",
            units::grid(element, cells, c),
            args![
                &dy,
                saved.first(),
                dx,
                cells,
                rows,
                columns,
                to_rows,
                to_columns,
                c,
                self.window[0],
                self.window[1],
                self.stride[0],
                self.stride[1],
                *accumulate,
            ],
        );
    }
}
