use super::{AXES, Binary, HALF, Space, Sum};
use crate::Scratch;
use crate::dtype::Float;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks, reduce, row_blocks, rows_per_block};
use crate::simd;
use crate::vectorize;

const LAST: usize = AXES - 1;

/// Calls `run` with the positions of the first of several elements along the last axis and with their number. A run is
/// a whole row, or part of a row that is longer than a block of work.
fn runs<const N: usize>(space: &Space<N>, run: impl Fn([usize; N], usize) + Send + Sync) {
    let width = space.sizes[LAST];
    let length = width.clamp(1, BLOCK_ELEMENTS);
    let (rows, parts) = (space.len() / width.max(1), width.div_ceil(length));
    blocks(rows * parts, rows_per_block(length), |range| {
        for part in range {
            let (row, first) = (part / parts, part % parts * length);
            let mut at = space.positions(0..LAST, row);
            (0..N).for_each(|i| at[i] += first * space.strides[i][LAST]);
            run(at, length.min(width - first));
        }
    });
}

/// Writes `n` values to, or accumulates them into, the elements that start at `to` and are `stride` apart. (An iterator
/// over slices needs no checks of indices, which a function of the index does.)
///
/// # Safety
/// No other thread may access these elements.
#[inline(always)]
unsafe fn write<T: Float>(
    out: &Shared<T>,
    (to, stride, n): (usize, usize, usize),
    add: bool,
    values: impl Iterator<Item = T>,
) {
    if stride == 1 {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { out.slice(to..to + n) };
        vectorize!(match add {
            true => out.iter_mut().zip(values).for_each(|(y, value)| *y += value),
            false => out.iter_mut().zip(values).for_each(|(y, value)| *y = value),
        });
    } else {
        for (i, value) in values.enumerate() {
            let at = to + i * stride;
            // SAFETY: guaranteed by the caller.
            let y = &mut unsafe { out.slice(at..at + 1) }[0];
            *y = if add { *y + value } else { value };
        }
    }
}

/// Returns the slice from the first to the last of `n` elements that are `stride` apart.
fn extent<T>(x: &[T], start: usize, n: usize, stride: usize) -> &[T] {
    &x[start..start + if n == 0 { 0 } else { (n - 1) * stride + 1 }]
}

pub(super) fn copy<T: Float>(space: &Space<2>, x: &[T], out: &mut [T], scale: f64, add: bool) {
    let scale = T::of(scale);
    let [dx, dy] = space.strides.map(|strides| strides[LAST]);
    let out = Shared::new(out);
    runs(space, |[from, to], n| {
        let x = extent(x, from, n, dx);
        // SAFETY: the view of `out` has a distinct element for each index.
        unsafe {
            match dx {
                1 => write(&out, (to, dy, n), add, x.iter().map(move |x| scale * *x)),
                _ => write(&out, (to, dy, n), add, (0..n).map(move |i| scale * x[i * dx])),
            }
        }
    });
}

pub(super) fn binary<T: Float>(
    space: &Space<3>,
    function: Binary,
    inputs: [&[T]; 2],
    out: &mut [T],
    add: bool,
) {
    match function {
        Binary::Add => map(space, inputs, out, add, |a, b| a + b),
        Binary::Multiply => map(space, inputs, out, add, |a, b| a * b),
    }
}

fn map<T: Float>(
    space: &Space<3>,
    [a, b]: [&[T]; 2],
    out: &mut [T],
    add: bool,
    f: impl Fn(T, T) -> T + Send + Sync,
) {
    let [da, db, dy] = space.strides.map(|strides| strides[LAST]);
    let out = Shared::new(out);
    runs(space, |[at_a, at_b, to], n| {
        let (a, b) = (extent(a, at_a, n, da), extent(b, at_b, n, db));
        // SAFETY: the view of `out` has a distinct element for each index.
        unsafe {
            match (da, db) {
                (1, 1) => {
                    write(&out, (to, dy, n), add, a.iter().zip(b).map(|(a, b)| f(*a, *b)));
                }
                (1, 0) if n > 0 => {
                    let (f, b) = (&f, b[0]);
                    write(&out, (to, dy, n), add, a.iter().map(move |a| f(*a, b)));
                }
                _ => write(&out, (to, dy, n), add, (0..n).map(|i| f(a[i * da], b[i * db]))),
            }
        }
    });
}

pub(super) fn sum<T: Float>(
    sum: &Sum,
    x: &[T],
    factor: Option<&[T]>,
    out: &mut [T],
    scale: f64,
    add: bool,
) {
    let (space, scale) = (&sum.space, T::of(scale));
    // Number of adjacent sums that are computed at once in each step, and number of elements added to each.
    let (width, inner, kept_axes, reduced_axes) = match sum.rows {
        true => (1, space.sizes[LAST], 0..HALF, HALF..LAST),
        false => (space.sizes[HALF - 1], 1, 0..HALF - 1, HALF..AXES),
    };
    let stride = space.strides[1][if sum.rows { LAST } else { HALF - 1 }];
    let steps = sum.reduced / inner.max(1);
    row_blocks((out, width), rows_per_block(sum.reduced * width), |range, out| {
        let mut totals = Scratch::<T>::zeroed(width);
        for (row, out) in range.zip(out.chunks_exact_mut(width)) {
            totals.fill(T::ZERO);
            let first = space.positions(kept_axes.clone(), row);
            reduce(steps, BLOCK_ELEMENTS / (width * inner).max(1), &mut totals, |range, totals| {
                for step in range {
                    let at = space.positions(reduced_axes.clone(), step);
                    let [at, at_factor] = [0, 1].map(|i| first[i] + at[i] - space.starts[i]);
                    let x = &x[at..at + width * inner];
                    let factor = factor.map(|factor| &factor[at_factor..]);
                    if sum.rows {
                        totals[0] += dot(x, factor, stride);
                    } else {
                        accumulate(totals, x, factor, stride);
                    }
                }
            });
            for (y, total) in out.iter_mut().zip(&*totals) {
                *y = if add { *y + scale * *total } else { scale * *total };
            }
        }
    });
}

/// Returns Σ x, or Σ x·factor, where elements of the factor are `stride` (0 or 1) apart.
fn dot<T: Float>(x: &[T], factor: Option<&[T]>, stride: usize) -> T {
    match factor {
        Some(factor) if stride == 1 => {
            vectorize!(simd::sum([x, &factor[..x.len()]], |[x, factor]| x * factor))
        }
        factor => {
            let sum = vectorize!(simd::sum([x], |[x]| x));
            factor.map_or(sum, |factor| sum * factor[0])
        }
    }
}

/// Adds x, or x·factor, to `totals`, where elements of the factor are `stride` apart.
fn accumulate<T: Float>(totals: &mut [T], x: &[T], factor: Option<&[T]>, stride: usize) {
    let each = totals.iter_mut().zip(x);
    match factor {
        None => vectorize!(each.for_each(|(total, x)| *total += *x)),
        Some(factor) if stride == 1 => {
            vectorize!(each.zip(factor).for_each(|((total, x), factor)| *total += *x * *factor));
        }
        Some(factor) => {
            each.enumerate().for_each(|(i, (total, x))| *total += *x * factor[i * stride]);
        }
    }
}
