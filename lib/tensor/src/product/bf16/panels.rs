//! Operands in tiles, and their products by AMX and AVX-512 BF16.
//!
//! An operand is packed in tiles of 1 KiB, which the instructions of both read: for the left one, 16 rows of 32 elements; for the
//! right one, 16 pairs of rows, interleaved, of 16 columns. Rows and columns that are missing are zero.

use super::super::View;
use super::{Level, Packed, amx, avx512, tiles};
use crate::parallel::{row_blocks, threads};
use crate::scratch::Scratch;
use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};

/// Rows of a tile, and columns of a tile of the right operand.
pub(super) const SIDE: usize = 16;
/// Elements of the inner dimension in a tile.
pub(super) const DEPTH: usize = 32;
/// Elements of a tile.
pub(super) const TILE: usize = SIDE * DEPTH;
/// Rows and columns of the part of the result that a kernel computes at a time.
const PART: usize = 2 * SIDE;
/// Tiles of the inner dimension that are multiplied before a part of the result is stored. With fewer, the right operand would
/// stay in the L1 cache while all rows of the left one are multiplied by it, but reading the result again costs more.
const RUN: usize = 32;
/// Maximum number of rows or columns of tiles that are packed at a time, for which whole cache lines of an operand that lie side
/// by side are read.
const GRAIN: usize = 8;

/// What multiplies packed operands.
pub(super) enum Kernel {
    Amx(amx::Registers),
    Avx512,
    #[cfg(test)]
    Soft(Box<super::tests::Soft>),
}

impl Kernel {
    /// That of [`Level::Amx`], or of [`Level::Avx512`]; the processor must have it.
    pub(super) fn of(level: Level) -> Self {
        match level {
            // SAFETY: the processor has AMX.
            Level::Amx => Self::Amx(unsafe { amx::Registers::configured() }),
            _ => Self::Avx512,
        }
    }

    /// Computes a part of the result.
    ///
    /// # Safety
    /// The part is as [`Part`] says.
    unsafe fn multiply(&mut self, part: &Part) {
        // SAFETY: the processor has the instructions of the kernel.
        unsafe {
            match self {
                Self::Amx(registers) => tiles::multiply(part, registers),
                Self::Avx512 => avx512::multiply(part),
                #[cfg(test)]
                Self::Soft(registers) => tiles::multiply(part, &mut **registers),
            }
        }
    }
}

/// A part of a product: c = a·b, or c += a·b if `add` is set. `count` tiles of each operand follow each other along the inner
/// dimension.
pub(super) struct Part {
    /// The first tiles of one or two rows of tiles of the left operand.
    pub(super) a: [*const u16; 2],
    /// The first tiles of one or two columns of tiles of the right operand.
    pub(super) b: [*const u16; 2],
    /// How many rows and columns of tiles there are.
    pub(super) sides: [usize; 2],
    /// Tiles along the inner dimension.
    pub(super) count: usize,
    /// 16 or 32 rows of 16 or 32 columns of the result, `stride` elements apart.
    pub(super) c: *mut f32,
    pub(super) stride: usize,
    pub(super) add: bool,
}

/// An operand in tiles: [rows or columns of tiles][tiles of the inner dimension][`TILE`].
pub(in super::super) struct Panels {
    /// Two elements of bf16 in each.
    memory: Scratch<f32>,
    /// Tiles of the inner dimension.
    depth: usize,
}

impl Panels {
    /// Packs with `tile`, which fills the tile at (row or column of tiles, tile of the inner dimension). Each thread packs
    /// `grain` rows or columns of tiles at a time, in the order in which they lie in memory: along the inner dimension, or
    /// side by side.
    fn new(
        [sides, depth]: [usize; 2],
        grain: usize,
        is_along: bool,
        tile: impl Fn(usize, usize, &mut [u16; TILE]) + Send + Sync,
    ) -> Self {
        let mut memory = Scratch::uninit(sides * depth * TILE / 2);
        // SAFETY: the memory is aligned to 64 bytes, and any bits are a valid u16.
        let (_, tiles, _) = unsafe { memory.align_to_mut::<[u16; TILE]>() };
        row_blocks((tiles, depth), grain, |range, tiles| {
            let count = range.len();
            for i in 0..count * depth {
                let [side, at] =
                    if is_along { [i / depth, i % depth] } else { [i % count, i / count] };
                tile(range.start + side, at, &mut tiles[side * depth + at]);
            }
        });
        Self { memory, depth }
    }

    /// Packs on this thread.
    ///
    /// # Safety
    /// The processor has AVX-512 BF16.
    unsafe fn of_lhs(lhs: View<f32>) -> Self {
        let (sides, depth) = (lhs.rows.div_ceil(SIDE), lhs.columns.div_ceil(DEPTH));
        Self::new([sides, depth], sides, lhs.column_stride == 1, |side, at, tile| {
            // SAFETY: as above.
            unsafe { avx512::pack_rows(lhs, side * SIDE, at * DEPTH, tile) }
        })
    }

