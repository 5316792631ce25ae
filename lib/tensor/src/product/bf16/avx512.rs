//! Packing by AVX-512 BF16, and its kernel.

use super::super::View;
use super::panels::{DEPTH, Part, SIDE, TILE};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Rows of the result whose sums are in registers at a time.
const ROWS: usize = 8;

/// Whether this processor has AVX-512 BF16.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// Packs 16 rows and 32 columns of x from (`row`, `column`) on: the elements of a row follow each other.
///
/// # Safety
/// The processor has AVX-512 BF16.
pub(super) unsafe fn pack_rows(x: View<f32>, row: usize, column: usize, tile: &mut [u16; TILE]) {
    let [rows, columns] = [SIDE.min(x.rows - row), DEPTH.min(x.columns - column)];
    let start = &x.data[row * x.row_stride + column * x.column_stride..];
    // SAFETY: the caller guarantees the processor; the elements are inside the view.
    unsafe {
        if x.column_stride == 1 {
            pack_along(start.as_ptr(), x.row_stride, rows, columns, tile);
        } else if x.row_stride == 1 {
            pack_across(start.as_ptr(), x.column_stride, columns, rows, tile);
            transpose(tile);
        } else {
            pack_any(start, [x.row_stride, x.column_stride], [rows, columns], tile);
        }
    }
}

/// Packs 32 rows and 16 columns of x from (`row`, `column`) on: pairs of rows, interleaved, follow each other.
///
/// # Safety
/// The processor has AVX-512 BF16.
pub(super) unsafe fn pack_columns(x: View<f32>, row: usize, column: usize, tile: &mut [u16; TILE]) {
    let [rows, columns] = [DEPTH.min(x.rows - row), SIDE.min(x.columns - column)];
    let start = &x.data[row * x.row_stride + column * x.column_stride..];
    // SAFETY: as above.
    unsafe {
        if x.column_stride == 1 {
            pack_across(start.as_ptr(), x.row_stride, rows, columns, tile);
        } else {
            if x.row_stride == 1 {
                pack_along(start.as_ptr(), x.column_stride, columns, rows, tile);
            } else {
                pack_any(start, [x.column_stride, x.row_stride], [columns, rows], tile);
            }
            transpose(tile);
        }
    }
}

/// A mask of the first `count` of 16 lanes.
fn first(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

/// The elements at x whose bits are set in the mask, rounded, and zeros in the other lanes.
// vcvtne2ps2bf16 rounds two registers at a time, but is no faster once operands are not in the L1 cache, and Bochs 3.1
// (tests/amx.sh) computes it wrongly.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn load_rounded(x: *const f32, mask: __mmask16) -> __m256i {
    // SAFETY: the caller guarantees the elements; the result has the same 32 bytes.
    unsafe { transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x))) }
}

/// Packs `lines` lines of `length` adjacent elements, `stride` elements apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pack_along(
    x: *const f32,
    stride: usize,
    lines: usize,
    length: usize,
    tile: &mut [u16; TILE],
) {
    let masks = [first(length.min(16)), first(length.saturating_sub(16))];
    for (line, out) in tile.as_chunks_mut::<DEPTH>().0.iter_mut().enumerate() {
        for (half, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mask = if line < lines { masks[half] } else { 0 };
            // SAFETY: masked lanes are not read, and half a line has 32 bytes.
            unsafe {
                let packed = load_rounded(x.wrapping_add(line * stride + half * 16), mask);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), packed);
            }
        }
    }
}

/// Packs pairs of `lines` lines, of which `length` elements are adjacent, `stride` elements apart: lane i of a pair has element
/// i of both lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pack_across(
    x: *const f32,
    stride: usize,
    lines: usize,
    length: usize,
    tile: &mut [u16; TILE],
) {
    let mask = first(length);
    for (pair, out) in tile.as_chunks_mut::<DEPTH>().0.iter_mut().enumerate() {
        let line = |line: usize| {
            let mask = if line < lines { mask } else { 0 };
            // SAFETY: masked lanes are not read.
            _mm512_cvtepu16_epi32(unsafe { load_rounded(x.wrapping_add(line * stride), mask) })
        };
        let packed = _mm512_or_si512(line(2 * pair), _mm512_slli_epi32::<16>(line(2 * pair + 1)));
        // SAFETY: a line has 64 bytes.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), packed) };
    }
}

