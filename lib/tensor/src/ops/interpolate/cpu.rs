use super::{Interpolate, Interpolation};
use crate::dtype::Float;
use crate::for_rows;
use crate::op::GradBuffer;
use crate::ops::grid;
use crate::tensor::Tensor;

/// For each new cell along one axis, the old cells that it reads and their weights.
type Weights<T> = Vec<Vec<(usize, T)>>;

/// Returns the weights of `to` new cells over `from` old cells.
fn weights<T: Float>(interpolation: Interpolation, from: usize, to: usize) -> Weights<T> {
    let of = |i: usize| match interpolation {
        Interpolation::Nearest => vec![(i * from / to, T::ONE)],
        Interpolation::Linear => {
            // The exact position in units of 1/(2·to).
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

/// Returns the transpose: the new cells to which each old cell contributes, in order.
fn adjoint<T: Float>(weights: &Weights<T>, from: usize) -> Weights<T> {
    let mut all = vec![vec![]; from];
    for (new, olds) in weights.iter().enumerate() {
        for (old, weight) in olds {
            all[*old].push((new, *weight));
        }
    }
    all
}

/// Computes every cell of `to` as a weighted sum of cells of `from` [B, depth, rows, columns, C], or accumulates if
/// `add` is set, given the weights along each axis.
fn gather<T: Float>(
    [by_plane, by_row, by_column]: &[Weights<T>; 3],
    (from, [_, _, rows, columns, _]): (&[T], [usize; 5]),
    to: &mut Tensor,
    add: bool,
) {
    let lengths = grid::of(to);
    let c = lengths[4];
    let sample_len = from.len() / lengths[0].max(1);
    for_rows!((to.write::<T>(), c), 8 * c, |cell, y| {
        let y = &mut y[..c];
        if !add {
            y.fill(T::ZERO);
        }
        let (sample, [i, j, k]) = grid::split(cell, lengths);
        let x = &from[sample * sample_len..][..sample_len];
        for (plane, wp) in &by_plane[i] {
            for (row, wr) in &by_row[j] {
                let (line, wr) = ((plane * rows + row) * columns, *wp * *wr);
                for (column, wc) in &by_column[k] {
                    let (weight, x) = (wr * *wc, &x[(line + column) * c..][..c]);
                    for i in 0..c {
                        y[i] = weight.mul_add(x[i], y[i]);
                    }
                }
            }
        }
    });
}

/// Returns the weights along each axis, from x to y.
fn weights_of<T: Float>(op: &Interpolate, x: [usize; 5]) -> [Weights<T>; 3] {
    [0, 1, 2].map(|axis| weights(op.interpolation, x[axis + 1], op.grid[axis]))
}

pub(super) fn forward<T: Float>(op: &Interpolate, x: &Tensor, out: &mut Tensor) {
    let from = grid::of(x);
    gather(&weights_of(op, from), (x.read::<T>(), from), out, false);
}

pub(super) fn backward<T: Float>(op: &Interpolate, dy: &Tensor, grad: &mut GradBuffer) {
    let (from, to) = (grid::of(&grad.tensor), grid::of(dy));
    let weights: [Weights<T>; 3] = weights_of(op, from);
    let weights = [0, 1, 2].map(|axis| adjoint(&weights[axis], from[axis + 1]));
    gather(&weights, (dy.read::<T>(), to), &mut grad.tensor, grad.accumulate);
}
