//! Operands in tiles, and their products by AMX and AVX-512 BF16.
//!
//! An operand is packed in tiles of 1 KiB, which the instructions of both read: for the left one, 16 rows of 32 elements; for the
//! right one, 16 pairs of rows, interleaved, of 16 columns. Rows and columns that are missing are zero.

use super::super::View;
use super::{Level, Packed, amx, avx512, tiles};
use crate::parallel::row_blocks;
use crate::scratch::Scratch;

/// Rows of a tile, and columns of a tile of the right operand.
pub(super) const SIDE: usize = 16;
/// Elements of the inner dimension in a tile.
pub(super) const DEPTH: usize = 32;
/// Elements of a tile.
pub(super) const TILE: usize = SIDE * DEPTH;
/// Rows and columns of the part of the result that a kernel computes at a time.
const PART: usize = 2 * SIDE;
/// Tiles of the inner dimension that are multiplied before a part of the result is stored: those of two columns of tiles of
/// the right operand stay in the L1 cache while all rows of the left one are multiplied by them.
const RUN: usize = 16;

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
    /// Packs with `tile`, which fills the tile at (row or column of tiles, tile of the inner dimension); each thread packs
    /// `grain` rows or columns of tiles at a time.
    fn new(
        [sides, depth]: [usize; 2],
        grain: usize,
        tile: impl Fn(usize, usize, &mut [u16; TILE]) + Send + Sync,
    ) -> Self {
        let mut memory = Scratch::uninit(sides * depth * TILE / 2);
        // SAFETY: the memory is aligned to 64 bytes, and any bits are a valid u16.
        let (_, tiles, _) = unsafe { memory.align_to_mut::<[u16; TILE]>() };
        row_blocks((tiles, depth), grain, |range, tiles| {
            for (i, out) in tiles.iter_mut().enumerate() {
                tile(range.start + i / depth, i % depth, out);
            }
        });
        Self { memory, depth }
    }

    /// Packs on this thread.
    fn of_lhs(lhs: View<f32>) -> Self {
        let (sides, depth) = (lhs.rows.div_ceil(SIDE), lhs.columns.div_ceil(DEPTH));
        Self::new([sides, depth], sides, |side, at, tile| {
            avx512::pack_rows(lhs, side * SIDE, at * DEPTH, tile)
        })
    }

    pub(super) fn of_rhs(rhs: View<f32>, grain: usize) -> Self {
        let (sides, depth) = (rhs.columns.div_ceil(SIDE), rhs.rows.div_ceil(DEPTH));
        Self::new([sides, depth], grain, |side, at, tile| {
            avx512::pack_columns(rhs, at * DEPTH, side * SIDE, tile);
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
            own = Panels::of_rhs(rhs, usize::MAX);
            (&own, 0)
        }
    };
    let a = Panels::of_lhs(lhs);
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
                let is_whole = rows % SIDE == 0 && columns % SIDE == 0 && alpha == 1.0;
                if is_whole {
                    // SAFETY: the packed operands hold `count` tiles from here on, and c all rows and columns.
                    unsafe { kernel.multiply(&Part { a, b, sides, count, c, stride, add: adds }) };
                    continue;
                }
                let own = sums.as_mut_ptr();
                let part = Part { a, b, sides, count, c: own, stride: PART, add: false };
                // SAFETY: as above, with memory of our own for the result.
                unsafe { kernel.multiply(&part) };
                for (row, sums) in sums.chunks_exact(PART).enumerate().take(rows) {
                    for (column, sum) in sums.iter().enumerate().take(columns) {
                        // SAFETY: the element lies inside `out`.
                        let c = unsafe { &mut *c.add(row * stride + column) };
                        *c = if adds { *c + alpha * sum } else { alpha * sum };
                    }
                }
            }
        }
    }
}
