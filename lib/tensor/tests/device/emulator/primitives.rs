//! The primitives of the headers compared with plain arithmetic.

use super::{ORDERS, device, empty, floats, host};
use tensor::dtype::{bf16, f16};
use tensor::kernel::{Arg, Grid, emu};
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor, args};

fn philox() -> Philox {
    Philox::new(test_support::seed(), Purpose::Test)
}

fn normals(n: usize, sample: u64) -> Vec<f32> {
    let mut x = vec![0.0; n];
    philox().fill_normal(sample, &mut x);
    x
}

fn primitive(element: Dtype, kernel: &str, grid: Grid, args: &[Arg], order: u64) {
    emu::run("primitives", element, kernel, grid, args, order).unwrap();
}

#[test]
fn vectors_and_odd_ends() {
    for element in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for n in [1, 7, 8, 64, 1000, 1027] {
            let x = Tensor::from_slice(&normals(n, 1), &[n]).to_dtype(element);
            let (from, mut to) = (device(&x), empty(n, element));
            let args = args![&from, &mut to, n];
            primitive(element, "primitives_copy", Grid::new(n.div_ceil(128), 32), args, 0);
            assert_eq!(host(&to), x.to_f64());
        }
    }
}

#[test]
fn reductions_of_a_block() {
    for (order, (width, threads)) in
        ORDERS.into_iter().zip([(1000, 1024), (33, 32), (700, 96), (5, 256)])
    {
        let x = Tensor::from_slice(&normals(3 * width, 2), &[3, width]).to_dtype(Dtype::Bf16);
        let (from, mut sums, mut maxima) = (device(&x), empty(3, Dtype::F32), empty(3, Dtype::F32));
        let args = args![&from, &mut sums, &mut maxima, width];
        primitive(Dtype::Bf16, "primitives_reduce", Grid::new(3, threads), args, order);
        for (row, (sum, most)) in
            x.to_f64().chunks(width).zip(host(&sums).iter().zip(host(&maxima)))
        {
            let expected: f64 = row.iter().sum();
            assert!((sum - expected).abs() < 1e-3, "{sum} for {expected}");
            assert_eq!(most, row.iter().copied().fold(f64::MIN, f64::max));
        }
    }
}

#[test]
fn shuffles_of_every_form() {
    let lanes = 64;
    let x: Vec<f32> = (0..lanes).map(|i| i as f32).collect();
    for argument in [0usize, 1, 2, 3, 5, 8, 16, 31] {
        let (from, mut to) = (floats(&x), empty(9 * lanes, Dtype::F32));
        let args = args![&from, &mut to, argument];
        primitive(Dtype::F32, "primitives_shuffle", Grid::new(1, lanes), args, argument as u64);
        let y = host(&to);
        for (w, width) in [32, 8, 4].into_iter().enumerate() {
            for i in 0..lanes {
                let (lane, first) = (i % 32, i % 32 / width * width);
                let expected = [
                    first + argument % width,
                    if lane >= first + argument { lane - argument } else { lane },
                    if lane ^ argument < first + width { lane ^ argument } else { lane },
                ];
                for (form, from) in expected.into_iter().enumerate() {
                    let got = y[(w * 3 + form) * lanes + i];
                    let what = format!("form {form}, width {width}, lane {i}, argument {argument}");
                    assert_eq!(got, (i / 32 * 32 + from) as f64, "{what}");
                }
            }
        }
    }
}

#[test]
fn votes_of_some_lanes() {
    let x: Vec<i32> = (0..32).map(|i| i32::from(i % 3 == 0)).collect();
    for x in [x, vec![0; 32], vec![1; 32]] {
        let (from, mut to) = (device(&Tensor::from_slice(&x, &[32])), empty(64, Dtype::I32));
        let args = args![&from, &mut to, 1i64 << 40];
        primitive(Dtype::F32, "primitives_vote", Grid::new(1, 32), args, 3);
        let y = to.to_host().unwrap();
        let ballot = (0..32).step_by(2).map(|i| x[i] << i).sum::<i32>();
        for (i, two) in y.read::<i32>().chunks(2).enumerate() {
            if i % 2 == 0 {
                assert_eq!(two[0], ballot);
            }
            assert_eq!(two[1], 1);
        }
    }
}

