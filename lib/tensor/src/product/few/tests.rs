use super::super::{FEW, View, narrow, product, steps_into};
use crate::dtype::{Element, Float, bf16};

/// Integers, whose sums are exact, in every layout of rhs.
#[test]
fn few_rows_agree_with_the_definition() {
    for (m, n, k) in [(1, 1, 1), (2, 5, 7), (3, 130, 33), (5, 67, 64), (8, 4, 17), (9, 9, 9)] {
        let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 + 11) % 11) as f32 - 5.0).collect();
        // Rows are two elements longer than the matrix.
        let b: Vec<f32> = (0..n * (k + 2)).map(|i| ((i * 53 + 7) % 13) as f32 - 6.0).collect();
        let c: Vec<f32> = (0..k * (n + 2)).map(|i| ((i * 29 + 5) % 7) as f32 - 3.0).collect();
        for add in [false, true] {
            let lhs = View::new(&a, m, k, k).of_steps(true);
            let (mut dots, mut sums) = (vec![2.0; m * n], vec![2.0; m * n]);
            product(&mut dots, n, add, 0.5, lhs, View::new(&b, n, k, k + 2).transposed());
            product(&mut sums, n, add, 0.5, lhs, View::new(&c, k, n, n + 2));
            for i in 0..m * n {
                let (row, column) = (i / n, i % n);
                let of = |rhs: &dyn Fn(usize) -> f32| {
                    let sum: f32 = (0..k).map(|l| a[row * k + l] * rhs(l)).sum();
                    0.5 * sum + if add { 2.0 } else { 0.0 }
                };
                assert_eq!(dots[i], of(&|l| b[column * (k + 2) + l]), "{m} {n} {k}");
                assert_eq!(sums[i], of(&|l| c[l * (n + 2) + column]), "{m} {n} {k}");
            }
        }
    }
}

/// The same for many rows and few columns.
#[test]
fn few_columns_agree_with_the_definition() {
    for (m, n, k) in [(1, 1, 1), (23, 16, 9), (40, 5, 7), (17, 40, 3)] {
        let a: Vec<f32> = (0..m * k).map(|i| ((i * 37 + 11) % 11) as f32 - 5.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| ((i * 29 + 5) % 7) as f32 - 3.0).collect();
        let mut out = vec![f32::NAN; m * n];
        narrow(&mut out, 0.5, View::new(&a, m, k, k), View::new(&b, k, n, n));
        for (i, out) in out.iter().enumerate() {
            let sum: f32 = (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum();
            assert_eq!(*out, 0.5 * sum, "{m} {n} {k}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let (m, n, k) = (8, 70, 53);
    let value = |i: usize| ((i * 7919) % 1009) as f32 * 1e-3 - 0.5;
    let a: Vec<f32> = (0..m * k).map(value).collect();
    let b: Vec<f32> = (0..n * k).map(|i| value(i + 17)).collect();
    let rhs = [View::new(&b, n, k, k).transposed(), View::new(&b, k, n, n)];
    for rhs in rhs {
        let mut all = vec![0.0; m * n];
        product(&mut all, n, false, 1.0, View::new(&a, m, k, k).of_steps(true), rhs);
        for (row, expected) in all.chunks(n).enumerate() {
            let mut one = vec![0.0; n];
            let lhs = View::new(&a[row * k..], 1, k, k).of_steps(true);
            product(&mut one, n, false, 1.0, lhs, rhs);
            assert_eq!(one, expected);
        }
    }
}

/// Numbers in bf16, in rows that are longer than the matrix, give the bits of the same numbers in T.
fn bf16_gives_the_bits_of<T: Float>() {
    let value = |i: usize| ((i * 7919) % 1009) as f64 * 1e-3 - 0.5;
    for (n, k) in [(1, 1), (4, 16), (5, 7), (130, 33), (67, 64), (6, 203), (9, 0)] {
        let stride = k + 3;
        let b: Vec<bf16> = (0..n * stride).map(|i| bf16::of(value(i + 17))).collect();
        let wide: Vec<T> = b.iter().map(|x| T::of(x.f64())).collect();
        for m in 1..=FEW {
            let a: Vec<T> = (0..m * k).map(|i| T::of(value(i))).collect();
            let lhs = View::new(&a, m, k, k).of_steps(true);
            for add in [false, true] {
                let (mut found, mut expected) = (vec![T::ONE; m * n], vec![T::ONE; m * n]);
                // SAFETY: `found` has m rows of n elements.
                unsafe { steps_into(found.as_mut_ptr(), n, add, lhs, View::new(&b, n, k, stride)) };
                let rhs = View::new(&wide, n, k, stride).transposed();
                product(&mut expected, n, add, T::ONE, lhs, rhs);
                assert_eq!(found, expected, "{m} {n} {k}");
            }
        }
    }
}

#[test]
fn rows_in_bf16_give_the_same_bits() {
    bf16_gives_the_bits_of::<f32>();
    bf16_gives_the_bits_of::<f64>();
}
