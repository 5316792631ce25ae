use super::{Conv, Geometry};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::divisor::divisor;
use crate::kernel::product::{self, Epilogue, Matrix, Product};
use crate::kernel::{ALL_DTYPES, Arg, Grid, ONLY_F32, Source, reduce_rows, source};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::ops::linear::multiply_and_sum;
use crate::tensor::Tensor;

/// Kernels for one or two axes.
pub static SOURCE: Source = source!("conv", ALL_DTYPES);
/// Kernels for three axes, which need more registers.
pub static VOLUME: Source = source!("conv_volume", ALL_DTYPES);
/// Kernels for one or two axes with f32 rounded to tf32 (`set_tf32`).
pub static SOURCE_TF32: Source = source!("conv_tf32", ONLY_F32);
/// Kernels for three axes with f32 rounded to tf32.
pub static VOLUME_TF32: Source = source!("conv_volume_tf32", ONLY_F32);

/// Threads per block.
const THREADS: usize = 128;
/// Number of blocks that fill a large GPU. With fewer, tiles are made smaller and sums are split (split-k).
const BLOCKS: usize = 132;
/// Split-k granularity: the number of output cells per partial sum is a multiple of this.
const CHUNK: usize = 256;

/// Tile computed by one block; each kernel is compiled in these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tile {
    /// 64 × 64.
    Small,
    /// 128 × 128, or 64 × 128 in full f32, where 128 × 128 would run out of registers.
    Medium,
    /// 64 × 64, for operands whose rows are not multiples of 16 bytes.
    Unaligned,
}

/// Dtype and multiplication mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    element: Dtype,
    /// Whether f32 is rounded to tf32.
    tf32: bool,
}

impl Unit {
    fn of(element: Dtype) -> Self {
        Self { element, tf32: element == Dtype::F32 && product::is_tf32() }
    }
}

impl Tile {
    /// Picks the tile for a result of `rows` × `columns` in `parts` partial sums from operands with contiguous runs of
    /// `groups` elements. Depends only on sizes, so that results are bit-identical on every GPU.
    fn pick(unit: Unit, [rows, columns]: [usize; 2], parts: usize, groups: &[usize]) -> Self {
        let vector = 16 / unit.element.bytes();
        if groups.iter().any(|group| !group.is_multiple_of(vector)) {
            Tile::Unaligned
        } else if Tile::Medium.blocks(unit, [rows, columns]) * parts >= BLOCKS && columns > 64 {
            Tile::Medium
        } else {
            Tile::Small
        }
    }

    /// Returns the number of rows and columns.
    fn size(self, unit: Unit) -> [usize; 2] {
        match self {
            Tile::Small | Tile::Unaligned => [64, 64],
            Tile::Medium if unit.element == Dtype::F32 && !unit.tf32 => [64, 128],
            Tile::Medium => [128, 128],
        }
    }

    /// Returns the number of blocks for a result.
    fn blocks(self, unit: Unit, [rows, columns]: [usize; 2]) -> usize {
        let [high, wide] = self.size(unit);
        rows.div_ceil(high) * columns.div_ceil(wide)
    }

    /// Returns the grid for a result in `parts` partial sums, each over `k`. Shared memory holds four pipeline stages
    /// of 64 bytes for each row and column of a tile.
    fn grid(self, unit: Unit, result: [usize; 2], parts: usize, k: usize) -> Grid {
        let [high, wide] = self.size(unit);
        Grid::over([self.blocks(unit, result), parts, 1], THREADS)
            .shared(4 * 64 * (high + wide))
            .flops(2 * high * wide * k)
    }
}

