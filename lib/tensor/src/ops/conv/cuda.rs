use super::{Conv, Geometry};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::divisor::divisor;
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, reduce_rows, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::linear::multiply_and_sum;
use crate::tensor::Tensor;

/// The kernels for one or two axes.
pub static SOURCE: Source = source!("conv", ALL_DTYPES);
/// The same for three, which need more registers.
pub static VOLUME: Source = source!("conv_volume", ALL_DTYPES);

/// Threads per block.
const THREADS: usize = 128;
/// Blocks that occupy a large GPU: tiles are made smaller, and sums split, until there are that many.
const BLOCKS: usize = 132;
/// The output cells per part of a sum are a multiple of this.
const CHUNK: usize = 256;

/// The tile that a block computes; each kernel exists in these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tile {
    /// 64 × 64.
    Small,
    /// 128 × 128, or 64 × 128 in f32, which would run out of registers.
    Medium,
    /// 64 × 64, for operands whose rows are not multiples of 16 bytes.
    Unaligned,
}

impl Tile {
    /// For a result of `rows` × `columns` in `parts` parts, from operands with contiguous groups of `groups` elements.
    /// Depends only on sizes, so that results are bit-identical on every GPU.
    fn pick(element: Dtype, [rows, columns]: [usize; 2], parts: usize, groups: &[usize]) -> Self {
        let vector = 16 / element.bytes();
        if groups.iter().any(|group| !group.is_multiple_of(vector)) {
            Tile::Unaligned
        } else if Tile::Medium.blocks(element, [rows, columns]) * parts >= BLOCKS && columns > 64 {
            Tile::Medium
        } else {
            Tile::Small
        }
    }

    /// Rows and columns.
    fn size(self, element: Dtype) -> [usize; 2] {
        match self {
            Tile::Small | Tile::Unaligned => [64, 64],
            Tile::Medium if element == Dtype::F32 => [64, 128],
            Tile::Medium => [128, 128],
        }
    }

    /// Number of blocks for a result.
    fn blocks(self, element: Dtype, [rows, columns]: [usize; 2]) -> usize {
        let [high, wide] = self.size(element);
        rows.div_ceil(high) * columns.div_ceil(wide)
    }

    /// For a result in `parts` parts, each a sum over `k`: four pipeline stages of 64 bytes for each row and column of a
    /// tile.
    fn grid(self, element: Dtype, result: [usize; 2], parts: usize, k: usize) -> Grid {
        let [high, wide] = self.size(element);
        Grid::over([self.blocks(element, result), parts, 1], THREADS)
            .shared(4 * 64 * (high + wide))
            .operations(2 * high * wide * k)
    }
}