    /// Packs on all threads, or on this one.
    ///
    /// # Safety
    /// The processor has AVX-512 BF16.
    pub(super) unsafe fn of_rhs(rhs: View<f32>, on_all: bool) -> Self {
        let (sides, depth) = (rhs.columns.div_ceil(SIDE), rhs.rows.div_ceil(DEPTH));
        let grain = if on_all { sides.div_ceil(2 * threads()).clamp(1, GRAIN) } else { sides };
        Self::new([sides, depth], grain, rhs.column_stride != 1, |side, at, tile| {
            // SAFETY: as above.
            unsafe { avx512::pack_columns(rhs, at * DEPTH, side * SIDE, tile) }
        })
    }

    /// The tile at (row or column of tiles, tile of the inner dimension).
    fn tile(&self, side: usize, at: usize) -> *const u16 {
        let start = (side * self.depth + at) * TILE / 2;
        self.memory[start..].as_ptr().cast()
    }
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set, by a kernel.
///
/// # Safety
/// As for [`super::product`].
pub(super) unsafe fn product(
    mut kernel: Kernel,
    out: *mut f32,
    stride: usize,
    (alpha, add): (f32, bool),
    lhs: View<f32>,
    rhs: View<f32>,
) {
    let [m, n] = [lhs.rows, rhs.columns];
    let own;
    let (b, b_side) = match rhs.packed {
        Some((Packed::Panels(panels), first)) if first % SIDE == 0 => (panels, first / SIDE),
        _ => {
            // SAFETY: the processor has a kernel, each of which needs AVX-512 BF16.
            own = unsafe { Panels::of_rhs(rhs, false) };
            (&own, 0)
        }
    };
    // SAFETY: as above.
    let a = unsafe { Panels::of_lhs(lhs) };
    let mut sums = [0.0; PART * PART];
    for first in (0..a.depth).step_by(RUN) {
        let (count, adds) = (RUN.min(a.depth - first), add || first > 0);
        for c0 in (0..n).step_by(PART) {
            for r0 in (0..m).step_by(PART) {
                let [rows, columns] = [PART.min(m - r0), PART.min(n - c0)];
                let sides = [rows, columns].map(|length| length.div_ceil(SIDE));
                let tiles = |panels: &Panels, start: usize, sides: usize| {
                    [0, sides - 1].map(|side| panels.tile(start + side, first))
                };
                let a = tiles(&a, r0 / SIDE, sides[0]);
                let b = tiles(b, b_side + c0 / SIDE, sides[1]);
                // SAFETY: the part lies inside `out`.
                let c = unsafe { out.add(r0 * stride + c0) };
                prefetch(c, stride, rows);
                let is_whole = rows % SIDE == 0 && columns % SIDE == 0 && alpha == 1.0;
                if is_whole {
                    // SAFETY: the packed operands hold `count` tiles from here on, and c all rows and columns.
                    unsafe { kernel.multiply(&Part { a, b, sides, count, c, stride, add: adds }) };
                    continue;
                }
                // Sums begin with what is there, as in a whole part, so that the bits of a row do not depend on other rows.
                let begins = adds && alpha == 1.0;
                if begins {
                    // SAFETY: the part lies inside `out`.
                    unsafe { with_sums(&mut sums, c, stride, [rows, columns], |sum, c| *sum = *c) };
                }
                let own = sums.as_mut_ptr();
                let part = Part { a, b, sides, count, c: own, stride: PART, add: begins };
                // SAFETY: as above, with memory of our own for the result.
                unsafe { kernel.multiply(&part) };
                // SAFETY: as above.
                unsafe {
                    with_sums(&mut sums, c, stride, [rows, columns], |sum, c| {
                        *c = if adds && !begins { *c + alpha * *sum } else { alpha * *sum };
                    })
                };
            }
        }
    }
}

/// Calls `work` with the elements of `sums`, rows of [`PART`], and those of a part of the result.
///
/// # Safety
/// c is valid for reads and writes of so many rows and columns, `stride` elements apart.
unsafe fn with_sums(
    sums: &mut [f32],
    c: *mut f32,
    stride: usize,
    [rows, columns]: [usize; 2],
    work: impl Fn(&mut f32, &mut f32),
) {
    for (row, sums) in sums.chunks_exact_mut(PART).enumerate().take(rows) {
        for (column, sum) in sums.iter_mut().enumerate().take(columns) {
            // SAFETY: the caller guarantees the element.
            work(sum, unsafe { &mut *c.add(row * stride + column) });
        }
    }
}

/// Asks for rows of a part of the result that are about to be written, which otherwise would wait for memory one by one.
fn prefetch(c: *const f32, stride: usize, rows: usize) {
    for row in 0..rows {
        for line in [0, SIDE] {
            // SAFETY: a hint, for which any address is valid.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(c.wrapping_add(row * stride + line).cast()) };
        }
    }
}
