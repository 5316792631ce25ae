use super::LinearCrossEntropy;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::product::{Operand, View, product};
use crate::simd::{max, sum};
use crate::{Scratch, Tensor, vectorize};

/// Rows and classes of a tile of logits: it stays in the L2 cache.
const ROWS: usize = 256;
const CLASSES: usize = 512;
/// Number of parts into which classes are divided; fixed, so that results do not depend on the number of threads.
const PARTS: usize = 16;

/// The rows that have a label, one after another.
struct Labelled<'a, T> {
    op: LinearCrossEntropy,
    /// Index of each row in the input.
    rows: Vec<usize>,
    x: Scratch<T>,
    w: &'a [T],
    targets: &'a [i32],
    weights: Option<&'a [T]>,
    width: usize,
    classes: usize,
}

impl<'a, T: Float> Labelled<'a, T> {
    fn of(op: &LinearCrossEntropy, inputs: &[&'a Tensor]) -> Self {
        let (x, w, targets) = (inputs[0], inputs[1], inputs[2].read::<i32>());
        let rows: Vec<usize> = (0..x.rows()).filter(|row| targets[*row] != op.ignore).collect();
        let (width, all) = (x.width(), x.read::<T>());
        let mut own = Scratch::uninit(rows.len() * width);
        for (to, row) in own.chunks_exact_mut(width).zip(&rows) {
            to.copy_from_slice(&all[row * width..][..width]);
        }
        let weights = inputs.get(3).map(|weights| weights.read());
        let classes = w.shape()[0];
        Self { op: *op, rows, x: own, w: w.read(), targets, weights, width, classes }
    }

    /// Classes of a tile.
    fn tile(&self) -> usize {
        self.classes.div_ceil(PARTS).min(CLASSES)
    }

    /// Wᵀ, for the logits of `tiles` tiles of rows.
    fn to_logits(&self, tiles: usize) -> Operand<'_, T> {
        // Columns of a packed matrix begin at its tiles, of 16; otherwise they would be packed again.
        let products = if self.tile().is_multiple_of(16) { tiles } else { 0 };
        Operand::new(View::new(self.w, self.classes, self.width, self.width).transposed(), products)
    }

    /// Writes the logits of rows `rows` and classes `classes` to `z`, for W from [`Self::to_logits`].
    fn logits(&self, w: &Operand<T>, z: &mut [T], rows: [usize; 2], classes: [usize; 2]) {
        let (k, [r0, r1], [c0, c1]) = (self.width, rows, classes);
        let x = View::new(&self.x[r0 * k..], r1 - r0, k, k);
        product(z, c1 - c0, false, T::ONE, x, w.columns(c0..c1));
    }

    /// The class of a labelled row if it is among `classes`.
    fn target(&self, row: usize, [c0, c1]: [usize; 2]) -> Option<usize> {
        let target = usize::try_from(self.targets[self.rows[row]]).ok()?;
        (c0..c1).contains(&target).then(|| target - c0)
    }
}

/// What is known of a row after some of its logits.
#[derive(Clone, Copy)]
struct Sums<T> {
    top: T,
    /// Σ exp(z - top).
    exponentials: f64,
    /// Σ z, if labels are smoothed.
    plain: f64,
    /// The logit of the target.
    hit: Option<T>,
}

impl<T: Float> Sums<T> {
    fn empty() -> Self {
        Self { top: T::of(f64::NEG_INFINITY), exponentials: 0.0, plain: 0.0, hit: None }
    }

    #[inline(always)]
    fn with(self, other: Self) -> Self {
        let top = self.top.maximum(other.top);
        // -∞ - -∞ is no number.
        let scaled = |own: Self| match own.top == top {
            true => own.exponentials,
            false => own.exponentials * (own.top - top).f64().exp(),
        };
        Self {
            top,
            exponentials: scaled(self) + scaled(other),
            plain: self.plain + other.plain,
            hit: self.hit.or(other.hit),
        }
    }
}

/// Returns the loss; writes the maximum m and log Σ exp(z - m) of every row with a label to `stats`.
pub(super) fn forward<T: Float>(op: &LinearCrossEntropy, inputs: &[&Tensor], stats: &mut [T]) -> T {
    stats.fill(T::ZERO);
    let own = Labelled::<T>::of(op, inputs);
    let (count, tile, classes) = (own.rows.len(), own.tile(), own.classes);
    let row_tiles = count.div_ceil(ROWS);
    let w = own.to_logits(row_tiles);
    let mut sums = vec![Sums::<T>::empty(); PARTS * count];
    {
        let sums = Shared::new(&mut sums);
        blocks(row_tiles * PARTS, 1, |range| {
            let mut z = Scratch::<T>::uninit(ROWS.min(count) * tile);
            for i in range {
                let (part, r0) = (i % PARTS, i / PARTS * ROWS);
                let r1 = (r0 + ROWS).min(count);
                // SAFETY: every task has its own rows and part.
                let sums = unsafe { sums.slice(part * count + r0..part * count + r1) };
                for c0 in (part * tile..classes).step_by(PARTS * tile) {
                    let c1 = (c0 + tile).min(classes);
                    let z = &mut z[..(r1 - r0) * (c1 - c0)];
                    own.logits(&w, z, [r0, r1], [c0, c1]);
                    vectorize!({
                        for ((row, z), known) in
                            (r0..r1).zip(z.chunks_exact(c1 - c0)).zip(&mut *sums)
                        {
                            let top = max(z);
                            // If all logits are -∞, exp(-∞ - 0) is 0, whereas exp(-∞ + ∞) would be NaN.
                            let lowest = T::of(f64::NEG_INFINITY);
                            let origin = if top > lowest { top } else { T::ZERO };
                            let exponentials = sum([z], |[z]| (z - origin).exp()).f64();
                            let smooth = op.smoothing != 0.0;
                            let plain = if smooth { sum([z], |[z]| z).f64() } else { 0.0 };
                            let hit = own.target(row, [c0, c1]).map(|at| z[at]);
                            *known = known.with(Sums { top, exponentials, plain, hit });
                        }
                    });
                }
            }
        });
    }
    let mut total = 0.0;
    for (i, row) in own.rows.iter().enumerate() {
        let parts = (0..PARTS).map(|part| sums[part * count + i]);
        let all = parts.fold(Sums::empty(), Sums::with);
        let log = all.exponentials.ln();
        stats[2 * row..2 * row + 2].copy_from_slice(&[all.top, T::of(log)]);
        let (top, hit) = (all.top.f64(), all.hit.map_or(f64::NAN, T::f64));
        let smooth = match op.smoothing {
            0.0 => 0.0,
            smoothing => smoothing * (log + top - all.plain / classes as f64),
        };
        let loss = (1.0 - op.smoothing) * (log - (hit - top)) + smooth;
        total += loss * own.weights.map_or(1.0, |weights| weights[*row].f64());
    }
    T::of(total)
}

