use super::super::Operand;
use super::panels::{Kernel, SIDE};
use super::tiles::Tiles;
use super::*;

/// The registers of AMX in memory.
pub(super) struct Soft([[[u8; 64]; 16]; 8]);

fn f32_at(row: &[u8; 64], i: usize) -> f32 {
    f32::from_le_bytes(std::array::from_fn(|byte| row[4 * i + byte]))
}

fn bf16_at(row: &[u8; 64], i: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([row[2 * i], row[2 * i + 1]])) << 16)
}

impl Tiles for Soft {
    unsafe fn clear<const N: u8>(&mut self) {
        self.0[N as usize] = [[0; 64]; 16];
    }

    unsafe fn load<const N: u8>(&mut self, from: *const u8, stride: usize) {
        for (i, row) in self.0[N as usize].iter_mut().enumerate() {
            // SAFETY: the caller guarantees the memory.
            *row = unsafe { from.add(i * stride).cast::<[u8; 64]>().read_unaligned() };
        }
    }

    unsafe fn store<const N: u8>(&mut self, to: *mut u8, stride: usize) {
        for (i, row) in self.0[N as usize].iter().enumerate() {
            // SAFETY: the caller guarantees the memory.
            unsafe { to.add(i * stride).cast::<[u8; 64]>().write_unaligned(*row) };
        }
    }

    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        let of_bf16 = |register: u8| {
            self.0[register as usize]
                .map(|row| std::array::from_fn::<f32, 32, _>(|i| bf16_at(&row, i)))
        };
        let (a, b) = (of_bf16(A), of_bf16(B));
        for (c, a) in self.0[C as usize].iter_mut().zip(&a) {
            let mut sums: [f32; 16] = std::array::from_fn(|n| f32_at(c, n));
            for (k, b) in b.iter().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum += a[2 * k] * b[2 * n];
                    *sum += a[2 * k + 1] * b[2 * n + 1];
                }
            }
            for (out, sum) in c.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                *out = sum.to_le_bytes();
            }
        }
    }
}

/// What multiplies: an implementation of this processor, the kernel of AMX with registers in memory, or, where rows are few,
/// the product of single steps.
#[derive(Clone, Copy, Debug)]
enum By {
    Level(Level),
    Soft,
    Steps,
}

fn all() -> Vec<By> {
    for level in [Level::Avx512, Level::Amx] {
        if !level.is_there() {
            test_support::skip(&format!(
                "this processor has no {} for products of bf16",
                level.name()
            ));
        }
    }
    let levels = Level::all().map(By::Level);
    // Packing needs AVX-512 BF16.
    let soft = Level::Avx512.is_there().then_some(By::Soft);
    let found: Vec<By> = levels.chain(soft).chain([By::Steps]).collect();
    println!("{found:?}");
    found
}

fn multiply(
    by: By,
    out: &mut [f32],
    stride: usize,
    scale: (f32, bool),
    lhs: View<f32>,
    rhs: View<f32>,
) {
    assert!((lhs.rows - 1) * stride + rhs.columns <= out.len());
    let out = out.as_mut_ptr();
    // SAFETY: the result fits, and the processor has the level.
    unsafe {
        match by {
            By::Level(level) => product(level, out, stride, scale, lhs, rhs),
            By::Steps => {
                if !steps::product(out, stride, scale, lhs.of_steps(true), rhs) {
                    product(Level::Portable, out, stride, scale, lhs, rhs);
                }
            }
            By::Soft => {
                let kernel = Kernel::Soft(Box::new(Soft([[[1; 64]; 16]; 8])));
                panels::product(kernel, out, stride, scale, lhs, rhs);
            }
        }
    }
}

/// Pseudorandom numbers of many exponents.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mix = |i: usize| {
        let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ seed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 32
    };
    (0..count)
        .map(|i| {
            let x = mix(i);
            (x as u32 as f32 / 2.0_f32.powi(31) - 1.0) * 2.0_f32.powi((x >> 40) as i32 % 9 - 4)
        })
        .collect()
}

fn rounded(x: f32) -> f64 {
    f64::from(f32::from_bits(u32::from(portable::round(x)) << 16))
}

