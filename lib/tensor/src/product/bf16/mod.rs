//! Products of f32 matrices whose operands are rounded to bf16 (to nearest, ties to even) while they are packed; sums are in
//! f32.
//!
//! There are three implementations, one of which is chosen when it is first needed ([`level`]): AMX (`tdpbf16ps`), AVX-512
//! BF16 (`vdpbf16ps`), and on other processors the f32 product of rounded operands. What they compute is the same but for the
//! order of sums: as these instructions do, all of them count subnormal operands as zero.
//!
//! An operand is packed in tiles of 1 KiB, which both instructions read: for the left one, 16 rows of 32 elements; for the right
//! one, 16 pairs of rows, interleaved, of 16 columns. Rows and columns that are missing are zero.

mod amx;
mod avx512;
mod level;
mod portable;
mod tiles;

#[cfg(test)]
mod tests;

pub use level::{Level, level};

use super::View;
use crate::dtype::{Dtype, Float};
use crate::scratch::Scratch;
use std::mem::transmute_copy;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rows of a tile, and columns of a tile of the right operand.
const SIDE: usize = 16;
/// Elements of the inner dimension in a tile.
const DEPTH: usize = 32;
/// Elements of a tile.
const TILE: usize = SIDE * DEPTH;
/// Rows and columns of the part of the result that a kernel computes at a time.
const PART: usize = 2 * SIDE;
/// Tiles of the inner dimension that are multiplied before a part of the result is stored: those of two columns of tiles of
/// the right operand stay in the L1 cache while all rows of the left one are multiplied by them.
const RUN: usize = 16;

/// Whether products of f32 matrices round their operands.
static ON: AtomicBool = AtomicBool::new(false);

