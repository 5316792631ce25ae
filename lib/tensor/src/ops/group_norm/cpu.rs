//! Iterates over lines of several positions, so that loops are vectorized even with few channels. A sample is divided
//! into blocks that fit in cache; their sums are added in block order.

use super::{GroupNorm, Sizes};
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::ops::activation::{Activation, apply_in_place, times_derivative};
use crate::parallel::{Shared, row_blocks, rows_per_block};
use crate::simd::LANES;
use crate::{Scratch, vectorize};
use std::ops::Range;

/// Minimum number of elements of a line, given enough positions.
const LINE: usize = 64;
/// Target number of elements of a chunk, which stays in the L1 cache between passes.
const CHUNK: usize = 2048;

/// Division of the positions of a sample into lines, chunks and blocks.
struct Cut {
    channels: usize,
    /// Elements per line: the channels of one or more positions.
    line: usize,
    /// Elements per chunk: at least four lines.
    chunk: usize,
    /// Positions per block: whole lines.
    block: usize,
    /// Number of blocks.
    blocks: usize,
}

impl Cut {
    fn new(sizes: &Sizes) -> Self {
        let channels = sizes.channels;
        let cells = (LINE / channels).max(1);
        let line = channels * cells;
        let block = (rows_per_block(channels) / cells).max(1) * cells;
        let chunk = (CHUNK / line).max(4) * line;
        Self { channels, line, chunk, block, blocks: sizes.cells.div_ceil(block) }
    }

    /// Returns a vector with `value` of each channel, repeated for all positions of a line.
    fn vector<T: Float>(&self, value: impl Fn(usize) -> T) -> Scratch<T> {
        let mut vector = Scratch::uninit(self.line);
        for (i, v) in vector.iter_mut().enumerate() {
            *v = value(i % self.channels);
        }
        vector
    }

    /// Sums a line over its positions into `channels`.
    fn fold<T: Float>(&self, line: &[T], channels: &mut [T]) {
        channels.fill(T::ZERO);
        for part in line.chunks_exact(self.channels) {
            channels.iter_mut().zip(part).for_each(|(sum, x)| *sum += *x);
        }
    }
}

/// Returns `LANES` elements of each slice, starting at `at`.
#[inline(always)]
fn lanes<T: Float, const N: usize>(slices: [&[T]; N], at: usize) -> [&[T; LANES]; N] {
    slices.map(|s| &s[at..at + LANES].as_chunks().0[0])
}

/// Computes sums[s][i] += Σ over lines of f(vectors[..][i], lines[..][i])[s]. Adding four lines at a time saves three
/// of four roundings and memory accesses of the sums; the last line may be short.
#[inline(always)]
fn sum_lines<T: Float, const V: usize, const K: usize, const S: usize>(
    vectors: [&[T]; V],
    lines: [&[T]; K],
    sums: [&mut [T]; S],
    f: impl Fn([T; V], [T; K]) -> [T; S],
) {
    let (n, width) = (lines[0].len(), sums[0].len());
    let whole = n / (4 * width) * (4 * width);
    let wide = width / LANES * LANES;
    for at in (0..whole).step_by(4 * width) {
        // Arrays of fixed length stay in registers; sums in slices, which may alias, would not be vectorized.
        for i in (0..wide).step_by(LANES) {
            let v = lanes(vectors, i);
            let mut added = [[T::ZERO; LANES]; S];
            for line in 0..4 {
                let x = lanes(lines, at + line * width + i);
                for lane in 0..LANES {
                    let value = f(v.map(|v| v[lane]), x.map(|x| x[lane]));
                    for s in 0..S {
                        added[s][lane] += value[s];
                    }
                }
            }
            for s in 0..S {
                sums[s][i..][..LANES].iter_mut().zip(&added[s]).for_each(|(sum, x)| *sum += *x);
            }
        }
        for i in wide..width {
            let v = vectors.map(|v| v[i]);
            let mut added = [T::ZERO; S];
            for line in 0..4 {
                let value = f(v, lines.map(|x| x[at + line * width + i]));
                added.iter_mut().zip(value).for_each(|(added, value)| *added += value);
            }
            for s in 0..S {
                sums[s][i] += added[s];
            }
        }
    }
    for at in (whole..n).step_by(width) {
        for i in 0..width.min(n - at) {
            let value = f(vectors.map(|v| v[i]), lines.map(|x| x[at + i]));
            for s in 0..S {
                sums[s][i] += value[s];
            }
        }
    }
}