/// Compares the products of implementations with sums of rounded operands in f64.
fn check(
    bys: &[By],
    [m, n, k]: [usize; 3],
    [ta, tb]: [bool; 2],
    (alpha, add): (f32, bool),
    pad: usize,
) {
    let of =
        |x: &[f32], is_transposed: bool, [rows, columns]: [usize; 2], view: &dyn Fn(View<f32>)| {
            match is_transposed {
                false => view(View::new(x, rows, columns, columns + pad)),
                true => view(View::new(x, columns, rows, rows + pad).transposed()),
            }
        };
    let (a, b) =
        (values((m + pad) * (k + pad), 1 + k as u64), values((n + pad) * (k + pad), 2 + m as u64));
    of(&a, ta, [m, k], &|lhs| {
        of(&b, tb, [k, n], &|rhs| {
            let (stride, before) = (n + pad, values(m * (n + pad), 3));
            let all: Vec<(By, usize, Vec<f32>)> = bys
                .iter()
                .flat_map(|by| {
                    // The product; with the right operand packed before; with columns of that, from a tile on and inside of one.
                    let level = if let By::Level(level) = by { *level } else { Level::Avx512 };
                    let operand = Operand { view: rhs, packed: Some(Packed::new(level, rhs)) };
                    let views = [0, SIDE, 1].map(|first| (first, operand.columns(first.min(n)..n)));
                    let found = [(0, rhs)].into_iter().chain(views).map(|(first, rhs)| {
                        let mut out = before.clone();
                        if first < n {
                            multiply(*by, &mut out[first..], stride, (alpha, add), lhs, rhs);
                        }
                        (*by, first, out)
                    });
                    let found: Vec<_> = found.collect();
                    assert_eq!(found[0].2, found[1].2, "{by:?}: packed before");
                    found
                })
                .collect();
            let [x, y] = [lhs, rhs].map(|view| {
                let at = |row: usize, column: usize| {
                    rounded(view.data[row * view.row_stride + column * view.column_stride])
                };
                let rows =
                    (0..view.rows).map(|row| (0..view.columns).map(|c| at(row, c)).collect());
                rows.collect::<Vec<Vec<f64>>>()
            });
            let start = |was: &f32| if add { f64::from(*was) } else { 0.0 };
            let mut sums: Vec<f64> = before.iter().map(start).collect();
            let mut sizes: Vec<f64> = sums.iter().map(|sum| sum.abs()).collect();
            for (row, (sums, sizes)) in
                sums.chunks_mut(stride).zip(sizes.chunks_mut(stride)).enumerate()
            {
                for (x, y) in x[row].iter().zip(&y) {
                    for ((sum, size), y) in sums.iter_mut().zip(&mut *sizes).zip(y) {
                        let term = f64::from(alpha) * x * y;
                        *sum += term;
                        *size += term.abs();
                    }
                }
            }
            for (at, was) in before.iter().enumerate() {
                let (column, sum, size) = (at % stride, sums[at], sizes[at]);
                // k sums, each rounded to 24 bits (Higham 2002, section 3.1), the product with alpha, and subnormal results.
                let bound = (k + 3) as f64 * f64::from(f32::EPSILON) / 2.0 * size + 1e-37;
                for (by, first, out) in &all {
                    let found = out[at];
                    if column >= n || column < *first {
                        assert_eq!(found, *was, "{by:?}: outside of the result");
                        continue;
                    }
                    let error = (f64::from(found) - sum).abs();
                    assert!(
                        error <= bound,
                        "{by:?} {m}x{n}x{k} {ta} {tb} {alpha} {add} {first}: {found} {sum}"
                    );
                }
            }
        });
    });
}