/// Names of the variants of a kernel: two axes, three axes, then both with tf32; in each, small, medium and unaligned
/// tiles.
type Variants = [[&'static str; 3]; 4];

macro_rules! variants {
    ($kernel:literal) => {
        variants!($kernel, "conv_", "conv_volume_", "conv_tf32_", "conv_volume_tf32_")
    };
    ($kernel:literal, $($source:literal),*) => {
        [$([
            concat!($source, $kernel, "_small"),
            concat!($source, $kernel, "_medium"),
            concat!($source, $kernel, "_unaligned"),
        ]),*]
    };
}

const FORWARD: Variants = variants!("forward");
const INPUT: Variants = variants!("input");
const FILTER: Variants = variants!("filter");

/// Launches the variant of a kernel for `tile`; the sizes are inserted between the arguments `before` and `after`.
fn launch(
    g: &Geometry,
    unit: Unit,
    (tile, grid): (Tile, Grid),
    variants: Variants,
    before: &[Arg],
    after: &[Arg],
) {
    let axes = if g.is_planar() { &g.axes[1..] } else { &g.axes[..] };
    let axes = axes.iter().flat_map(|a| {
        let sizes = [a.from, a.to, a.taps, a.stride].map(divisor);
        sizes.into_iter().flatten().chain([a.dilation, a.margin].map(Arg::from))
    });
    let channels = [g.channels, g.filters].map(divisor).into_iter().flatten();
    // Kernels count cells and 16-byte chunks in 31 bits; a larger size, passed as the batch, makes the launch fail.
    let chunks = |cells: usize, width: usize| cells.max(cells * width * unit.element.bytes() / 16);
    let [from, to] = g.cells();
    let largest = chunks(from, g.channels).max(chunks(to, g.filters));
    let batch = if largest > i32::MAX as usize { largest } else { g.batch };
    let others = [batch, usize::from(g.axes[0].periodic)].map(Arg::from);
    let sizes = channels.chain(others).chain(axes);
    let args: Vec<Arg> = before.iter().copied().chain(sizes).chain(after.iter().copied()).collect();
    let variant = usize::from(!g.is_planar()) + 2 * usize::from(unit.tf32);
    let source = [&SOURCE, &VOLUME, &SOURCE_TF32, &VOLUME_TF32][variant];
    source.launch(unit.element, variants[variant][tile as usize], grid, &args);
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
        grads.widen(&[2]);
        multiply_and_sum(&dy, None, None, grads.buffer(2));
    }
}

/// Writes the convolution of x plus `bias` to `out`, or accumulates if `add` is set.
pub(crate) fn output(
    g: &Geometry,
    operands: [&Tensor; 2],
    bias: Option<&Tensor>,
    out: &mut Tensor,
    add: bool,
) {
    if g.is_pointwise() {
        let [x, w] = operands;
        let w = Matrix::new(w, g.filters, g.channels).transposed();
        let epilogue = Epilogue { bias, add, ..Epilogue::default() };
        return Product::new(Matrix::new(x, g.cells()[0], g.channels), w).write(out, epilogue);
    }
    // Both operands are contiguous over the channels of a tap.
    let unit = Unit::of(out.dtype());
    let tile = Tile::pick(unit, [g.cells()[1], g.filters], 1, &[g.channels]);
    output_by((tile, unit), g, operands, bias, out, add);
}

fn output_by(
    (tile, unit): (Tile, Unit),
    g: &Geometry,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    out: &mut Tensor,
    add: bool,
) {
    let result = [g.cells()[1], g.filters];
    let grid = tile.grid(unit, result, 1, g.taps() * g.channels);
    launch(g, unit, (tile, grid), FORWARD, args![x, w, bias, out], args![add]);
}

/// Writes the gradient of x, a transposed convolution of dy, plus `bias` to `dx`, or accumulates if `add` is set.
pub(crate) fn input(
    g: &Geometry,
    w: &Tensor,
    dy: &Tensor,
    bias: Option<&Tensor>,
    dx: &mut Tensor,
    add: bool,
) {
    if g.is_pointwise() {
        let dy = Matrix::new(dy, g.cells()[1], g.filters);
        let epilogue = Epilogue { bias, add, ..Epilogue::default() };
        return Product::new(dy, Matrix::new(w, g.filters, g.channels)).write(dx, epilogue);
    }
    let (unit, both) = (Unit::of(dy.dtype()), [g.channels, g.filters]);
    let tile = Tile::pick(unit, [g.cells()[0], g.channels], 1, &both);
    input_by((tile, unit), g, [w, dy], bias, dx, add);
}

fn input_by(
    (tile, unit): (Tile, Unit),
    g: &Geometry,
    [w, dy]: [&Tensor; 2],
    bias: Option<&Tensor>,
    dx: &mut Tensor,
    add: bool,
) {
    let result = [g.cells()[0], g.channels];
    let grid = tile.grid(unit, result, 1, g.taps() * g.filters);
    launch(g, unit, (tile, grid), INPUT, args![dy, w, bias, dx], args![add]);
}

/// Computes dw with split-k over output cells.
pub(crate) fn filter(g: &Geometry, x: &Tensor, dy: &Tensor, grad: &mut GradBuffer) {
    if g.is_pointwise() {
        let dy = Matrix::new(dy, g.cells()[1], g.filters).transposed();
        return Product::new(dy, Matrix::new(x, g.cells()[0], g.channels)).put(grad);
    }
    let most = g.cells()[1].div_ceil(CHUNK);
    let result = [g.filters, g.taps() * g.channels];
    let unit = Unit::of(dy.dtype());
    let tile = Tile::pick(unit, result, most, &[g.channels, g.filters]);
    filter_by((tile, unit), g, x, dy, grad);
}

fn filter_by(
    (tile, unit): (Tile, Unit),
    g: &Geometry,
    x: &Tensor,
    dy: &Tensor,
    grad: &mut GradBuffer,
) {
    // A medium tf32 tile would run out of registers.
    let is_small = unit.tf32 && tile == Tile::Medium;
    let tile = if is_small { Tile::Small } else { tile };
    let (cells, width) = (g.cells()[1], g.taps() * g.channels);
    let result = [g.filters, width];
    let wanted = (2 * BLOCKS).div_ceil(tile.blocks(unit, result).max(1));
    let chunk_cells = cells.div_ceil(wanted).next_multiple_of(CHUNK).max(CHUNK);
    let parts = cells.div_ceil(chunk_cells);
    let mut partials = Tensor::empty_on(x.device(), &[parts, g.filters * width], Dtype::F32);
    let grid = tile.grid(unit, result, parts, chunk_cells);
    let before = args![x, dy, &mut partials];
    launch(g, unit, (tile, grid), FILTER, before, args![chunk_cells]);
    reduce_rows::sum_to(&partials, grad);
}

#[cfg(all(test, feature = "emu"))]
mod tests {
    use super::*;
    use crate::check::{difference, draw, inputs, run, tolerance};
    use crate::device::Device;
    use crate::op::{Case, Draw};
    use crate::ops::conv::Padding;

    /// Forces every tile, because the emulator is too slow for results large enough to select medium tiles.
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
            for (dtype, tf32) in [(Dtype::F32, false), (Dtype::F32, true), (Dtype::Bf16, false)] {
                let unit = Unit { element: dtype, tf32 };
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
                    output_by((tile, unit), &g, [&given[0], &given[1]], bias, &mut out, false);
                    input_by((tile, unit), &g, [&given[1], &dy], None, &mut dx.tensor, false);
                    filter_by((tile, unit), &g, &given[0], &dy, &mut dw);
                    let results = [(&out, &out64), (&dx.tensor, grads64[0].as_ref().unwrap())];
                    let results =
                        results.into_iter().chain([(&dw.tensor, grads64[1].as_ref().unwrap())]);
                    for (ours, exact) in results {
                        let error = difference(&ours.to_host().unwrap(), exact);
                        // tf32 has the precision of f16.
                        let precision = if tf32 { Dtype::F16 } else { dtype };
                        let allowed = tolerance(precision, 10_000);
                        assert!(error < allowed, "{op:?} {unit:?} {tile:?}: {error:e}");
                    }
                }
            }
        }
    }
}