/// Sets whether products of f32 matrices on the CPU round their operands to bf16, in the whole process.
pub fn set_on(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// Whether products of f32 matrices round their operands.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// What multiplies packed operands.
enum Kernel {
    Amx(amx::Registers),
    Avx512,
    #[cfg(test)]
    Soft(Box<tests::Soft>),
}

impl Kernel {
    /// The kernel of a level, which the processor must have; None for [`Level::Portable`].
    fn of(level: Level) -> Option<Self> {
        match level {
            // SAFETY: the processor has AMX.
            Level::Amx => Some(Self::Amx(unsafe { amx::Registers::configured() })),
            Level::Avx512 => Some(Self::Avx512),
            Level::Portable => None,
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
struct Part {
    /// The first tiles of one or two rows of tiles of the left operand.
    a: [*const u16; 2],
    /// The first tiles of one or two columns of tiles of the right operand.
    b: [*const u16; 2],
    /// How many rows and columns of tiles there are.
    sides: [usize; 2],
    /// Tiles along the inner dimension.
    count: usize,
    /// 16 or 32 rows of 16 or 32 columns of the result, `stride` elements apart.
    c: *mut f32,
    stride: usize,
    add: bool,
}

/// A packed operand: [rows or columns of tiles][tiles of the inner dimension][`TILE`].
struct Packed {
    /// Two elements of bf16 in each.
    memory: Scratch<f32>,
    /// Tiles of the inner dimension.
    depth: usize,
}

impl Packed {
    /// Packs with `tile`, which fills the tile at (row or column of tiles, tile of the inner dimension).
    fn new(
        sides: usize,
        depth: usize,
        mut tile: impl FnMut(usize, usize, &mut [u16; TILE]),
    ) -> Self {
        let mut memory = Scratch::uninit(sides * depth * TILE / 2);
        // SAFETY: the memory is aligned to 64 bytes, and any bits are a valid u16.
        let (_, tiles, _) = unsafe { memory.align_to_mut::<[u16; TILE]>() };
        for (i, out) in tiles.iter_mut().enumerate() {
            tile(i / depth, i % depth, out);
        }
        Self { memory, depth }
    }

    fn of_lhs(lhs: View<f32>) -> Self {
        let (sides, depth) = (lhs.rows.div_ceil(SIDE), lhs.columns.div_ceil(DEPTH));
        Self::new(sides, depth, |side, at, tile| {
            avx512::pack_rows(lhs, side * SIDE, at * DEPTH, tile)
        })
    }

    fn of_rhs(rhs: View<f32>) -> Self {
        let (sides, depth) = (rhs.columns.div_ceil(SIDE), rhs.rows.div_ceil(DEPTH));
        Self::new(sides, depth, |side, at, tile| {
            avx512::pack_columns(rhs, at * DEPTH, side * SIDE, tile);
        })
    }

    /// The tile at (row or column of tiles, tile of the inner dimension).
    fn tile(&self, side: usize, at: usize) -> *const u16 {
        let start = (side * self.depth + at) * TILE / 2;
        self.memory[start..].as_ptr().cast()
    }
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set, if T is f32 and products round their operands.
/// Returns whether it did.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
#[inline]
pub(super) unsafe fn product_if_on<T: Float>(
    out: *mut T,
    stride: usize,
    (alpha, add): (T, bool),
    lhs: View<T>,
    rhs: View<T>,
) -> bool {
    if T::DTYPE != Dtype::F32 || !is_on() {
        return false;
    }
    // SAFETY: T is f32.
    let [lhs, rhs] = [lhs, rhs].map(|view| unsafe { transmute_copy::<View<T>, View<f32>>(&view) });
    // SAFETY: as above.
    let alpha = unsafe { transmute_copy::<T, f32>(&alpha) };
    // SAFETY: the caller guarantees `out`.
    unsafe { product(level::chosen(), out.cast(), stride, (alpha, add), lhs, rhs) };
    true
}

/// Computes out = alpha·lhs·rhs, or out += alpha·lhs·rhs if `add` is set, by the implementation `level`, which this processor
/// must have.
///
/// # Safety
/// As for [`super::product_into`]; the inner sizes agree.
unsafe fn product(
    level: Level,
    out: *mut f32,
    stride: usize,
    (alpha, add): (f32, bool),
    lhs: View<f32>,
    rhs: View<f32>,
) {
    match Kernel::of(level) {
        // SAFETY: the caller guarantees `out`.
        Some(kernel) if lhs.columns > 0 => unsafe {
            product_packed(kernel, out, stride, (alpha, add), lhs, rhs);
        },
        // SAFETY: as above.
        _ => unsafe { portable::product(out, stride, (alpha, add), lhs, rhs) },
    }
}

/// [`product`] by a kernel.
unsafe fn product_packed(
    mut kernel: Kernel,
    out: *mut f32,
    stride: usize,
    (alpha, add): (f32, bool),
    lhs: View<f32>,
    rhs: View<f32>,
) {
    let [m, n] = [lhs.rows, rhs.columns];
    let (a, b) = (Packed::of_lhs(lhs), Packed::of_rhs(rhs));
    let mut own = [0.0; PART * PART];
    for first in (0..a.depth).step_by(RUN) {
        let (count, adds) = (RUN.min(a.depth - first), add || first > 0);
        for c0 in (0..n).step_by(PART) {
            for r0 in (0..m).step_by(PART) {
                let [rows, columns] = [PART.min(m - r0), PART.min(n - c0)];
                let sides = [rows, columns].map(|length| length.div_ceil(SIDE));
                let tiles = |packed: &Packed, start: usize, sides: usize| {
                    [0, sides - 1].map(|side| packed.tile(start / SIDE + side, first))
                };
                let (a, b) = (tiles(&a, r0, sides[0]), tiles(&b, c0, sides[1]));
                // SAFETY: the part lies inside `out`.
                let c = unsafe { out.add(r0 * stride + c0) };
                let is_whole = rows % SIDE == 0 && columns % SIDE == 0 && alpha == 1.0;
                if is_whole {
                    // SAFETY: the packed operands hold `count` tiles from here on, and c all rows and columns.
                    unsafe { kernel.multiply(&Part { a, b, sides, count, c, stride, add: adds }) };
                    continue;
                }
                let c_own = own.as_mut_ptr();
                let part = Part { a, b, sides, count, c: c_own, stride: PART, add: false };
                // SAFETY: as above, with memory of our own for the result.
                unsafe { kernel.multiply(&part) };
                for (row, own) in own.chunks_exact(PART).enumerate().take(rows) {
                    for (column, own) in own.iter().enumerate().take(columns) {
                        // SAFETY: the element lies inside `out`.
                        let c = unsafe { &mut *c.add(row * stride + column) };
                        *c = if adds { *c + alpha * own } else { alpha * own };
                    }
                }
            }
        }
    }
}
