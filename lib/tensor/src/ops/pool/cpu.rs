use super::{Pool, Pooling};
use crate::dtype::Float;
use crate::for_rows;
use crate::op::GradBuffer;
use crate::tensor::Tensor;

/// The shape [B, rows, columns, C] of a grid tensor.
pub(crate) fn lengths(x: &Tensor) -> [usize; 4] {
    std::array::from_fn(|axis| x.shape()[axis])
}

/// The cells in the window of an output cell (an index over all samples), in row-major order.
#[inline(always)]
fn window(op: &Pool, x: [usize; 4], out: [usize; 4], cell: usize) -> impl Iterator<Item = usize> {
    let [_, rows, columns, _] = x;
    let (sample, i, j) = split(cell, out);
    let first = (sample * rows + i * op.stride[0]) * columns + j * op.stride[1];
    let width = op.window[1];
    (0..op.window[0] * width).map(move |tap| first + tap / width * columns + tap % width)
}

/// Sample, row and column of a cell.
#[inline(always)]
fn split(cell: usize, [_, rows, columns, _]: [usize; 4]) -> (usize, usize, usize) {
    (cell / (rows * columns), cell / columns % rows, cell % columns)
}

pub(super) fn mean<T: Float>(op: &Pool, x: &Tensor, out: &mut Tensor) {
    let (from, to, taps) = (lengths(x), lengths(out), op.window[0] * op.window[1]);
    let (c, x) = (from[3], x.read::<T>());
    let share = T::of(1.0 / taps as f64);
    for_rows!((out.write::<T>(), c), c * taps, |cell, y| {
        y.fill(T::ZERO);
        for from in window(op, from, to, cell) {
            for (y, x) in y.iter_mut().zip(&x[from * c..][..c]) {
                *y += *x;
            }
        }
        y.iter_mut().for_each(|y| *y *= share);
    });
}

pub(super) fn max<T: Float>(op: &Pool, x: &Tensor, out: &mut Tensor, chosen: &mut [i32]) {
    let (from, to, taps) = (lengths(x), lengths(out), op.window[0] * op.window[1]);
    let (c, x) = (from[3], x.read::<T>());
    for_rows!(((out.write::<T>(), c), (chosen, c)), c * taps, |cell, (y, chosen)| {
        let (y, chosen) = (&mut y[..c], &mut chosen[..c]);
        for (tap, from) in (0..).zip(window(op, from, to, cell)) {
            let x = &x[from * c..][..c];
            for i in 0..c {
                let nan = x[i].partial_cmp(&x[i]).is_none();
                let larger = tap == 0 || x[i] > y[i] || nan;
                y[i] = if larger { x[i] } else { y[i] };
                chosen[i] = if larger { tap } else { chosen[i] };
            }
        }
    });
}

/// The windows along one axis that contain cell `at`: each window's index, and the position of the cell in it.
fn around(at: usize, window: usize, stride: usize, count: usize) -> Vec<(usize, usize)> {
    let first = (at + 1).saturating_sub(window).div_ceil(stride);
    (first..count.min(at / stride + 1)).map(|i| (i, at - i * stride)).collect()
}

pub(super) fn backward<T: Float>(
    op: &Pool,
    chosen: Option<&[i32]>,
    dy: &Tensor,
    grad: &mut GradBuffer,
) {
    let (from, to, add) = (lengths(&grad.tensor), lengths(dy), grad.accumulate);
    let [_, rows, columns, c] = from;
    let windows = |axis: usize, len: usize| -> Vec<_> {
        let count = to[axis + 1];
        (0..len).map(|at| around(at, op.window[axis], op.stride[axis], count)).collect()
    };
    let (by_row, by_column) = (windows(0, rows), windows(1, columns));
    let share = match op.pooling {
        Pooling::Mean => T::of(1.0 / (op.window[0] * op.window[1]) as f64),
        Pooling::Max => T::ONE,
    };
    let dy = dy.read::<T>();
    for_rows!((grad.tensor.write::<T>(), c), c, |cell, dx| {
        let dx = &mut dx[..c];
        if !add {
            dx.fill(T::ZERO);
        }
        let (sample, i, j) = split(cell, from);
        for (row, p) in &by_row[i] {
            for (column, q) in &by_column[j] {
                let at = ((sample * to[1] + row) * to[2] + column) * c;
                let (dy, tap) = (&dy[at..][..c], (p * op.window[1] + q) as i32);
                match chosen.map(|chosen| &chosen[at..][..c]) {
                    None => {
                        for i in 0..c {
                            dx[i] = share.mul_add(dy[i], dx[i]);
                        }
                    }
                    Some(chosen) => {
                        for i in 0..c {
                            dx[i] += if chosen[i] == tap { dy[i] } else { T::ZERO };
                        }
                    }
                }
            }
        }
    });
}
