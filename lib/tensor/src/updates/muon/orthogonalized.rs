//! The Newton-Schulz iteration on the CPU.

use super::{COEFFICIENTS, ITERATIONS};
use crate::dtype::Float;
use crate::parallel::{Shared, blocks};
use crate::product::{View, product_into};
use std::ops::Range;

/// Number of rows of one product.
const GRAIN: usize = 64;

/// Returns the result of the Newton-Schulz iteration for a matrix whose norm is at most 1.
pub(super) fn orthogonalized<T: Float>(mut x: Vec<T>, [rows, columns]: [usize; 2]) -> Vec<T> {
    let [a, b, c] = COEFFICIENTS.map(T::of);
    let (n, m, wide) = (rows.min(columns), rows.max(columns), rows < columns);
    let (mut gram, mut polynomial) = (vec![T::ZERO; n * n], vec![T::ZERO; n * n]);
    let mut next = vec![T::ZERO; rows * columns];
    for _ in 0..ITERATIONS {
        // X with n columns, or the transpose.
        let tall = match View::new(&x, rows, columns, columns) {
            x if wide => x.transposed(),
            x => x,
        };
        symmetric(&mut gram, n, |range, out| {
            let all = tall.transposed();
            // SAFETY: `symmetric` keeps elements disjoint.
            unsafe {
                product_into(
                    out,
                    n,
                    false,
                    T::ONE,
                    all.rows(range.clone()),
                    all.rows(0..range.end).transposed(),
                );
            }
        });
        let square = View::new(&gram, n, n, n);
        symmetric(&mut polynomial, n, |range, out| {
            for row in range.clone() {
                // SAFETY: as above.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.add((row - range.start) * n), range.end)
                };
                for (out, g) in out.iter_mut().zip(&gram[row * n..]) {
                    *out = b * *g;
                }
                out[row] = a + out[row];
            }
            let rhs = square.rows(0..range.end).transposed();
            // SAFETY: as above.
            unsafe { product_into(out, n, true, c, square.rows(range), rhs) };
        });
        let polynomial = View::new(&polynomial, n, n, n);
        let out = Shared::new(&mut next);
        blocks(m, GRAIN, |range| {
            let some = tall.rows(range.clone());
            // SAFETY: each block writes other rows of `out`, or other columns.
            unsafe {
                match wide {
                    true => product_into(
                        out.pointer(range.start),
                        m,
                        false,
                        T::ONE,
                        polynomial,
                        some.transposed(),
                    ),
                    false => product_into(
                        out.pointer(range.start * n),
                        n,
                        false,
                        T::ONE,
                        some,
                        polynomial,
                    ),
                }
            }
        });
        std::mem::swap(&mut x, &mut next);
    }
    x
}

/// Fills a symmetric matrix with n rows: `lower` writes a range of rows up to the column with the last row's number, at the
/// address of the first of them, and the rest is mirrored.
fn symmetric<T: Float>(out: &mut [T], n: usize, lower: impl Fn(Range<usize>, *mut T) + Sync) {
    let out = Shared::new(out);
    let count = n.div_ceil(GRAIN);
    // A short and a long block of rows together, so that all pairs cost the same.
    blocks(count.div_ceil(2), 1, |pairs| {
        for pair in pairs {
            let other = count - 1 - pair;
            for block in [pair, other].into_iter().take(1 + usize::from(other != pair)) {
                let range = block * GRAIN..((block + 1) * GRAIN).min(n);
                lower(range.clone(), out.pointer(range.start * n));
                for column in 0..range.start {
                    for row in range.clone() {
                        // SAFETY: this block has these elements of the lower and the upper half for itself.
                        unsafe { *out.pointer(column * n + row) = *out.pointer(row * n + column) };
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_size_agree_with_the_definition() {
        for shape in [[1, 1], [3, 70], [64, 64], [65, 200], [200, 129], [257, 257]] {
            let [rows, columns] = shape;
            let x: Vec<f64> =
                (0..rows * columns).map(|i| ((i * 7919) % 613) as f64 - 306.0).collect();
            let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let x: Vec<f64> = x.iter().map(|x| x / norm).collect();
            let (mut expected, [a, b, c]) = (x.clone(), COEFFICIENTS);
            let multiply = |lhs: &dyn Fn(usize, usize) -> f64,
                            rhs: &dyn Fn(usize, usize) -> f64,
                            [m, k, n]: [usize; 3]| {
                let sum = |i, j| (0..k).map(|l| lhs(i, l) * rhs(l, j)).sum();
                (0..m * n).map(|at| sum(at / n, at % n)).collect::<Vec<f64>>()
            };
            for _ in 0..ITERATIONS {
                let x = |i: usize, j: usize| expected[i * columns + j];
                let gram = multiply(&x, &|i, j| x(j, i), [rows, columns, rows]);
                let gram = |i: usize, j: usize| gram[i * rows + j];
                let gram_x = multiply(&gram, &x, [rows, rows, columns]);
                let gram_x = |i: usize, j: usize| gram_x[i * columns + j];
                let gram2_x = multiply(&gram, &gram_x, [rows, rows, columns]);
                expected = (0..rows * columns)
                    .map(|at| {
                        a * expected[at] + b * gram_x(at / columns, at % columns) + c * gram2_x[at]
                    })
                    .collect();
            }
            let result = orthogonalized(x, shape);
            // An iteration multiplies an error by at most |a| + 3|b| + 5|c| < 30 near singular values of 1, and sums of 257
            // products err by some 1e-14; five iterations stay far below.
            let worst =
                result.iter().zip(&expected).map(|(r, e)| (r - e).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-10, "{shape:?}: {worst}");
        }
    }
}
