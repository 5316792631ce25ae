use super::Geometry;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::{ALL_ELEMENTS, Arg, Grid, Source, columns, units};
use crate::op::{Grads, Saved, Slot};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "conv", text: include_str!("conv.cu"), elements: ALL_ELEMENTS };

/// Threads of a block, and rows of the result that it makes, as in the source.
const THREADS: usize = 256;
const TILE_ROWS: usize = 128;
/// Blocks that occupy a large card twice over: sums over more cells than that needs are split.
const BLOCKS: usize = 264;
/// Output cells of a part of such a sum are a multiple of this.
const CHUNK: usize = 256;

/// A kernel and the columns of the result that a block of it makes.
struct Tiles {
    kernel: &'static str,
    columns: usize,
}

impl Tiles {
    /// Of a kernel's three forms, the one for a result of `columns` columns from operands whose
    /// neighbours in memory come in groups of `groups` elements.
    fn pick(
        [plain, wide, odd]: [&'static str; 3],
        element: Dtype,
        columns: usize,
        groups: &[usize],
    ) -> Self {
        let vector = 16 / element.bytes();
        if groups.iter().any(|group| !group.is_multiple_of(vector)) {
            Tiles { kernel: odd, columns: 64 }
        } else if columns <= 64 || element == Dtype::F32 {
            Tiles { kernel: plain, columns: 64 }
        } else {
            Tiles { kernel: wide, columns: 128 }
        }
    }

    /// Blocks for a result of that size.
    fn blocks(&self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(TILE_ROWS) * columns.div_ceil(self.columns)
    }
}

/// Launches one of the kernels: all take what comes `before` and `after` around the sizes.
fn launch(
    g: &Geometry,
    element: Dtype,
    kernel: &'static str,
    grid: Grid,
    before: &[Arg],
    after: &[Arg],
) {
    let axes = [g.rows, g.columns]
        .map(|axis| [axis.from, axis.to, axis.taps, axis.stride, axis.dilation, axis.margin]);
    let sizes = [g.batch, g.channels, g.filters, usize::from(g.rows.periodic)];
    let sizes = sizes.into_iter().chain(axes.into_iter().flatten()).map(Arg::from);
    let args: Vec<Arg> = before.iter().copied().chain(sizes).chain(after.iter().copied()).collect();
    SOURCE.launch(element, kernel, grid, &args);
}

pub(super) fn forward(g: &Geometry, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    let (x, w, element) = (inputs[0], inputs[1], out.dtype());
    let kernels = ["conv_forward", "conv_forward_wide", "conv_forward_odd"];
    let tiles = Tiles::pick(kernels, element, g.filters, &[g.channels]);
    let grid = Grid::new(tiles.blocks(g.cells()[1], g.filters), THREADS);
    let before = args![x, w, inputs.get(2).copied(), out];
    launch(g, element, tiles.kernel, grid, before, &[]);
    vec![x.clone(), w.clone()]
}

pub(super) fn backward(g: &Geometry, saved: &Saved, dy: Tensor, grads: &mut Grads, bias: bool) {
    let (x, w) = (&saved[0], &saved[1]);
    if let Some(mut slot) = grads.take(0) {
        input(g, w, &dy, &mut slot);
        grads.put(0, slot);
    }
    if let Some(mut slot) = grads.take(1) {
        filter(g, x, &dy, &mut slot);
        grads.put(1, slot);
    }
    if bias && let Some(mut slot) = grads.take(2) {
        let (element, cells, filters) = (dy.dtype(), g.cells()[1], g.filters);
        let (chunks, chunk_cells) = units::chunks(cells, filters);
        let mut partials = Tensor::arbitrary_on(dy.device(), &[chunks, filters], Dtype::F32);
        SOURCE.launch(
            element,
            "conv_bias",
            units::grid(element, chunks, filters),
            args![&dy, &mut partials, cells, chunk_cells, chunks, filters],
        );
        columns::sum_rows(&partials, &mut slot);
        grads.put(2, slot);
    }
}

/// dx.
fn input(g: &Geometry, w: &Tensor, dy: &Tensor, slot: &mut Slot) {
    let element = dy.dtype();
    let kernels = ["conv_input", "conv_input_wide", "conv_input_odd"];
    let tiles = Tiles::pick(kernels, element, g.channels, &[g.channels, g.filters]);
    let grid = Grid::new(tiles.blocks(g.cells()[0], g.channels), THREADS);
    let add = Arg::from(slot.add);
    launch(g, element, tiles.kernel, grid, args![dy, w, &mut slot.tensor], &[add]);
}

/// dw, split over output cells.
fn filter(g: &Geometry, x: &Tensor, dy: &Tensor, slot: &mut Slot) {
    let (element, cells, width) = (dy.dtype(), g.cells()[1], g.taps() * g.channels);
    let kernels = ["conv_filter", "conv_filter_wide", "conv_filter_odd"];
    let tiles = Tiles::pick(kernels, element, width, &[g.channels, g.filters]);
    let blocks = tiles.blocks(g.filters, width);
    let parts = BLOCKS.div_ceil(blocks.max(1)).min(cells.div_ceil(CHUNK)).max(1);
    let chunk_cells = cells.div_ceil(parts).next_multiple_of(CHUNK);
    let parts = cells.div_ceil(chunk_cells);
    let mut partials = Tensor::arbitrary_on(x.device(), &[parts, g.filters * width], Dtype::F32);
    let grid = Grid::grid([blocks, parts, 1], THREADS);
    launch(g, element, tiles.kernel, grid, args![x, dy, &mut partials], args![chunk_cells]);
    columns::sum_rows(&partials, slot);
}
