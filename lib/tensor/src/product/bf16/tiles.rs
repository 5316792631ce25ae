//! The kernel of AMX in terms of its tile registers, so that tests can run it on any processor.

use super::panels::{Part, SIDE, TILE};

/// Tile registers 0 to 7 of 16 rows of 64 bytes, of which the kernel uses 0 to 3 for sums, 4 and 5 for the left operand, 6 and 7
/// for the right one.
///
/// # Safety
/// Memory of 16 rows, `stride` bytes apart, is there. A register is loaded or cleared before it is read.
pub(super) trait Tiles {
    /// Sets a register to zeros.
    unsafe fn clear<const N: u8>(&mut self);
    /// Loads a register.
    unsafe fn load<const N: u8>(&mut self, from: *const u8, stride: usize);
    /// Stores a register.
    unsafe fn store<const N: u8>(&mut self, to: *mut u8, stride: usize);
    /// Adds to register C (f32) the product of registers A and B (pairs of bf16).
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self);
}

/// Computes a part of a product.
///
/// # Safety
/// As [`Part`] says.
pub(super) unsafe fn multiply(part: &Part, tiles: &mut impl Tiles) {
    let (bytes, stride) = (4 * SIDE, 4 * part.stride);
    let [two_rows, two_columns] = part.sides.map(|sides| sides == 2);
    let c = |row: usize, column: usize| {
        part.c.wrapping_add(row * SIDE * part.stride + column * SIDE).cast::<u8>()
    };
    // SAFETY: the caller guarantees the tiles and the result.
    unsafe {
        if part.add {
            tiles.load::<0>(c(0, 0), stride);
            if two_columns {
                tiles.load::<1>(c(0, 1), stride);
            }
            if two_rows {
                tiles.load::<2>(c(1, 0), stride);
            }
            if two_rows && two_columns {
                tiles.load::<3>(c(1, 1), stride);
            }
        } else {
            tiles.clear::<0>();
            tiles.clear::<1>();
            tiles.clear::<2>();
            tiles.clear::<3>();
        }
        for at in (0..part.count).map(|tile| tile * TILE) {
            let tile = |from: *const u16| from.add(at).cast::<u8>();
            tiles.load::<4>(tile(part.a[0]), bytes);
            tiles.load::<6>(tile(part.b[0]), bytes);
            tiles.dot::<0, 4, 6>();
            if two_columns {
                tiles.load::<7>(tile(part.b[1]), bytes);
                tiles.dot::<1, 4, 7>();
            }
            if two_rows {
                tiles.load::<5>(tile(part.a[1]), bytes);
                tiles.dot::<2, 5, 6>();
            }
            if two_rows && two_columns {
                tiles.dot::<3, 5, 7>();
            }
        }
        tiles.store::<0>(c(0, 0), stride);
        if two_columns {
            tiles.store::<1>(c(0, 1), stride);
        }
        if two_rows {
            tiles.store::<2>(c(1, 0), stride);
        }
        if two_rows && two_columns {
            tiles.store::<3>(c(1, 1), stride);
        }
    }
}