/// The names of the variants of a kernel: for two and three axes; small, medium and unaligned tiles.
type Variants = [[&'static str; 3]; 2];

const FORWARD: Variants = [
    ["conv_forward_small", "conv_forward_medium", "conv_forward_unaligned"],
    ["conv_volume_forward_small", "conv_volume_forward_medium", "conv_volume_forward_unaligned"],
];
const INPUT: Variants = [
    ["conv_input_small", "conv_input_medium", "conv_input_unaligned"],
    ["conv_volume_input_small", "conv_volume_input_medium", "conv_volume_input_unaligned"],
];
const FILTER: Variants = [
    ["conv_filter_small", "conv_filter_medium", "conv_filter_unaligned"],
    ["conv_volume_filter_small", "conv_volume_filter_medium", "conv_volume_filter_unaligned"],
];

/// Launches the variant of a kernel for `tile`; sizes are passed between `before` and `after`.
fn launch(
    g: &Geometry,
    element: Dtype,
    (tile, grid): (Tile, Grid),
    [planar, volume]: Variants,
    before: &[Arg],
    after: &[Arg],
) {
    let axes = if g.is_planar() { &g.axes[1..] } else { &g.axes[..] };
    let axes = axes.iter().flat_map(|a| {
        let sizes = [a.from, a.to, a.taps, a.stride].map(divisor);
        sizes.into_iter().flatten().chain([a.dilation, a.margin].map(Arg::from))
    });
    let channels = [g.channels, g.filters].map(divisor).into_iter().flatten();
    let others = [g.batch, usize::from(g.axes[0].periodic)].map(Arg::from);
    let sizes = channels.chain(others).chain(axes);
    let args: Vec<Arg> = before.iter().copied().chain(sizes).chain(after.iter().copied()).collect();
    let (source, [small, medium, unaligned]) =
        if g.is_planar() { (&SOURCE, planar) } else { (&VOLUME, volume) };
    let kernel = match tile {
        Tile::Small => small,
        Tile::Medium => medium,
        Tile::Unaligned => unaligned,
    };
    source.launch(element, kernel, grid, &args);
}

impl Launch for Conv {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, w) = (inputs[0], inputs[1]);
        output(&self.geometry(x, w), [x, w], inputs.get(2).copied(), out, false);
        vec![x.clone(), w.clone()]
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        let (x, w) = (&saved[0], &saved[1]);
        let g = &self.geometry(x, w);
        if let Some(GradBuffer { tensor, accumulate }) = grads.buffer(0) {
            input(g, w, &dy, None, tensor, *accumulate);
        }
        if let Some(grad) = grads.buffer(1) {
            filter(g, x, &dy, grad);
        }
        multiply_and_sum(&dy, None, None, grads.buffer(2));
    }
}

/// y (+)= the convolution of x, plus `bias`.
pub(crate) fn output(
    g: &Geometry,
    operands: [&Tensor; 2],
    bias: Option<&Tensor>,
    out: &mut Tensor,
    add: bool,
) {
    // Both operands are read in groups of the channels of a tap.
    let tile = Tile::pick(out.dtype(), [g.cells()[1], g.filters], 1, &[g.channels]);
    output_by(tile, g, operands, bias, out, add);
}

fn output_by(
    tile: Tile,
    g: &Geometry,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    out: &mut Tensor,
    add: bool,
) {
    let (element, result) = (x.dtype(), [g.cells()[1], g.filters]);
    let grid = tile.grid(element, result, 1, g.taps() * g.channels);
    launch(g, element, (tile, grid), FORWARD, args![x, w, bias, out], args![add]);
}

/// dx (+)= the gradient with respect to x, plus `bias`: with a bias, the transposed convolution of dy.
pub(crate) fn input(
    g: &Geometry,
    w: &Tensor,
    dy: &Tensor,
    bias: Option<&Tensor>,
    dx: &mut Tensor,
    add: bool,
) {
    let both = [g.channels, g.filters];
    let tile = Tile::pick(dy.dtype(), [g.cells()[0], g.channels], 1, &both);
    input_by(tile, g, [w, dy], bias, dx, add);
}

fn input_by(
    tile: Tile,
    g: &Geometry,
    [w, dy]: [&Tensor; 2],
    bias: Option<&Tensor>,
    dx: &mut Tensor,
    add: bool,
) {
    let (element, result) = (dy.dtype(), [g.cells()[0], g.channels]);
    let grid = tile.grid(element, result, 1, g.taps() * g.filters);
    launch(g, element, (tile, grid), INPUT, args![dy, w, bias, dx], args![add]);
}

/// dw, in parts over output cells.
pub(crate) fn filter(g: &Geometry, x: &Tensor, dy: &Tensor, grad: &mut GradBuffer) {
    let most = g.cells()[1].div_ceil(CHUNK);
    let result = [g.filters, g.taps() * g.channels];
    filter_by(Tile::pick(dy.dtype(), result, most, &[g.channels, g.filters]), g, x, dy, grad);
}