/// Computes or accumulates the requested dx and dW.
pub(super) fn backward<T: Float>(
    op: &LinearCrossEntropy,
    inputs: &[&Tensor],
    stats: &[T],
    dy: T,
    [dx, dw]: [Option<&mut GradBuffer>; 2],
) {
    let own = Labelled::<T>::of(op, inputs);
    let (count, k, tile, classes) = (own.rows.len(), own.width, own.tile(), own.classes);
    let mut dx = dx.map(GradBuffer::zeroed::<T>);
    let dw = dw.map(GradBuffer::zeroed::<T>).map(|dw| Shared::new(dw));
    let height = ROWS.min(count);
    let w = own.to_logits(count.div_ceil(ROWS));
    let mut sums = Scratch::<T>::uninit(if dx.is_some() { PARTS * height * k } else { 0 });
    for r0 in (0..count).step_by(ROWS) {
        let r1 = (r0 + ROWS).min(count);
        let rows = r1 - r0;
        let shared = dx.is_some().then(|| Shared::new(&mut sums));
        blocks(PARTS, 1, |range| {
            let mut z = Scratch::<T>::uninit(height * tile);
            for part in range {
                // SAFETY: every part has its own sums.
                let mut sum = shared.as_ref().map(|all| unsafe {
                    all.slice(part * height * k..part * height * k + rows * k)
                });
                if let Some(sum) = &mut sum {
                    sum.fill(T::ZERO);
                }
                for c0 in (part * tile..classes).step_by(PARTS * tile) {
                    let c1 = (c0 + tile).min(classes);
                    let width = c1 - c0;
                    let z = &mut z[..rows * width];
                    own.logits(&w, z, [r0, r1], [c0, c1]);
                    differentiate(&own, stats, dy, z, [r0, r1], [c0, c1]);
                    let dz = View::new(z, rows, width, width);
                    if let Some(sum) = &mut sum {
                        let w = View::new(&own.w[c0 * k..], width, k, k);
                        product(sum, k, true, T::ONE, dz, w);
                    }
                    if let Some(dw) = &dw {
                        // SAFETY: every part has its own classes.
                        let dw = unsafe { dw.slice(c0 * k..c1 * k) };
                        let x = View::new(&own.x[r0 * k..], rows, k, k);
                        product(dw, k, true, T::ONE, dz.transposed(), x);
                    }
                }
            }
        });
        if let Some(dx) = &mut dx {
            collect(&own.rows[r0..r1], &sums, height, k, dx);
        }
    }
}

/// Replaces the logits of a tile by their gradient.
fn differentiate<T: Float>(
    own: &Labelled<'_, T>,
    stats: &[T],
    dy: T,
    z: &mut [T],
    rows: [usize; 2],
    classes: [usize; 2],
) {
    let width = classes[1] - classes[0];
    let each = T::of(own.op.smoothing / own.classes as f64);
    let kept = T::of(1.0 - own.op.smoothing);
    vectorize!({
        for (row, z) in (rows[0]..rows[1]).zip(z.chunks_exact_mut(width)) {
            let at = own.rows[row];
            let scale = own.weights.map_or(dy, |weights| dy * weights[at]);
            let (top, log) = (stats[2 * at], stats[2 * at + 1]);
            // A product rounds less than the difference of z and log Σ exp.
            let (share, rest) = (scale * (-log).exp(), -(scale * each));
            for z in z.iter_mut() {
                *z = share.mul_add((*z - top).exp(), rest);
            }
            if let Some(target) = own.target(row, classes) {
                z[target] += -(scale * kept);
            }
        }
    });
}

/// Adds the sums of all parts, in order, to the rows of dx.
fn collect<T: Float>(rows: &[usize], sums: &[T], height: usize, k: usize, dx: &mut [T]) {
    let dx = Shared::new(dx);
    let grain = (BLOCK_ELEMENTS / (PARTS * k).max(1)).max(1);
    blocks(rows.len(), grain, |range| {
        for i in range {
            // SAFETY: rows are distinct.
            let dx = unsafe { dx.slice(rows[i] * k..(rows[i] + 1) * k) };
            vectorize!({
                for part in 0..PARTS {
                    let sum = &sums[(part * height + i) * k..][..k];
                    dx.iter_mut().zip(sum).for_each(|(dx, sum)| *dx += *sum);
                }
            });
        }
    });
}