/// |got - expected| relative to the sum of the magnitudes of the terms.
fn assert_product(
    d: &[f64],
    c: &[f64],
    product: impl Fn(usize, usize, usize) -> f64,
    depth: usize,
) {
    for (i, got) in d.iter().enumerate() {
        let terms: Vec<f64> = (0..depth).map(|k| product(i / 8, i % 8, k)).collect();
        let expected = c[i] + terms.iter().sum::<f64>();
        let size = c[i].abs() + terms.iter().map(|t| t.abs()).sum::<f64>();
        assert!((got - expected).abs() <= 2e-6 * size, "{i}: {got} for {expected}");
    }
}

#[test]
fn matrix_products_of_16_bits() {
    for element in [Dtype::Bf16, Dtype::F16] {
        for transposed in [false, true] {
            let a = Tensor::from_slice(&normals(256, 3), &[256]).to_dtype(element);
            let b = Tensor::from_slice(&normals(128, 4), &[128]).to_dtype(element);
            let c = Tensor::from_slice(&normals(128, 5), &[128]);
            let (x, y, z, mut d) = (device(&a), device(&b), device(&c), empty(128, Dtype::F32));
            let args = args![&x, &y, &z, &mut d, transposed];
            primitive(element, "primitives_mma", Grid::new(1, 32), args, 5);
            let (a, b) = (a.to_f64(), b.to_f64());
            let b = |k: usize, n: usize| if transposed { b[k * 8 + n] } else { b[n * 16 + k] };
            assert_product(&host(&d), &c.to_f64(), |i, j, k| a[i * 16 + k] * b(k, j), 16);
        }
    }
}

#[test]
fn matrix_products_of_tf32() {
    let round = |x: &Vec<f32>| -> Vec<f64> {
        let round = |x: &f32| f32::from_bits((x.to_bits() + 0x1000) & 0xffff_e000);
        x.iter().map(|x| f64::from(round(x))).collect()
    };
    let (a, b, c) = (normals(128, 6), normals(64, 7), normals(128, 8));
    let mut d = empty(128, Dtype::F32);
    let (x, y, z) = (floats(&a), floats(&b), floats(&c));
    let args = args![&x, &y, &z, &mut d];
    primitive(Dtype::F32, "primitives_mma", Grid::new(1, 32), args, 0);
    let c: Vec<f64> = c.into_iter().map(f64::from).collect();
    let (a, b) = (round(&a), round(&b));
    assert_product(&host(&d), &c, |i, j, k| a[i * 8 + k] * b[j * 8 + k], 8);
}

#[test]
fn tf32_is_the_nearest_ties_away() {
    let x =
        [1.0f32, 1.0 + 2f32.powi(-11), -1.0 - 2f32.powi(-11), 1.0 + 2f32.powi(-12), f32::INFINITY];
    let mut y = empty(5, Dtype::F32);
    primitive(Dtype::F32, "primitives_tf32", Grid::new(1, 5), args![&floats(&x), &mut y], 0);
    let up = f64::from(1.0 + 2f32.powi(-10));
    assert_eq!(host(&y), [1.0, up, -up, 1.0, f64::INFINITY]);
}

#[test]
fn ldmatrix_both_ways() {
    let x: Vec<bf16> = (0..256u16).map(bf16::from_bits).collect();
    let (from, mut to) = (device(&Tensor::from_slice(&x, &[256])), empty(512, Dtype::Bf16));
    primitive(Dtype::Bf16, "primitives_ldmatrix", Grid::new(1, 32), args![&from, &mut to], 9);
    let y = to.to_host().unwrap();
    for (at, value) in y.read::<bf16>().iter().enumerate() {
        let (pass, lane, matrix, half) = (at / 256, at / 8 % 32, at / 2 % 4, at % 2);
        let (row, column) = (lane / 4, lane % 4 * 2 + half);
        let (row, column) = if pass == 0 { (row, column) } else { (column, row) };
        assert_eq!(usize::from(value.to_bits()), matrix * 64 + row * 8 + column);
    }
}