#[test]
fn every_size_and_transposition_is_right() {
    let most = if std::env::var_os("TORTURE").is_some() { 70 } else { 34 };
    // EVERY=N: every Nth size alone, for an emulated processor (tests/amx.sh).
    let every = std::env::var("EVERY").map_or(1, |every| every.parse().unwrap());
    if every > 1 {
        // The emulated system loses tile registers while the thread pool starts.
        crate::parallel::threads();
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let bys = all();
    let grid =
        (1..=most).flat_map(|m| (1..=most).flat_map(move |n| (1..=most).map(move |k| (m, n, k))));
    for (m, n, k) in grid.step_by(every) {
        let i = 7 * m + 3 * n + k;
        let scale = ([1.0, -0.5][i / 4 % 2], i / 8 % 2 == 1);
        check(&bys, [m, n, k], [i % 2 == 1, i / 2 % 2 == 1], scale, i % 3);
    }
    let mut next = 7_u64;
    let mut random = |most: u64| {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (next >> 33) % most
    };
    for _ in 0..500_usize.div_ceil(every) {
        let sizes = std::array::from_fn(|_| 1 + random(300) as usize);
        let scale = ([1.0, 2.5][random(2) as usize], random(2) == 1);
        check(&bys, sizes, [random(2) == 1, random(2) == 1], scale, random(2) as usize);
    }
    check(&bys, [33, 47, 1100], [false, true], (1.0, true), 0);
}

#[test]
fn the_bits_of_a_row_depend_on_no_other_row() {
    let [m, n, k] = [37, 41, 1100];
    let (a, b, before) = (values(m * k, 1), values(k * n, 2), values(m * n, 3));
    let rhs = View::new(&b, k, n, n);
    for by in all() {
        // The `gemm` crate divides its work by sizes.
        if matches!(by, By::Level(Level::Portable) | By::Steps) {
            continue;
        }
        for add in [false, true] {
            let rows = |first: usize, count: usize| {
                let mut out = before[first * n..][..count * n].to_vec();
                multiply(by, &mut out, n, (1.0, add), View::new(&a[first * k..], count, k, k), rhs);
                out
            };
            let expected = rows(0, m);
            for [first, count] in [[0, 1], [5, 16], [3, 32], [20, 17], [36, 1]] {
                assert!(
                    rows(first, count) == expected[first * n..][..count * n],
                    "{by:?} {add} {first}"
                );
            }
        }
    }
}

/// Few single steps: a row gives the same bits alone, and a matrix in bf16 those of the f32 matrix that is rounded to it.
#[test]
fn steps_have_the_bits_of_one_step_and_of_a_rounded_matrix() {
    for [m, n, k] in [[1, 1, 1], [8, 70, 53], [5, 33, 200], [3, 4, 16]] {
        let (mut a, mut b) = (values(m * k, 1), values(n * k, 2));
        (a[0], b[n * k / 2]) = (f32::MIN_POSITIVE / 2.0, f32::MIN_POSITIVE / 4.0);
        let stored: Vec<Bf16> = b.iter().map(|x| Bf16::from_bits(portable::round(*x))).collect();
        // SAFETY: results have as many elements as the product.
        let steps = |a: &[f32], count: usize| unsafe {
            let (mut out, mut of_stored) = (vec![0.5; count * n], vec![0.5; count * n]);
            let lhs = View::new(a, count, k, k).of_steps(true);
            let rhs = View::new(&b, n, k, k).transposed();
            assert!(steps::product(out.as_mut_ptr(), n, (1.0, true), lhs, rhs));
            let rhs = View::new(&stored, n, k, k).transposed();
            assert!(steps::product(of_stored.as_mut_ptr(), n, (1.0, true), lhs, rhs));
            assert_eq!(out, of_stored);
            out
        };
        let all = steps(&a, m);
        for (row, all) in all.chunks(n).enumerate() {
            assert_eq!(steps(&a[row * k..], 1), all, "{m}x{n}x{k}");
        }
    }
}

#[test]
fn rounding_is_that_of_the_instructions() {
    let cases = [
        0_u32,
        0x8000_0000,
        1,
        0x007f_ffff,
        0x8000_0123,
        0x0080_0000,
        0x3f80_8000,
        0x3f81_8000,
        0x3f80_8001,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7f80_0001,
        0x7fff_ffff,
        0xffc0_1234,
        0x3f80_7fff,
    ];
    let expected = |x: f32| match x {
        x if x.is_nan() => f64::NAN,
        x if x.is_subnormal() => 0.0,
        x => half::bf16::from_f32(x).to_f64(),
    };
    for by in all() {
        let one = [1.0_f32];
        for bits in cases {
            let (x, mut out) = (f32::from_bits(bits), [0.0]);
            multiply(
                by,
                &mut out,
                1,
                (1.0, false),
                View::new(&[x], 1, 1, 1),
                View::new(&one, 1, 1, 1),
            );
            let is_same =
                |found: f32| f64::from(found) == expected(x) || found.is_nan() && x.is_nan();
            assert!(is_same(out[0]), "{by:?} {bits:x}: {}", out[0]);
            multiply(
                by,
                &mut out,
                1,
                (1.0, false),
                View::new(&one, 1, 1, 1),
                View::new(&[x], 1, 1, 1),
            );
            assert!(is_same(out[0]), "{by:?} {bits:x}: {}", out[0]);
        }
        // Infinity times zero, and what is missing in a tile, are not mixed up.
        let mut out = [7.0; 2];
        let lhs = [f32::INFINITY, 1.0, f32::NEG_INFINITY, 2.0];
        multiply(
            by,
            &mut out,
            1,
            (1.0, false),
            View::new(&lhs, 2, 2, 2),
            View::new(&[1.0, 3.0], 2, 1, 1),
        );
        assert_eq!(out, [f32::INFINITY, f32::NEG_INFINITY], "{by:?}");
        multiply(
            by,
            &mut out,
            1,
            (1.0, false),
            View::new(&lhs, 2, 2, 2),
            View::new(&[0.0, 3.0], 2, 1, 1),
        );
        assert!(out[0].is_nan() && out[1].is_nan(), "{by:?}: {out:?}");
    }
}
