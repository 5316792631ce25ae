use super::Embedding;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Grid, Source, source, units};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// Source of the embedding kernels.
pub static SOURCE: Source = source!("embedding", ALL_DTYPES);

/// Number of values of a radix digit, as in embedding.cu; also the threads per block.
const RADIX: usize = 256;
/// Positions per block of the sort, as in embedding.cu.
const TILE: usize = 1024;
/// Sorted positions that a block sums if all have the same index, as in embedding.cu.
const PART: usize = 64;

impl Launch for Embedding {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [table, index] = [inputs[0], inputs[1]];
        gather(table, index, out, f32::NAN, false);
        vec![index.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(GradBuffer { tensor: dtable, accumulate }) = grads.buffer(0) {
            scatter_add(&saved[0], &dy, dtable, *accumulate);
        }
    }
}

/// Writes (or accumulates) the rows of `table` selected by `index`; an index out of range gives `outside`.
pub(crate) fn gather(
    table: &Tensor,
    index: &Tensor,
    out: &mut Tensor,
    outside: f32,
    accumulate: bool,
) {
    let (element, n, rows, h) = (out.dtype(), index.len(), table.shape()[0], table.width());
    let args = args![table, index, out, n, rows, h, outside, accumulate];
    SOURCE.launch(element, "embedding_gather", units::grid(element, n, h), args);
}

/// Writes (or accumulates) the sums of the rows of `x` by `index` to `table`, each in the order of its positions, with
/// partial sums if there are many. The order depends only on the indices.
pub(crate) fn scatter_add(index: &Tensor, x: &Tensor, table: &mut Tensor, accumulate: bool) {
    let element = x.dtype();
    let (n, rows, h) = (index.len(), table.shape()[0], table.width());
    let mut bounds = Tensor::zeros_on(x.device(), &[rows, 2], Dtype::I32);
    let (keys, positions) = sorted(index, rows, element);
    let mut parts = Tensor::empty_on(x.device(), &[n / PART, h], Dtype::F32);
    let args = args![x, &keys, &positions, &mut bounds, &mut parts, n, rows, h];
    SOURCE.launch(element, "embedding_segments", Grid::new(n.div_ceil(PART), 128), args);
    let args = args![x, &positions, &bounds, &parts, table, rows, h, accumulate];
    SOURCE.launch(element, "embedding_sum", units::grid(element, rows, h), args);
}

/// Returns the indices in ascending order, those outside 0..`rows` last, and their positions; the sort is stable. Uses
/// the kernels compiled for `element`, although they do not depend on it.
fn sorted(index: &Tensor, rows: usize, element: Dtype) -> (Tensor, Tensor) {
    let n = index.len();
    let blocks = n.div_ceil(TILE);
    let integers = |len: usize| Tensor::empty_on(index.device(), &[len], Dtype::I32);
    let mut counts = integers(RADIX * blocks);
    let mut keys = index.clone();
    let mut positions: Option<Tensor> = None;
    // Indices out of range are mapped to `rows`.
    let bits = usize::BITS - rows.leading_zeros();
    for shift in (0..bits.max(1) as i32).step_by(8) {
        let (mut next_keys, mut next_positions) = (integers(n), integers(n));
        let each = Grid::new(blocks, RADIX);
        let arguments = args![&keys, &mut counts, n, rows, shift];
        SOURCE.launch(element, "embedding_histogram", each, arguments);
        let one = Grid::new(usize::from(n > 0), RADIX);
        SOURCE.launch(element, "embedding_scan", one, args![&mut counts, RADIX * blocks]);
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

#[cfg(all(test, feature = "emu"))]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::op::{self, Input};

    /// Covers more positions than one tile, two radix digits and indices out of range.
    #[test]
    fn positions_are_sorted_by_index_and_equal_ones_stay_in_order() {
        let rows = 300;
        let index: Vec<i32> = (0..2500).map(|i| i * i % 331 - 20).collect();
        let n = index.len();
        let on_device = Tensor::from_slice(&index, &[n]).to_device(Device::Emu).unwrap();
        let (keys, positions) = sorted(&on_device, rows, Dtype::F32);
        let key = |i: i32| if (0..rows as i32).contains(&i) { i } else { rows as i32 };
        let mut expected: Vec<(i32, i32)> = (0..).zip(index).map(|(p, i)| (key(i), p)).collect();
        expected.sort();
        let [keys, positions] = [keys, positions].map(|t| t.to_host().unwrap());
        let ours: Vec<(i32, i32)> =
            keys.read().iter().copied().zip(positions.read().iter().copied()).collect();
        assert_eq!(ours, expected);
    }

    #[test]
    fn an_index_outside_the_table_is_not_a_number_and_has_no_gradient() {
        let on_device = |t: Tensor| t.to_device(Device::Emu).unwrap();
        let table = on_device(Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3, 1]));
        let index = on_device(Tensor::from_slice(&[2, -1, 0, 3, i32::MIN, 2], &[6]));
        let mut y = Tensor::empty_on(Device::Emu, &[6, 1], Dtype::F32);
        let saved = Embedding.launch_forward(&[&table, &index], &mut y);
        let known = y.to_host().unwrap().to_f64().iter().map(|y| !y.is_nan()).collect::<Vec<_>>();
        assert_eq!(known, [true, false, true, false, false, true]);
        let dy = on_device(Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[6, 1]));
        let input =
            |variable, t: &Tensor| Input { variable, shape: t.shape().into(), dtype: t.dtype() };
        let (mut all, inputs) = ([None], [input(Some(0), &table), input(None, &index)]);
        let plan = &mut op::GradientPlan::default();
        op::backward(&Embedding, &saved, dy, &inputs, &mut all, (plan, false));
        let dtable = all[0].take().unwrap().tensor.to_host().unwrap();
        assert_eq!(dtable.to_f64(), [3.0, 0.0, 7.0]);
    }
}
