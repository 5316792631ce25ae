use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_ELEMENTS, Grid, Source, units};
use crate::op::{Grads, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "embedding", text: include_str!("embedding.cu"), elements: ALL_ELEMENTS };

/// Values of a digit of the sort, as in the source; also the threads of a block.
const DIGITS: usize = 256;
/// Positions of a block, as in the source.
const TILE: usize = 1024;

pub(super) fn forward(inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    let [table, index] = [inputs[0], inputs[1]];
    let (element, n, rows, h) = (out.dtype(), index.len(), table.shape()[0], table.width());
    let grid = units::grid(element, n, h);
    SOURCE.launch(element, "embedding_forward", grid, args![table, index, out, n, rows, h]);
    vec![index.clone()]
}

pub(super) fn backward(saved: &Saved, dy: Tensor, grads: &mut Grads) {
    let Some(mut slot) = grads.take(0) else { return };
    let (index, element) = (&saved[0], dy.dtype());
    let (n, rows, h) = (index.len(), slot.tensor.shape()[0], slot.tensor.width());
    let mut bounds = Tensor::zeros_on(dy.device(), &[rows, 2], Dtype::I32);
    let (keys, positions) = sorted(index, rows, element);
    let grid = Grid::new(n.div_ceil(DIGITS), DIGITS);
    SOURCE.launch(element, "embedding_bounds", grid, args![&keys, &mut bounds, n, rows]);
    SOURCE.launch(
        element,
        "embedding_sum",
        units::grid(element, rows, h),
        args![&dy, &positions, &bounds, &mut slot.tensor, rows, h, slot.add],
    );
    grads.put(0, slot);
}

/// Indices in ascending order, those outside 0..`rows` at the end, and the position of each; equal ones
/// in the order of their positions. The kernels are those compiled for `element`, which they do not use.
fn sorted(index: &Tensor, rows: usize, element: Dtype) -> (Tensor, Tensor) {
    let n = index.len();
    let blocks = n.div_ceil(TILE);
    let integers = |len: usize| Tensor::arbitrary_on(index.device(), &[len], Dtype::I32);
    let mut counts = integers(DIGITS * blocks);
    let mut keys = index.clone();
    let mut positions: Option<Tensor> = None;
    // `rows` itself stands for indices outside.
    let bits = usize::BITS - rows.leading_zeros();
    for shift in (0..bits.max(1) as i32).step_by(8) {
        let (mut next_keys, mut next_positions) = (integers(n), integers(n));
        let each = Grid::new(blocks, DIGITS);
        let arguments = args![&keys, &mut counts, n, rows, shift];
        SOURCE.launch(element, "embedding_histogram", each, arguments);
        let one = Grid::new(usize::from(n > 0), DIGITS);
        SOURCE.launch(element, "embedding_scan", one, args![&mut counts, DIGITS * blocks]);
        SOURCE.launch(
            element,
            "embedding_scatter",
            each,
            args![
                &keys,
                positions.as_ref(),
                &counts,
                &mut next_keys,
                &mut next_positions,
                n,
                rows,
                shift,
            ],
        );
        (keys, positions) = (next_keys, Some(next_positions));
    }
    (keys, positions.unwrap_or_else(|| integers(n)))
}
