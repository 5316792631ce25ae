use super::{Interpolate, Interpolation};
use crate::dtype::Float;
use crate::for_rows;
use crate::op::GradBuffer;
use crate::ops::pool::lengths;
use crate::tensor::Tensor;

/// Along one axis, the old cells that each new cell reads, with their weights.
type Weights<T> = Vec<Vec<(usize, T)>>;

/// The weights of `to` new cells over `from` old cells.
fn weights<T: Float>(interpolation: Interpolation, from: usize, to: usize) -> Weights<T> {
    let of = |i: usize| match interpolation {
        Interpolation::Nearest => vec![(i * from / to, T::ONE)],
        Interpolation::Linear => {
            // The exact position, in units of 1/(2·to).
            let position = ((2 * i + 1) * from).saturating_sub(to);
            let (low, rest) = (position / (2 * to), position % (2 * to));
            let fraction = rest as f64 / (2 * to) as f64;
            if rest == 0 || low + 1 == from {
                vec![(low, T::ONE)]
            } else {
                vec![(low, T::of(1.0 - fraction)), (low + 1, T::of(fraction))]
            }
        }
    };
    (0..to).map(of).collect()
}

/// The transpose: the new cells that each old cell contributes to, in order.
fn adjoint<T: Float>(weights: &Weights<T>, from: usize) -> Weights<T> {
    let mut all = vec![vec![]; from];
    for (new, olds) in weights.iter().enumerate() {
        for (old, weight) in olds {
            all[*old].push((new, *weight));
        }
    }
    all
}

/// Every cell of `to` (+)= a weighted sum of cells of `from`.
fn gather<T: Float>(
    [by_row, by_column]: [&Weights<T>; 2],
    (from, columns): (&[T], usize),
    to: &mut Tensor,
    add: bool,
) {
    let [samples, rows, wide, c] = lengths(to);
    let sample = from.len() / samples.max(1);
    for_rows!((to.write::<T>(), c), 4 * c, |cell, y| {
        let y = &mut y[..c];
        if !add {
            y.fill(T::ZERO);
        }
        let x = &from[cell / (rows * wide) * sample..][..sample];
        for (row, wr) in &by_row[cell / wide % rows] {
            for (column, wc) in &by_column[cell % wide] {
                let (weight, x) = (*wr * *wc, &x[(row * columns + column) * c..][..c]);
                for i in 0..c {
                    y[i] = weight.mul_add(x[i], y[i]);
                }
            }
        }
    });
}

pub(super) fn forward<T: Float>(op: &Interpolate, x: &Tensor, out: &mut Tensor) {
    let [_, rows, columns, _] = lengths(x);
    let by_row = weights(op.interpolation, rows, op.grid[0]);
    let by_column = weights(op.interpolation, columns, op.grid[1]);
    gather([&by_row, &by_column], (x.read::<T>(), columns), out, false);
}

pub(super) fn backward<T: Float>(op: &Interpolate, dy: &Tensor, grad: &mut GradBuffer) {
    let [_, rows, columns, _] = lengths(&grad.tensor);
    let by_row = adjoint(&weights(op.interpolation, rows, op.grid[0]), rows);
    let by_column = adjoint(&weights(op.interpolation, columns, op.grid[1]), columns);
    gather([&by_row, &by_column], (dy.read::<T>(), op.grid[1]), &mut grad.tensor, grad.accumulate);
}