/// Computes out[i] = f(vectors[..][i], lines[..][i], out[i]) for each line.
#[inline(always)]
fn map_lines<T: Float, const V: usize, const K: usize>(
    vectors: [&[T]; V],
    lines: [&[T]; K],
    out: &mut [T],
    f: impl Fn([T; V], [T; K], T) -> T,
) {
    let width = vectors[0].len();
    for (line, out) in out.chunks_mut(width).enumerate() {
        let at = line * width;
        let (chunks, rest) = out.as_chunks_mut::<LANES>();
        let wide = chunks.len() * LANES;
        for (chunk, out) in chunks.iter_mut().enumerate() {
            let (v, x) = (lanes(vectors, chunk * LANES), lanes(lines, at + chunk * LANES));
            let old = *out;
            *out = std::array::from_fn(|i| f(v.map(|v| v[i]), x.map(|x| x[i]), old[i]));
        }
        for (i, out) in (wide..).zip(rest) {
            *out = f(vectors.map(|v| v[i]), lines.map(|x| x[at + i]), *out);
        }
    }
}

/// Writes the mean and the sum of squared deviations of each channel of a block x to `out` [2, C].
fn moments<T: Float>(cut: &Cut, x: &[T], out: &mut [T]) {
    let n = T::of((x.len() / cut.channels) as f64);
    let mut sums = Scratch::<T>::zeroed(2 * cut.line);
    let mut rests = Scratch::<T>::uninit(cut.channels);
    let (mean, squares) = out.split_at_mut(cut.channels);
    vectorize!(sum_lines([], [x], [&mut sums[..cut.line]], |[], [x]| [x]));
    cut.fold(&sums[..cut.line], mean);
    mean.iter_mut().for_each(|mean| *mean = *mean / n);
    // The second pass reads the block from cache and corrects the rounding error of the mean.
    let about = cut.vector(|c| mean[c]);
    sums.fill(T::ZERO);
    let (first, second) = sums.split_at_mut(cut.line);
    vectorize!(sum_lines([&about], [x], [&mut *first, &mut *second], |[mean], [x]| {
        let d = x - mean;
        [d, d * d]
    }));
    cut.fold(second, squares);
    cut.fold(first, &mut rests);
    for ((mean, squares), rest) in mean.iter_mut().zip(squares).zip(&*rests) {
        *mean += *rest / n;
        *squares = *squares - *rest * *rest / n;
    }
}

/// Computes μ and r of each group of a sample from the block moments [blocks, 2, C], in f64 (Chan et al. 1983).
fn statistics<T: Float>(sizes: &Sizes, cut: &Cut, parts: &[T], epsilon: f64, stats: &mut [T]) {
    let (width, channels) = (sizes.width(), sizes.channels);
    let total = (sizes.cells * width) as f64;
    let count = |block: usize| (sizes.cells - block * cut.block).min(cut.block) as f64;
    for (group, stats) in stats.chunks_exact_mut(2).enumerate() {
        let each = |value: &dyn Fn(f64, f64, f64) -> f64| -> f64 {
            let of_block = |(block, part): (usize, &[T])| {
                let (mean, squares) = part.split_at(channels);
                let own = group * width..(group + 1) * width;
                let pairs = mean[own.clone()].iter().zip(&squares[own]);
                pairs.map(|(m, s)| value(count(block), m.f64(), s.f64())).sum::<f64>()
            };
            parts.chunks_exact(2 * channels).enumerate().map(of_block).sum::<f64>() / total
        };
        let mean = each(&|n, mean, _| n * mean);
        let variance = each(&|n, part, squares| squares + n * (part - mean) * (part - mean));
        stats.copy_from_slice(&[T::of(mean), T::of(1.0 / (variance + epsilon).sqrt())]);
    }
}