/// Packs lines with any strides, like [`pack_along`].
fn pack_any(x: &[f32], strides: [usize; 2], [lines, length]: [usize; 2], tile: &mut [u16; TILE]) {
    for (i, out) in tile.iter_mut().enumerate() {
        let [line, at] = [i / DEPTH, i % DEPTH];
        let is_inside = line < lines && at < length;
        *out = if is_inside {
            super::portable::round(x[line * strides[0] + at * strides[1]])
        } else {
            0
        };
    }
}

/// Transposes 16 x 16 pairs of elements.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(tile: &mut [u16; TILE]) {
    // SAFETY: a tile has 16 lines of 64 bytes.
    unsafe {
        let at: *mut __m512i = tile.as_mut_ptr().cast();
        let mut x: [__m512i; 16] = std::array::from_fn(|i| _mm512_loadu_si512(at.add(i)));
        let mut y = x;
        for i in 0..8 {
            y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
            y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
        }
        for i in 0..4 {
            x[4 * i] = _mm512_unpacklo_epi64(y[4 * i], y[4 * i + 2]);
            x[4 * i + 1] = _mm512_unpackhi_epi64(y[4 * i], y[4 * i + 2]);
            x[4 * i + 2] = _mm512_unpacklo_epi64(y[4 * i + 1], y[4 * i + 3]);
            x[4 * i + 3] = _mm512_unpackhi_epi64(y[4 * i + 1], y[4 * i + 3]);
        }
        // Lane group g of x[4 i + j] has column 4 g + j of rows 4 i to 4 i + 3.
        for j in 0..4 {
            let [a, b, c, d] = [x[j], x[4 + j], x[8 + j], x[12 + j]];
            let [low, high] =
                [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)];
            let [low_, high_] =
                [_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d)];
            _mm512_storeu_si512(at.add(j), _mm512_shuffle_i32x4::<0x88>(low, low_));
            _mm512_storeu_si512(at.add(4 + j), _mm512_shuffle_i32x4::<0x88>(high, high_));
            _mm512_storeu_si512(at.add(8 + j), _mm512_shuffle_i32x4::<0xdd>(low, low_));
            _mm512_storeu_si512(at.add(12 + j), _mm512_shuffle_i32x4::<0xdd>(high, high_));
        }
    }
}

/// The kernel.
///
/// # Safety
/// The processor has AVX-512 BF16, and the part is as [`Part`] says.
pub(super) unsafe fn multiply(part: &Part) {
    for side in 0..part.sides[0] {
        for half in [0, ROWS] {
            // SAFETY: a tile has 16 rows of 32 elements; the caller guarantees the rest.
            unsafe {
                let a = part.a[side].add(half * DEPTH);
                let c = part.c.add((side * SIDE + half) * part.stride);
                match part.sides[1] {
                    1 => rows::<1>(a, part.b, part.count, c, part.stride, part.add),
                    _ => rows::<2>(a, part.b, part.count, c, part.stride, part.add),
                }
            }
        }
    }
}

/// Computes [`ROWS`] rows of one or two columns of tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn rows<const N: usize>(
    a: *const u16,
    b: [*const u16; 2],
    count: usize,
    c: *mut f32,
    stride: usize,
    add: bool,
) {
    // SAFETY: the caller guarantees that all elements are there.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); N]; ROWS];
        if add {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(c.add(row * stride + column * SIDE));
                }
            }
        }
        for pair in 0..count * SIDE {
            let right: [__m512bh; N] = std::array::from_fn(|column| {
                transmute(_mm512_loadu_si512(b[column].add(pair * DEPTH).cast()))
            });
            let at = a.add(pair / SIDE * TILE + pair % SIDE * 2);
            for (row, sums) in sums.iter_mut().enumerate() {
                let two = at.add(row * DEPTH).cast::<i32>().read_unaligned();
                let left: __m512bh = transmute(_mm512_set1_epi32(two));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm512_dpbf16_ps(*sum, left, right);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (column, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(c.add(row * stride + column * SIDE), *sum);
            }
        }
    }
}