fn filter_by(tile: Tile, g: &Geometry, x: &Tensor, dy: &Tensor, grad: &mut GradBuffer) {
    let (element, cells, width) = (dy.dtype(), g.cells()[1], g.taps() * g.channels);
    let result = [g.filters, width];
    let wanted = (2 * BLOCKS).div_ceil(tile.blocks(element, result).max(1));
    let chunk_cells = cells.div_ceil(wanted).next_multiple_of(CHUNK).max(CHUNK);
    let parts = cells.div_ceil(chunk_cells);
    let mut partials = Tensor::empty_on(x.device(), &[parts, g.filters * width], Dtype::F32);
    let grid = tile.grid(element, result, parts, chunk_cells);
    let before = args![x, dy, &mut partials];
    launch(g, element, (tile, grid), FILTER, before, args![chunk_cells]);
    reduce_rows::sum_to(&partials, grad);
}

#[cfg(all(test, feature = "emu"))]
mod tests {
    use super::*;
    use crate::check::{difference, draw, inputs, run, tolerance};
    use crate::device::Device;
    use crate::op::{Case, Draw};
    use crate::ops::conv::Padding;

    /// Medium tiles are meant for results too large for the emulator; here they are used for any size.
    #[test]
    fn every_tile_gives_the_same_convolution() {
        let seed = 7;
        for (op, x, w) in [
            (Conv::same([1, 1, 3], Padding::Periodic), [1, 1, 2, 75, 16], [136, 1, 1, 3, 16]),
            (Conv::same([1, 3, 3], Padding::Zero), [1, 1, 5, 6, 136], [24, 1, 3, 3, 136]),
            (
                Conv { stride: [1, 1, 2], ..Conv::same([1, 1, 3], Padding::Zero) },
                [2, 1, 1, 301, 8],
                [8, 1, 1, 3, 8],
            ),
            (Conv::same([3, 3, 1], Padding::Zero), [1, 3, 5, 6, 136], [24, 3, 3, 1, 136]),
            (
                Conv { stride: [2, 1, 2], ..Conv::same([3, 1, 3], Padding::Periodic) },
                [1, 6, 9, 10, 8],
                [136, 3, 1, 3, 8],
            ),
        ] {
            let case = Case::new(op, &[&x, &w, &w[..1]]);
            let g = Geometry::new(&op, &x, &w).unwrap();
            let exact = inputs(&case, seed);
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let given: Vec<Tensor> = exact.iter().map(|t| t.to_dtype(dtype)).collect();
                let exact: Vec<Tensor> = given.iter().map(|t| t.to_dtype(Dtype::F64)).collect();
                let dy = draw(&g.output(), &Draw::Normal, seed, 9).to_dtype(dtype);
                let (out64, grads64) = run(&case, &exact, &dy.to_dtype(Dtype::F64), None);
                let dy = dy.to_device(Device::Emu).unwrap();
                let given: Vec<Tensor> =
                    given.iter().map(|t| t.to_device(Device::Emu).unwrap()).collect();
                let on_device = |shape: &[usize]| Tensor::empty_on(Device::Emu, shape, dtype);
                let grad =
                    |shape: &[usize]| GradBuffer { tensor: on_device(shape), accumulate: false };
                for tile in [Tile::Small, Tile::Medium, Tile::Unaligned] {
                    let (mut out, mut dx, mut dw) = (on_device(&g.output()), grad(&x), grad(&w));
                    let bias = Some(&given[2]);
                    output_by(tile, &g, [&given[0], &given[1]], bias, &mut out, false);
                    input_by(tile, &g, [&given[1], &dy], None, &mut dx.tensor, false);
                    filter_by(tile, &g, &given[0], &dy, &mut dw);
                    let results = [(&out, &out64), (&dx.tensor, grads64[0].as_ref().unwrap())];
                    let results =
                        results.into_iter().chain([(&dw.tensor, grads64[1].as_ref().unwrap())]);
                    for (ours, exact) in results {
                        let error = difference(&ours.to_host().unwrap(), exact);
                        let allowed = tolerance(dtype, 10_000);
                        assert!(error < allowed, "{op:?} {dtype} {tile:?}: {error:e}");
                    }
                }
            }
        }
    }
}