/// Returns μ, w·r and b of a sample, as vectors of a line: z = (x - μ)·(w·r) + b.
fn coefficients<T: Float>(
    sizes: &Sizes,
    cut: &Cut,
    stats: &[T],
    [w, b]: [Option<&[T]>; 2],
) -> [Scratch<T>; 3] {
    let of = |c: usize, i: usize| stats[2 * (c / sizes.width()) + i];
    [
        cut.vector(|c| of(c, 0)),
        cut.vector(|c| of(c, 1) * w.map_or(T::ONE, |w| w[c])),
        cut.vector(|c| b.map_or(T::ZERO, |b| b[c])),
    ]
}

/// Computes z for a chunk.
#[inline(always)]
fn affine<T: Float>([mean, scale, bias]: [&[T]; 3], x: &[T], z: &mut [T]) {
    map_lines([mean, scale, bias], [x], z, |[m, s, b], [x], _| (x - m).mul_add(s, b));
}

pub(super) fn forward<T: Float>(
    op: &GroupNorm,
    sizes: &Sizes,
    x: &[T],
    vectors: [Option<&[T]>; 2],
    stats: &mut [T],
    out: &mut [T],
) {
    let (cut, c, len) = (&Cut::new(sizes), sizes.channels, sizes.cells * sizes.channels);
    let sample = |x: &[T], out: &mut [T], stats: &mut [T]| {
        let mut parts = Scratch::<T>::uninit(cut.blocks * 2 * c);
        row_blocks((&mut *parts, 2 * c), 1, |block, part| {
            moments(cut, &x[positions(sizes, cut, block.start, c)], part);
        });
        statistics(sizes, cut, &parts, op.epsilon, stats);
        let vectors = coefficients(sizes, cut, stats, vectors);
        let [mean, scale, bias] = vectors.each_ref().map(|v| &**v);
        row_blocks((out, c), cut.block, |range, out| {
            let x = &x[range.start * c..range.end * c];
            for (x, y) in x.chunks(cut.chunk).zip(out.chunks_mut(cut.chunk)) {
                vectorize!(affine([mean, scale, bias], x, y));
                apply_in_place(op.activation, y);
            }
        });
    };
    row_blocks(
        ((out, len), (stats, 2 * sizes.groups)),
        rows_per_block(len),
        |range, (out, stats)| {
            let each =
                out.chunks_exact_mut(len.max(1)).zip(stats.chunks_exact_mut(2 * sizes.groups));
            for (i, (out, stats)) in range.zip(each) {
                sample(&x[i * len..][..len], out, stats);
            }
        },
    );
}

/// Returns the element range of a block of a sample.
fn positions(sizes: &Sizes, cut: &Cut, block: usize, c: usize) -> Range<usize> {
    block * cut.block * c..((block + 1) * cut.block).min(sizes.cells) * c
}

/// Calls `each` with the offset, x and dz of each chunk of a block.
#[inline(always)]
fn for_chunks<T: Float>(
    activation: Activation,
    chunk: usize,
    vectors: [&[T]; 3],
    [x, dy]: [&[T]; 2],
    mut each: impl FnMut(usize, &[T], &[T]),
) {
    let mut buffer =
        Scratch::<T>::uninit(if activation == Activation::Identity { 0 } else { chunk });
    for (i, (x, dy)) in x.chunks(chunk).zip(dy.chunks(chunk)).enumerate() {
        if activation == Activation::Identity {
            each(i * chunk, x, dy);
        } else {
            let dz = &mut buffer[..x.len()];
            vectorize!(affine(vectors, x, dz));
            times_derivative(activation, dz, dy);
            each(i * chunk, x, dz);
        }
    }
}