#[test]
fn copies_through_a_pipeline() {
    for element in [Dtype::F32, Dtype::Bf16] {
        let (threads, steps) = (64, 5);
        let all = threads * 16 / element.bytes() * steps;
        for (n, fine) in
            [(all, false), (all - 3, false), (all / 2 + 1, false), (all - 2, true), (4, true)]
        {
            // A whole number of pairs if four bytes are two elements.
            let n = if fine { n / 2 * 2 } else { n };
            let x = Tensor::from_slice(&normals(n, 10), &[n]).to_dtype(element);
            let (from, mut to) = (device(&x), empty(all, element));
            let grid = Grid::new(1, threads).shared(2 * threads * 16);
            let args = args![&from, &mut to, n, steps, fine];
            primitive(element, "primitives_async", grid, args, n as u64);
            let mut expected = x.to_f64();
            expected.resize(all, 0.0);
            assert_eq!(host(&to), expected);
        }
    }
}

#[test]
fn random_words_match_the_host() {
    let philox = philox();
    let [key0, key1] = philox.key();
    let mut x = empty(4 * 64, Dtype::I32);
    for [first, b, c, d] in [[0u32, 0, 0, 0], [5, 7, 0, 8], [u32::MAX - 70, 16, u32::MAX, 3]] {
        let args = args![&mut x, key0, key1, first, b, c, d];
        primitive(Dtype::F32, "primitives_philox", Grid::new(1, 64), args, 0);
        for (i, words) in (first..).zip(x.to_host().unwrap().read::<i32>().chunks(4)) {
            assert_eq!(words, philox.block([i, b, c, d]).map(|word| word as i32));
        }
    }
}

#[test]
fn conversions_are_the_nearest() {
    let philox = philox();
    // All magnitudes, and the boundaries between them.
    let mut x: Vec<f32> =
        (0..4000).map(|i| f32::from_bits((philox.uniform(0, i) * 4294967296.0) as u32)).collect();
    x.extend([
        0.0,
        -0.0,
        65504.0,
        65519.99,
        65520.0,
        6.1e-5,
        5.96e-8,
        2.98e-8,
        2.99e-8,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ]);
    x.extend((0..2000).map(|i| f32::from_bits(0x3300_0000 + i * 0x1_8001)));
    let n = x.len();
    for element in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let (mut y, mut packed) = (empty(n, Dtype::F32), empty(n, Dtype::F32));
        let from = floats(&x);
        let args = args![&from, &mut y, &mut packed, n];
        primitive(element, "primitives_convert", Grid::new(1, 64), args, 0);
        for ((x, y), packed) in x.iter().zip(host(&y)).zip(host(&packed)) {
            let expected = match element {
                Dtype::Bf16 => bf16::from_f32(*x).to_f64(),
                Dtype::F16 => f16::from_f32(*x).to_f64(),
                _ => f64::from(*x),
            };
            let same =
                |y: f64| y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
            assert!(same(y) && same(packed), "{x}: {y} and {packed} for {expected} in {element}");
        }
    }
}

#[test]
fn put_writes_or_adds() {
    let x = [1.0f32, 2.0, 1.0 + 2f32.powi(-8)];
    let mut y = device(&Tensor::from_slice(&[f32::NAN; 3], &[3]).to_dtype(Dtype::Bf16));
    for (add, expected) in [(false, [1.0, 2.0, 1.0]), (true, [2.0, 4.0, 2.0])] {
        primitive(
            Dtype::Bf16,
            "primitives_put",
            Grid::new(1, 3),
            args![&floats(&x), &mut y, add],
            0,
        );
        assert_eq!(host(&y), expected);
    }
}
