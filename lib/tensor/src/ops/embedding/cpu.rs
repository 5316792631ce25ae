use crate::dtype::{Element, Float};
use crate::for_rows;
use crate::tensor::Tensor;

/// Returns the row of an index; `None` if it is outside 0..`rows`.
fn row(index: i32, rows: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|i| *i < rows)
}

/// Writes (or accumulates) the rows of `table` selected by `index`; an index out of range gives `outside`.
pub(crate) fn gather<T: Float>(
    table: &Tensor,
    index: &[i32],
    out: &mut [T],
    outside: T,
    accumulate: bool,
) {
    let (v, h, table) = (table.shape()[0], table.width(), table.read::<T>());
    for_rows!((out, h), h, |position, out| {
        match row(index[position], v).map(|row| &table[row * h..][..h]) {
            Some(row) if accumulate => out.iter_mut().zip(row).for_each(|(y, x)| *y += *x),
            Some(row) => out.copy_from_slice(row),
            None if accumulate => out.iter_mut().for_each(|y| *y += outside),
            None => out.fill(outside),
        }
    });
}

/// Copies rows of a table of any dtype, without a gradient; those outside it are not numbers.
pub(super) fn rows<T: Element>(table: &Tensor, index: &[i32], out: &mut [T]) {
    let (v, h, table) = (table.shape()[0], table.width(), table.read::<T>());
    for_rows!((out, h), h, |position, out| {
        match row(index[position], v).map(|row| &table[row * h..][..h]) {
            Some(row) => out.copy_from_slice(row),
            None => out.fill(T::of(f64::NAN)),
        }
    });
}

/// Returns the positions, stably sorted by index, and the offset at which the positions of each of the `rows` indices
/// start, with an extra entry for the end.
fn sorted(index: &[i32], rows: usize) -> (Vec<usize>, Vec<usize>) {
    let mut begin = vec![0; rows + 1];
    for row in index.iter().filter_map(|i| row(*i, rows)) {
        begin[row + 1] += 1;
    }
    for row in 0..rows {
        begin[row + 1] += begin[row];
    }
    let mut next = begin.clone();
    let mut positions = vec![0; begin[rows]];
    for (position, index) in index.iter().enumerate() {
        if let Some(row) = row(*index, rows) {
            positions[next[row]] = position;
            next[row] += 1;
        }
    }
    (positions, begin)
}

/// Writes (or accumulates) the sums of the rows of `x` by `index`, each in the order of its positions, to `table`.
pub(crate) fn scatter_add<T: Float>(index: &[i32], x: &[T], table: &mut Tensor, accumulate: bool) {
    let (v, h) = (table.shape()[0], table.width());
    let (positions, begin) = sorted(index, v);
    for_rows!((table.write::<T>(), h), h, |row, sum| {
        if !accumulate {
            sum.fill(T::ZERO);
        }
        for position in &positions[begin[row]..begin[row + 1]] {
            let x = &x[position * h..][..h];
            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += *x);
        }
    });
}