pub(super) fn backward<T: Float>(
    op: &GroupNorm,
    sizes: &Sizes,
    [x, stats, dy]: [&[T]; 3],
    affine: [Option<&[T]>; 2],
    [dx, dw, db]: [Option<&mut GradBuffer>; 3],
) {
    let (cut, c, len) = (&Cut::new(sizes), sizes.channels, sizes.cells * sizes.channels);
    let dx = dx.map(|grad| (grad.accumulate, Shared::new(grad.tensor.write::<T>())));
    // Σ dz ∘ n and Σ dz for each sample and channel.
    let mut totals = Scratch::<T>::zeroed(sizes.batch * 2 * c);
    let sample = |i: usize, totals: &mut [T]| {
        let (x, dy) = (&x[i * len..][..len], &dy[i * len..][..len]);
        let stats = &stats[i * 2 * sizes.groups..][..2 * sizes.groups];
        let vectors = coefficients(sizes, cut, stats, affine);
        let vectors = vectors.each_ref().map(|v| &**v);
        let mut parts = Scratch::<T>::uninit(cut.blocks * 2 * c);
        row_blocks((&mut *parts, 2 * c), 1, |block, part| {
            let own = positions(sizes, cut, block.start, c);
            let mut sums = Scratch::<T>::zeroed(2 * cut.line);
            let (products, plain) = sums.split_at_mut(cut.line);
            for_chunks(
                op.activation,
                cut.chunk,
                vectors,
                [&x[own.clone()], &dy[own]],
                |_, x, dz| {
                    vectorize!(sum_lines(
                        [vectors[0]],
                        [x, dz],
                        [&mut *products, &mut *plain],
                        |[mean], [x, dz]| [dz * (x - mean), dz]
                    ));
                },
            );
            let (dw, db) = part.split_at_mut(c);
            cut.fold(products, dw);
            cut.fold(plain, db);
        });
        for part in parts.chunks_exact(2 * c) {
            totals.iter_mut().zip(part).for_each(|(total, part)| *total += *part);
        }
        let rstd = |c: usize| stats[2 * (c / sizes.width()) + 1];
        totals[..c].iter_mut().enumerate().for_each(|(c, sum)| *sum *= rstd(c));
        let Some((add, dx)) = &dx else { return };
        let (gn, g) = totals.split_at(c);
        let means = |sums: &[T]| -> Vec<T> {
            let weighted = |c: usize| affine[0].map_or(T::ONE, |w| w[c]).f64() * sums[c].f64();
            let group = |i: usize| (i * sizes.width()..(i + 1) * sizes.width()).map(weighted);
            let share = 1.0 / (sizes.cells * sizes.width()) as f64;
            (0..sizes.groups).map(|i| T::of(share * group(i).sum::<f64>())).collect()
        };
        let (mean_gn, mean_g) = (means(gn), means(g));
        // dx = (w·r)·dz + shift + (x - μ)·slope.
        let shift = cut.vector(|c| -rstd(c) * mean_g[c / sizes.width()]);
        let slope = cut.vector(|c| -rstd(c) * rstd(c) * mean_gn[c / sizes.width()]);
        let all = [vectors[0], vectors[1], &shift, &slope];
        // SAFETY: every sample is processed once.
        let dx = unsafe { dx.slice(i * len..(i + 1) * len) };
        row_blocks((dx, c), cut.block, |range, dx| {
            let own = range.start * c..range.end * c;
            for_chunks(
                op.activation,
                cut.chunk,
                vectors,
                [&x[own.clone()], &dy[own]],
                |at, x, dz| {
                    let dx = &mut dx[at..][..x.len()];
                    if *add {
                        vectorize!(
                            map_lines(all, [x, dz], dx, |v, given, dx| dx + change(v, given))
                        );
                    } else {
                        vectorize!(map_lines(all, [x, dz], dx, |v, given, _| change(v, given)));
                    }
                },
            );
        });
    };
    row_blocks((&mut *totals, 2 * c), rows_per_block(len), |range, totals| {
        for (i, totals) in range.zip(totals.chunks_exact_mut(2 * c)) {
            sample(i, totals);
        }
    });
    for (grad, first) in [(dw, 0), (db, c)] {
        if let Some(grad) = grad {
            let sums = grad.zeroed::<T>();
            for totals in totals.chunks_exact(2 * c) {
                sums.iter_mut().zip(&totals[first..]).for_each(|(sum, total)| *sum += *total);
            }
        }
    }
}

/// Computes dx from μ, w·r, shift and slope, x and dz.
#[inline(always)]
fn change<T: Float>([mean, scale, shift, slope]: [T; 4], [x, dz]: [T; 2]) -> T {
    dz.mul_add(scale, (x - mean).mul_add(slope, shift))
}
