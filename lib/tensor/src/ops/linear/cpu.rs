use super::Activation;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::activation;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks, row_blocks};
use crate::product::{FEW, Operand, View, bf16, product, product_into};
use crate::{Scratch, Tensor, for_rows, vectorize};

/// Rows per block: enough to make packing W negligible, few enough that the block stays in the L2 cache until its
/// activation is applied.
const ROWS: usize = 256;
/// Columns per block if there are too few rows to keep all threads busy.
const COLUMNS: usize = 128;
/// Side of the blocks in which W is transposed.
const TILE: usize = 32;
/// Minimum number of elements of W for which it is transposed even for a single block of rows.
const TRANSPOSED: usize = 1 << 20;
/// Maximum number of rows of dW that one thread computes at a time if dW is divided by its rows.
const PART: usize = 384;
/// The same if W has fewer than [`LARGE`] elements, so that there are enough parts for all threads.
const SMALL_PART: usize = 256;
const LARGE: usize = 512 << 10;
/// Minimum number of such rows.
const MIN_PART: usize = 64;
/// Elements of W that are worth a thread if there are so few rows that reading W takes all the time.
const READ: usize = 128 * 1024;
/// Multiplications that are worth a thread.
const TASK: usize = 512 * 1024;
/// Limits on the partial sums of dW: their number, and the elements of each, which are to stay in the L2 cache.
const LANES: usize = 8;
const LANE_ELEMENTS: usize = 96 << 10;

