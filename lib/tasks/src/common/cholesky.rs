//! Cholesky decomposition of dense symmetric matrices in f64, in blocks, so that most of the work is matrix products on
//! all threads. Results do not depend on the number of threads.

use rayon::prelude::*;
use tensor::product::{View, product};

/// Width of the blocks; also the number of rows that a thread updates at once.
const BLOCK: usize = 96;

/// A factor L with A = L·Lᵀ.
pub(crate) struct Cholesky {
    n: usize,
    /// [n, n]; L is the lower triangle, and nothing else is read.
    l: Vec<f64>,
}

impl Cholesky {
    /// Factors `a` [n, n], of which only the lower triangle is read; n³/3 multiplications and additions. `None` if it is
    /// not positive definite.
    pub fn factor(mut a: Vec<f64>, n: usize) -> Option<Self> {
        for k in (0..n).step_by(BLOCK) {
            let end = (k + BLOCK).min(n);
            let size = end - k;
            let (above, below) = a.split_at_mut(end * n);
            let own = &mut above[k * n..];
            // The upper factor of the block on the diagonal, whose rows are contiguous.
            let mut upper = vec![0.0; size * size];
            for j in 0..size {
                (j..size).for_each(|i| upper[j * size + i] = own[i * n + k + j]);
                let (done, rest) = upper.split_at_mut(j * size);
                let row = &mut rest[j..size];
                for i in 0..j {
                    let other = &done[i * size + j..][..size - j];
                    add(row, -other[0], other);
                }
                let pivot = Some(row[0]).filter(|pivot| *pivot > 0.0)?.sqrt();
                row.iter_mut().for_each(|x| *x /= pivot);
                (j..size).for_each(|i| own[i * n + k + j] = row[i - j]);
            }
            below.par_chunks_exact_mut(n).for_each(|row| {
                let row = &mut row[k..end];
                for j in 0..size {
                    let other = &upper[j * size + j..][..size - j];
                    row[j] /= other[0];
                    let factor = -row[j];
                    add(&mut row[j + 1..], factor, &other[1..]);
                }
            });
            let panel: Vec<f64> =
                below.chunks_exact(n).flat_map(|row| &row[k..end]).copied().collect();
            below.par_chunks_mut(BLOCK * n).enumerate().with_max_len(1).for_each(
                |(block, rows)| {
                    let (first, count) = (block * BLOCK, rows.len() / n);
                    let lhs = View::new(&panel[first * size..], count, size, size);
                    let rhs = View::new(&panel, first + count, size, size).transposed();
                    product(&mut rows[end..], n, true, -1.0, lhs, rhs);
                },
            );
        }
        Some(Self { n, l: a })
    }

    /// Replaces B [n, m] with the solution X of A·X = B.
    pub fn solve(&self, b: &mut [f64], m: usize) {
        let (n, l) = (self.n, &self.l);
        let starts = (0..n).step_by(BLOCK);
        for k in starts.clone() {
            let end = (k + BLOCK).min(n);
            let (above, below) = b.split_at_mut(end * m);
            let own = &mut above[k * m..];
            for i in k..end {
                let (done, rest) = own.split_at_mut((i - k) * m);
                let row = &mut rest[..m];
                done.chunks_exact(m).zip(k..).for_each(|(x, j)| add(row, -l[i * n + j], x));
                row.iter_mut().for_each(|x| *x /= l[i * n + i]);
            }
            below.par_chunks_mut(BLOCK * m).enumerate().for_each(|(block, rows)| {
                let at = (end + block * BLOCK) * n + k;
                let lhs = View::new(&l[at..], rows.len() / m, end - k, n);
                product(rows, m, true, -1.0, lhs, View::new(own, end - k, m, m));
            });
        }
        for k in starts.rev() {
            let end = (k + BLOCK).min(n);
            let (above, rest) = b.split_at_mut(k * m);
            let own = &mut rest[..(end - k) * m];
            for i in (k..end).rev() {
                let (before, done) = own.split_at_mut((i + 1 - k) * m);
                let row = &mut before[(i - k) * m..];
                done.chunks_exact(m).zip(i + 1..).for_each(|(x, j)| add(row, -l[j * n + i], x));
                row.iter_mut().for_each(|x| *x /= l[i * n + i]);
            }
            above.par_chunks_mut(BLOCK * m).enumerate().for_each(|(block, rows)| {
                let lhs = View::new(&l[k * n + block * BLOCK..], end - k, rows.len() / m, n);
                let rhs = View::new(own, end - k, m, m);
                product(rows, m, true, -1.0, lhs.transposed(), rhs);
            });
        }
    }
}

/// to += factor·x.
fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::{Philox, Purpose};

    /// A = M·Mᵀ + n·I has a condition number of about 5, so X has errors of about n·2⁻⁵³, 3e-14. The sizes end within,
    /// at and after a block.
    #[test]
    fn solutions_of_every_size_are_recovered() {
        let random = Philox::new(test_support::seed(), Purpose::Test);
        for (n, m) in [(1, 1), (5, 3), (BLOCK, 1), (2 * BLOCK + 1, 2), (3 * BLOCK - 7, 130)] {
            let number = |of: u64, i: usize| f64::from(random.normal(of, i as u64));
            let factor: Vec<f64> = (0..n * n).map(|i| number(0, i)).collect();
            let expected: Vec<f64> = (0..n * m).map(|i| number(1, i)).collect();
            let mut a = vec![0.0; n * n];
            (0..n).for_each(|i| a[i * n + i] = n as f64);
            let view = View::new(&factor, n, n, n);
            product(&mut a, n, true, 1.0, view, view.transposed());
            let mut b = vec![0.0; n * m];
            product(&mut b, m, false, 1.0, View::new(&a, n, n, n), View::new(&expected, n, m, m));
            // The upper triangle is not read.
            (0..n).for_each(|i| a[i * n + i + 1..(i + 1) * n].fill(f64::NAN));
            Cholesky::factor(a, n).unwrap().solve(&mut b, m);
            let error = b.iter().zip(&expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(error < 1e-11, "{n} {m}: {error}");
        }
        assert!(Cholesky::factor(vec![1.0, 0.0, 2.0, 1.0], 2).is_none());
        assert!(Cholesky::factor(vec![f64::NAN], 1).is_none());
    }
}
