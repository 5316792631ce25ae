//! How the kernels are launched.

use super::Residual;
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::columns::{self, Target, zeroed};
use crate::kernel::rows::{self, THREADS};
use crate::kernel::{ALL_ELEMENTS, Arg, Grid, Source, flat};
use crate::op::{GradBuffer, Grads, Launch, Saved};
use crate::tensor::Tensor;

/// The kernels.
pub static SOURCE: Source =
    Source { name: "residual", text: include_str!("residual.cu"), elements: ALL_ELEMENTS };

/// Where the gates of the rows are.
struct Layout {
    groups: usize,
    /// Elements between the gates of two groups, and the first one's place.
    stride: usize,
    start: usize,
    /// What is added to the stored vector to make the gate.
    offset: f32,
}

fn layout(op: Residual, gate: &Tensor, width: usize) -> Layout {
    match op {
        Residual::Gated(index) => {
            let stride = gate.width();
            Layout { groups: gate.rows(), stride, start: index * width, offset: 1.0 }
        }
        Residual::Plain | Residual::Scaled => {
            Layout { groups: 1, stride: 0, start: 0, offset: 0.0 }
        }
    }
}

/// Tiles of columns that a warp goes down: 32 vectors of 16 bytes, or 32 elements of odd rows.
fn tiles(width: usize, element: Dtype) -> usize {
    let vector = 16 / element.bytes();
    width.div_ceil(if width.is_multiple_of(vector) { 32 * vector } else { 32 })
}

impl Launch for Residual {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [x, y] = [inputs[0], inputs[1]];
        match inputs.get(2) {
            None => {
                plain(x, y, out);
                vec![]
            }
            Some(gate) => {
                gated(*self, [x, y, gate], out);
                vec![y.clone(), (*gate).clone()]
            }
        }
    }

    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if *self == Residual::Plain {
            grads.accumulate(1, dy.clone());
        } else {
            let [dbranch, dgate] = grads.buffers([1, 2]);
            backward(*self, [&saved[0], &saved[1]], &dy, dbranch, dgate);
        }
        grads.accumulate(0, dy);
    }
}

fn plain(x: &Tensor, y: &Tensor, out: &mut Tensor) {
    let grid = flat::grid(x.len(), x.dtype());
    SOURCE.launch(x.dtype(), "residual_plain", grid, args![x, y, out, x.len() as i64]);
}

fn gated(op: Residual, [x, y, gate]: [&Tensor; 3], out: &mut Tensor) {
    let width = x.width();
    let Layout { groups, stride, start, offset } = layout(op, gate, width);
    let rows = x.rows() / groups.max(1);
    let parts = rows::parts(rows, THREADS / 32, usize::MAX);
    let grid = Grid::new(groups * parts * tiles(width, x.dtype()), THREADS);
    let (start, stride) = (start as i64, stride as i64);
    let args = args![x, y, gate, start, out, rows, width, stride, offset, parts];
    SOURCE.launch(x.dtype(), "residual_gated", grid, args);
}

fn backward(
    op: Residual,
    [y, gate]: [&Tensor; 2],
    dy: &Tensor,
    dbranch: Option<&mut GradBuffer>,
    dgate: Option<&mut GradBuffer>,
) {
    let width = y.width();
    let Layout { groups, stride, start, offset } = layout(op, gate, width);
    let rows = y.rows() / groups.max(1);
    let tiles = tiles(width, y.dtype());
    let parts =
        rows::parts(rows, THREADS / 32, rows::most_blocks(THREADS) / (groups * tiles).max(1));
    let mut partials = dgate
        .is_some()
        .then(|| Tensor::arbitrary_on(y.device(), &[groups, parts, 1, width], Dtype::F32));
    let add = dbranch.as_ref().is_some_and(|grad| grad.accumulate);
    SOURCE.launch(
        y.dtype(),
        "residual_gated_backward",
        Grid::new(groups * parts * tiles, THREADS),
        args![
            y,
            gate,
            start as i64,
            dy,
            dbranch.map(|grad| &mut grad.tensor),
            add,
            partials.as_mut(),
            rows,
            width,
            stride as i64,
            offset,
            parts,
        ],
    );
    let (Some(partials), Some(grad)) = (partials, dgate) else { return };
    // Vectors that are not this gate have no gradient.
    let target = match op {
        Residual::Gated(_) => Target { out: Arg::from(zeroed(grad)), start, add: true },
        Residual::Plain | Residual::Scaled => Target::whole(grad),
    };
    columns::sum(&partials, y.dtype(), stride, [Some(target), None]);
}
