use super::{Pool, Pooling};
use crate::dtype::Float;
use crate::for_rows;
use crate::op::GradBuffer;
use crate::ops::grid::{of, split};
use crate::tensor::Tensor;

/// Returns the cells in the window of an output cell (indices over all samples) in row-major order.
#[inline(always)]
fn window(op: &Pool, x: [usize; 5], out: [usize; 5], cell: usize) -> impl Iterator<Item = usize> {
    let [_, depth, rows, columns, _] = x;
    let (sample, at) = split(cell, out);
    let [i, j, k] = [0, 1, 2].map(|axis| at[axis] * op.stride[axis]);
    let first = ((sample * depth + i) * rows + j) * columns + k;
    let [_, high, wide] = op.window;
    let place = move |tap: usize| {
        let (line, column) = (tap / wide, tap % wide);
        first + (line / high * rows + line % high) * columns + column
    };
    (0..op.window.iter().product()).map(place)
}

pub(super) fn mean<T: Float>(op: &Pool, x: &Tensor, out: &mut Tensor) {
    let (from, to, taps) = (of(x), of(out), op.window.iter().product::<usize>());
    let (c, x) = (from[4], x.read::<T>());
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
    let (from, to, taps) = (of(x), of(out), op.window.iter().product::<usize>());
    let (c, x) = (from[4], x.read::<T>());
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

/// Returns the windows along one axis that contain cell `at`: the index of each window and the cell's position in it.
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
    let (from, to, add) = (of(&grad.tensor), of(dy), grad.accumulate);
    let windows = |axis: usize| -> Vec<_> {
        let count = to[axis + 1];
        (0..from[axis + 1]).map(|at| around(at, op.window[axis], op.stride[axis], count)).collect()
    };
    let (by_plane, by_row, by_column) = (windows(0), windows(1), windows(2));
    let share = match op.pooling {
        Pooling::Mean => T::of(1.0 / op.window.iter().product::<usize>() as f64),
        Pooling::Max => T::ONE,
    };
    let (c, dy) = (from[4], dy.read::<T>());
    for_rows!((grad.tensor.write::<T>(), c), c, |cell, dx| {
        let dx = &mut dx[..c];
        if !add {
            dx.fill(T::ZERO);
        }
        let (sample, [i, j, k]) = split(cell, from);
        for (plane, p) in &by_plane[i] {
            for (row, q) in &by_row[j] {
                for (column, r) in &by_column[k] {
                    let at = ((sample * to[1] + plane) * to[2] + row) * to[3] + column;
                    let (at, tap) = (at * c, (p * op.window[1] + q) * op.window[2] + r);
                    let (dy, tap) = (&dy[at..][..c], tap as i32);
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
        }
    });
}