/// W [N, K].
#[derive(Clone, Copy)]
pub(crate) enum Weight<'a, T> {
    /// Its elements.
    Whole(&'a [T]),
    /// A function that writes its elements from a position on, for rows of x that need no transpose of W
    /// ([`transposes`]): only the parts that are multiplied are in the cache. Parts begin at a multiple of [`COLUMNS`]·K.
    Parts(&'a (dyn Fn(usize, &mut [T]) + Sync)),
}

/// Whether W [N, K] is transposed for a product with so many rows. Products pack W for every block of rows, which is much
/// cheaper if W has already been transposed.
pub(crate) fn transposes(rows: usize, [n, k]: [usize; 2]) -> bool {
    rows > ROWS || n * k > TRANSPOSED && rows >= ROWS / 4
}

/// Computes z = x Wᵀ + b or, with `activated` (f, out), writes f(x Wᵀ + b) to out and f'(x Wᵀ + b) to z.
pub(crate) fn forward<T: Float>(
    x: &Tensor,
    (w, n): (Weight<T>, usize),
    b: Option<&Tensor>,
    z: &mut [T],
    activated: Option<(Activation, &mut [T])>,
) {
    let (rows, k) = (x.rows(), x.width());
    // One step of each sequence, [B, 1, K].
    let of_steps = matches!(x.shape(), [_, .., 1, _]);
    let (x, b) = (x.read::<T>(), b.map(|b| b.read::<T>()));
    let columns = if rows < 2 * ROWS { COLUMNS } else { n };
    let (row_blocks, column_blocks) = (rows.div_ceil(ROWS), n.div_ceil(columns));
    let wt;
    let w = match w {
        // Packing needs no transpose.
        Weight::Whole(w) if transposes(rows, [n, k]) && !bf16::is_on() => {
            wt = transposed(w, [n, k]);
            Ok(Operand::new(View::new(&wt, k, n, n), row_blocks))
        }
        Weight::Whole(w) => Ok(Operand::new(View::new(w, n, k, k).transposed(), row_blocks)),
        Weight::Parts(write) => Err(write),
    };
    let z = Shared::new(z);
    let out = activated.map(|(f, out)| (f, Shared::new(out)));
    let task = |row_block: usize, column_block: usize| {
        let (r0, c0) = (row_block * ROWS, column_block * columns);
        let (r1, c1) = ((r0 + ROWS).min(rows), (c0 + columns).min(n));
        if let Some(b) = b {
            for r in r0..r1 {
                // SAFETY: tasks have disjoint rows or columns.
                unsafe { z.slice(r * n + c0..r * n + c1) }.copy_from_slice(&b[c0..c1]);
            }
        }
        let mut part;
        let w = match &w {
            Ok(w) => w.columns(c0..c1),
            Err(write) => {
                part = Scratch::uninit((c1 - c0) * k);
                write(c0 * k, &mut part);
                View::new(&part[..], c1 - c0, k, k).transposed()
            }
        };
        let x = View::new(&x[r0 * k..], r1 - r0, k, k).of_steps(of_steps);
        // SAFETY: as above; the block lies inside z.
        unsafe { product_into(z.pointer(r0 * n + c0), n, b.is_some(), T::ONE, x, w) };
        if let Some((f, out)) = &out {
            let spans = if columns == n { 1 } else { r1 - r0 };
            let span = (r1 - r0) / spans * (c1 - c0);
            for i in 0..spans {
                let start = (r0 + i) * n + c0;
                // SAFETY: as above.
                let (z, out) =
                    unsafe { (z.slice(start..start + span), out.slice(start..start + span)) };
                activation::value_and_derivative(*f, z, out);
            }
        }
    };
    let work = row_blocks * column_blocks;
    // A product this small is finished before another thread would wake up.
    let grain = match rows {
        ..=FEW if of_steps => READ / (columns * k).max(1),
        _ if rows * n * k < 64 * 1024 => work,
        _ => 1,
    };
    blocks(work, grain, |range| range.for_each(|i| task(i / column_blocks, i % column_blocks)));
}

/// Returns the transpose of a matrix with the given sizes.
pub(crate) fn transposed<T: Float>(x: &[T], [rows, columns]: [usize; 2]) -> Scratch<T> {
    let mut out = Scratch::uninit(rows * columns);
    row_blocks((&mut *out, rows), TILE, |range, out| {
        vectorize!({
            let mut tile = [[T::ZERO; TILE]; TILE];
            let width = range.len();
            for r in (0..rows).step_by(TILE) {
                let height = TILE.min(rows - r);
                for (i, row) in tile.iter_mut().enumerate().take(height) {
                    let x = &x[(r + i) * columns + range.start..][..width];
                    row[..width].copy_from_slice(x);
                }
                for (c, out) in out.chunks_exact_mut(rows).enumerate().take(TILE) {
                    let out = &mut out[r..r + height];
                    match out.first_chunk_mut::<TILE>() {
                        Some(out) => *out = std::array::from_fn(|i| tile[i][c]),
                        None => out.iter_mut().zip(&tile).for_each(|(y, row)| *y = row[c]),
                    }
                }
            }
        });
    });
    out
}

/// Computes or accumulates the requested dx, dW and db; replaces `dy` with dz = dy ∘ slope.
pub(crate) fn backward<T: Float>(
    x: &Tensor,
    w: &Tensor,
    slope: Option<&[T]>,
    dy: &mut Tensor,
    [dx, dw, db]: [Option<&mut GradBuffer>; 3],
) {
    let (rows, k, n) = (x.rows(), x.width(), w.shape()[0]);
    let (x, w) = (x.read::<T>(), w.read::<T>());
    if let Some(slope) = slope {
        for_rows!((dy.write::<T>(), n), n, |row, dy| {
            for (d, s) in dy.iter_mut().zip(&slope[row * n..][..n]) {
                *d *= *s;
            }
        });
    }
    let dz = dy.read::<T>();
    if n * k > LANE_ELEMENTS || rows <= ROWS {
        return backward_by_columns(x, w, dz, [rows, k, n], [dx, dw, db]);
    }
    let row_blocks = rows.div_ceil(ROWS);
    // The assignment of rows to lanes depends only on sizes.
    let lanes = row_blocks.clamp(1, LANES);
    let mut sums = Scratch::<T>::uninit(if dw.is_some() { lanes * n * k } else { 0 });
    let mut bias_sums = Scratch::<T>::zeroed(if db.is_some() { lanes * n } else { 0 });
    let (want_w, want_b) = (dw.is_some(), db.is_some());
    {
        let dx = dx.map(|grad| {
            let w = Operand::new(View::new(w, n, k, k), row_blocks);
            (grad.accumulate, Shared::new(grad.tensor.write::<T>()), w)
        });
        let (sums, bias_sums) = (Shared::new(&mut sums), Shared::new(&mut bias_sums));
        blocks(lanes, 1, |range| {
            for lane in range {
                for block in (lane..row_blocks).step_by(lanes) {
                    let (r0, r1) = (block * ROWS, ((block + 1) * ROWS).min(rows));
                    let dz_block = &dz[r0 * n..r1 * n];
                    if let Some((add, dx, w)) = &dx {
                        // SAFETY: row blocks are disjoint.
                        let dx = unsafe { dx.slice(r0 * k..r1 * k) };
                        let dz = View::new(dz_block, r1 - r0, n, n);
                        product(dx, k, *add, T::ONE, dz, w.whole());
                    }
                    if want_w {
                        // SAFETY: every lane has its own range.
                        let sum = unsafe { sums.slice(lane * n * k..(lane + 1) * n * k) };
                        let dzt = View::new(dz_block, r1 - r0, n, n).transposed();
                        let x = View::new(&x[r0 * k..], r1 - r0, k, k);
                        product(sum, k, block != lane, T::ONE, dzt, x);
                    }
                    if want_b {
                        // SAFETY: every lane has its own range.
                        let sum = unsafe { bias_sums.slice(lane * n..(lane + 1) * n) };
                        add_rows(sum, dz_block);
                    }
                }
            }
        });
    }
    if let Some(grad) = dw {
        collect(&sums, lanes, grad);
    }
    if let Some(grad) = db {
        collect(&bias_sums, lanes, grad);
    }
}

/// [`backward`] in which each thread computes its own part of dW, without partial sums: for a large W or few rows.
fn backward_by_columns<T: Float>(
    x: &[T],
    w: &[T],
    dz: &[T],
    [rows, k, n]: [usize; 3],
    [dx, dw, db]: [Option<&mut GradBuffer>; 3],
) {
    let [dx, dw, db] = [dx, dw, db]
        .map(|grad| grad.map(|grad| (grad.accumulate, Shared::new(grad.tensor.write::<T>()))));
    // Every part packs all of x, which only few rows make negligible.
    let columns = match rows > ROWS {
        true if n * k < LARGE => SMALL_PART,
        true => PART,
        false => (TASK / (rows * k).max(1)).clamp(MIN_PART, PART),
    };
    let of_dw = if dw.is_some() || db.is_some() { n.div_ceil(columns) } else { 0 };
    let products = if dw.is_some() { of_dw } else { 0 };
    let x = Operand::new(View::new(x, rows, k, k), products);
    let part = |i: usize| {
        let (c0, c1) = (i * columns, ((i + 1) * columns).min(n));
        if let Some((add, dw)) = &dw {
            // SAFETY: the parts are disjoint.
            let dw = unsafe { dw.slice(c0 * k..c1 * k) };
            let dzt = View::new(&dz[c0..], rows, c1 - c0, n).transposed();
            product(dw, k, *add, T::ONE, dzt, x.whole());
        }
        if let Some((add, db)) = &db {
            // SAFETY: as above.
            let db = unsafe { db.slice(c0..c1) };
            if !add {
                db.fill(T::ZERO);
            }
            let mut sum = [T::ZERO; PART];
            vectorize!({
                // Partial sums limit the rounding error.
                for block in dz.chunks(ROWS * n) {
                    let sum = &mut sum[..c1 - c0];
                    sum.fill(T::ZERO);
                    for dz in block.chunks_exact(n) {
                        sum.iter_mut().zip(&dz[c0..c1]).for_each(|(sum, dz)| *sum += *dz);
                    }
                    db.iter_mut().zip(sum).for_each(|(db, sum)| *db += *sum);
                }
            });
        }
    };
    // With few rows, columns are divided as well, so that all threads have work.
    let width = if rows < 2 * ROWS { COLUMNS } else { k };
    let column_blocks = k.div_ceil(width);
    let products = if dx.is_some() { rows.div_ceil(ROWS) } else { 0 };
    let w = Operand::new(View::new(w, n, k, k), products);
    let block = |i: usize| {
        let (r0, c0) = (i / column_blocks * ROWS, i % column_blocks * width);
        let (r1, c1) = ((r0 + ROWS).min(rows), (c0 + width).min(k));
        if let Some((add, dx)) = &dx {
            let dz = View::new(&dz[r0 * n..], r1 - r0, n, n);
            // SAFETY: the blocks are disjoint and inside dx.
            unsafe {
                product_into(dx.pointer(r0 * k + c0), k, *add, T::ONE, dz, w.columns(c0..c1))
            };
        }
    };
    let of_dx = if dx.is_some() { rows.div_ceil(ROWS) * column_blocks } else { 0 };
    let grain = if rows * n * k < 32 * 1024 { of_dw + of_dx } else { 1 };
    blocks(of_dw + of_dx, grain, |range| {
        range.for_each(|i| if i < of_dw { part(i) } else { block(i - of_dw) });
    });
}

/// Adds every row of `x` to `sum`.
fn add_rows<T: Float>(sum: &mut [T], x: &[T]) {
    vectorize!({
        for row in x.chunks_exact(sum.len()) {
            for (s, x) in sum.iter_mut().zip(row) {
                *s += *x;
            }
        }
    });
}

/// Writes the sum over lanes, in order, to `grad`, or accumulates.
pub(crate) fn collect<T: Float>(sums: &[T], lanes: usize, grad: &mut GradBuffer) {
    let add = grad.accumulate;
    let total = grad.tensor.write::<T>();
    let width = total.len();
    row_blocks((total, 1), BLOCK_ELEMENTS, |range, total| {
        if !add {
            total.fill(T::ZERO);
        }
        for lane in 0..lanes {
            let part = &sums[lane * width..][range.clone()];
            vectorize!({
                for (t, p) in total.iter_mut().zip(part) {
                    *t += *p;
                }
            });
        }
    });
}
