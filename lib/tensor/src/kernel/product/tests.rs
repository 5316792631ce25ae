//! Tests every product kernel on the emulator against sums in f64.

use super::*;
use crate::device::Device;
use crate::kernel::emu;
use crate::random::{Philox, Purpose};

/// Returns random values on the emulator, and the same values on the host.
fn operand(len: usize, dtype: Dtype, seed: u64) -> (Tensor, Vec<f64>) {
    let random = Philox::new(seed, Purpose::Test);
    let values: Vec<f32> = (0..len as u64).map(|i| random.normal(7, i)).collect();
    let host = Tensor::from_slice(&values, &[len]).to_dtype(dtype);
    (host.to_device(Device::Emu).unwrap(), host.to_f64())
}

/// A product with one storage layout and one plan.
struct Check {
    dtype: Dtype,
    tf32: bool,
    plan: Option<ProductPlan>,
    transposed: [bool; 2],
    sizes: [usize; 3],
    batch: usize,
    terms: usize,
    add: bool,
}

impl Check {
    /// Checks that every element of the result is within the rounding error bound.
    fn run(&self) {
        let Check { dtype, sizes: [m, n, k], batch, terms, add, .. } = *self;
        let (a, a64) = operand(batch * terms * m * k, dtype, 1);
        let (b, b64) = operand(batch * terms * k * n, dtype, 2);
        let (c, c64) = operand(batch * m * n, dtype, 3);
        let matrix = |x, rows, columns, transposed: bool| {
            let matrix = if transposed {
                Matrix::new(x, columns, rows).transposed()
            } else {
                Matrix::new(x, rows, columns)
            };
            matrix.term_stride(rows * columns).batch_stride(terms * rows * columns)
        };
        let lhs = matrix(&a, m, k, self.transposed[0]);
        let rhs = matrix(&b, k, n, self.transposed[1]);
        let mut product = Product::new(lhs, rhs).batch(batch).terms(terms);
        product = product.tf32(self.tf32);
        if let Some(plan) = self.plan {
            product = product.plan(plan);
        }
        let mut buffer = GradBuffer { tensor: c, accumulate: add };
        product.put(&mut buffer);
        let result = buffer.tensor.to_host().unwrap().to_f64();
        // tf32 has 11 bits of precision.
        let unit = if self.tf32 { f64::powi(2.0, -11) } else { 0.0 };
        for p in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let mut sum = 0.0;
                    let mut size = 0.0;
                    for t in 0..terms {
                        let start = p * terms + t;
                        for l in 0..k {
                            let x = if self.transposed[0] { l * m + i } else { i * k + l };
                            let y = if self.transposed[1] { j * k + l } else { l * n + j };
                            let term = a64[start * m * k + x] * b64[start * k * n + y];
                            sum += term;
                            size += term.abs();
                        }
                    }
                    let at = (p * m + i) * n + j;
                    let before = if add { c64[at] } else { 0.0 };
                    let error = (result[at] - (sum + before)).abs();
                    // One rounding of the stored result, of each product, and of each partial sum.
                    let bound = dtype.roundoff() * (sum + before).abs()
                        + (2.0 * unit + (2.0 + (k * terms) as f64) * Dtype::F32.roundoff()) * size
                        + 1e-7;
                    assert!(
                        error <= bound,
                        "({p}, {i}, {j}) of {:?} {:?} {:?}: {} is not {}",
                        self.plan,
                        self.transposed,
                        self.sizes,
                        result[at],
                        sum + before
                    );
                }
            }
        }
    }
}

const PLAIN: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];
const UNITS: [(Dtype, bool); 4] =
    [(Dtype::Bf16, false), (Dtype::F16, false), (Dtype::F32, false), (Dtype::F32, true)];

fn each(check: impl Fn(Dtype, bool, [bool; 2])) {
    for (dtype, tf32) in UNITS {
        for transposed in PLAIN {
            check(dtype, tf32, transposed);
        }
    }
}

#[test]
fn odd_sizes_and_every_storage_agree_with_f64() {
    each(|dtype, tf32, transposed| {
        for sizes in [[1, 1, 1], [3, 5, 7], [65, 67, 33], [2, 129, 70], [70, 3, 131]] {
            let plan = Some(ProductPlan { tile: Tile::Small, splits: 1, copied: false });
            Check { dtype, tf32, plan, transposed, sizes, batch: 2, terms: 1, add: true }.run();
        }
    });
}

#[test]
fn large_tiles_agree_with_f64() {
    each(|dtype, tf32, transposed| {
        let half = dtype != Dtype::F32;
        let halves = &[Tile::Medium, Tile::Large, Tile::Wgmma, Tile::PingPong][..];
        for tile in if half { halves } else { &[Tile::Medium] } {
            if transposed != [true, true] {
                // More than one tile in every direction; aligned to 16 bytes, but not to a larger power of two.
                let sizes = [136, tile.size().1 + 8, 168];
                let plan = Some(ProductPlan { tile: *tile, splits: 1, copied: false });
                Check { dtype, tf32, plan, transposed, sizes, batch: 1, terms: 1, add: false }
                    .run();
            }
        }
    });
}

#[test]
fn copies_with_aligned_lines_agree_with_f64() {
    each(|dtype, tf32, transposed| {
        let tile = match (transposed, dtype) {
            ([true, true], _) => Tile::Small,
            (_, Dtype::F32) => Tile::Medium,
            _ => Tile::Large,
        };
        for (sizes, splits, [batch, terms]) in [
            ([131, 137, 37], 1, [2, 3]),
            ([9, 130, 67], 2, [2, 3]),
            ([1, 5, 3], 1, [2, 3]),
            ([130, 138, 70], 1, [1, 1]),
            ([131, 137, 37], 2, [1, 1]),
        ] {
            let plan = Some(ProductPlan { tile, splits, copied: true });
            Check { dtype, tf32, plan, transposed, sizes, batch, terms, add: true }.run();
        }
    });
}

#[test]
fn products_by_warpgroups_agree_with_f64() {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for transposed in &PLAIN[..3] {
            // Persistent blocks with several parts each, whose last tiles are partial; more tiles than pipeline slots;
            // a single row.
            let cases = [
                ([264, 264, 72], 1, 1),
                ([8, 8, 8], 1, 3),
                ([136, 8, 328], 3, 2),
                ([1, 264, 8], 2, 1),
            ];
            for (order, (sizes, splits, terms)) in (0..).zip(cases) {
                // Lines of one element are not aligned.
                if sizes[0] == 1 && transposed[0] {
                    continue;
                }
                for tile in [Tile::Wgmma, Tile::PingPong] {
                    emu::set_order(order);
                    let plan = Some(ProductPlan { tile, splits, copied: false });
                    let (transposed, add) = (*transposed, splits == 1);
                    Check { dtype, tf32: false, plan, transposed, sizes, batch: 2, terms, add }
                        .run();
                }
            }
        }
    }
    emu::set_order(0);
}

#[test]
fn products_by_warpgroups_write_lines_of_any_length() {
    // 4-byte and 2-byte alignment, with and without split-k.
    for (n, splits) in [(130, 1), (131, 1), (130, 2), (131, 2)] {
        for tile in [Tile::Wgmma, Tile::PingPong] {
            for add in [false, true] {
                let plan = Some(ProductPlan { tile, splits, copied: false });
                let (dtype, transposed, sizes) = (Dtype::Bf16, [false, true], [136, n, 200]);
                Check { dtype, tf32: false, plan, transposed, sizes, batch: 2, terms: 1, add }
                    .run();
            }
        }
    }
}

const ACTIVATIONS: [Activation; 7] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::Relu,
    Activation::LeakyRelu,
];

/// All kernels sum in the order of k and have the same epilogue, so results are bit-identical; on a GPU, sums over 16
/// elements differ.
#[test]
fn products_by_warpgroups_have_the_epilogue_of_other_products() {
    let [m, k] = [136, 72];
    for (dtype, n, is_transposed) in [
        (Dtype::Bf16, 264, false),
        (Dtype::Bf16, 264, true),
        (Dtype::F16, 264, false),
        (Dtype::F16, 264, true),
        (Dtype::Bf16, 262, true),
    ] {
        let tensor = |len, seed| operand(len, dtype, seed).0;
        let (a, b, bias, at) = (tensor(m * k, 1), tensor(k * n, 2), tensor(n, 3), tensor(m * n, 4));
        // One epilogue without an activation, one that adds; then pairs of an activation and its derivative.
        let of = |tile, kind: usize| {
            let plan = ProductPlan { tile, splits: 1, copied: false };
            let rhs = if is_transposed {
                Matrix::new(&b, n, k).transposed()
            } else {
                Matrix::new(&b, k, n)
            };
            let product = Product::new(Matrix::new(&a, m, k), rhs).plan(plan);
            let (mut out, mut z) = (tensor(m * n, 5), tensor(m * n, 6));
            let activation = ACTIVATIONS[kind.saturating_sub(2) / 2];
            let derivative = Derivative { activation, at: at.clone() };
            let epilogue = match kind {
                0 => Epilogue { bias: Some(&bias), ..Epilogue::default() },
                1 => Epilogue { bias: Some(&bias), add: true, ..Epilogue::default() },
                _ if kind.is_multiple_of(2) => Epilogue {
                    bias: Some(&bias),
                    activation: Some((activation, &mut z)),
                    ..Epilogue::default()
                },
                _ => Epilogue { derivative: Some(&derivative), ..Epilogue::default() },
            };
            product.write(&mut out, epilogue);
            [out, z].map(|x| x.to_host().unwrap().as_bytes().to_vec())
        };
        let mut all = Vec::new();
        for kind in 0..2 + 2 * ACTIVATIONS.len() {
            let expected = of(Tile::Large, kind);
            for tile in [Tile::Wgmma, Tile::PingPong] {
                assert!(of(tile, kind) == expected, "{dtype}, n = {n}, {tile:?}, epilogue {kind}");
            }
            all.push(expected);
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "each epilogue differs");
    }
}

#[test]
fn sums_of_products_in_parts_agree_with_f64() {
    each(|dtype, tf32, transposed| {
        for splits in [1, 3, 7] {
            let plan = Some(ProductPlan { tile: Tile::Small, splits, copied: false });
            for add in [false, true] {
                let sizes = [17, 24, 40];
                Check { dtype, tf32, plan, transposed, sizes, batch: 2, terms: 3, add }.run();
            }
        }
    });
    // More elements than reduce_rows::LONG, which threads sum alone; the last block is partly idle.
    for (dtype, add) in [(Dtype::Bf16, true), (Dtype::F16, false), (Dtype::F32, true)] {
        let plan = Some(ProductPlan { tile: Tile::Small, splits: 3, copied: false });
        let (sizes, transposed) = ([133, 500, 40], [true, false]);
        Check { dtype, tf32: false, plan, transposed, sizes, batch: 1, terms: 1, add }.run();
    }
}

#[test]
fn a_sum_over_nothing_is_zero() {
    let plan = None;
    let transposed = [false, false];
    let (dtype, sizes) = (Dtype::F32, [3, 5, 0]);
    Check { dtype, tf32: false, plan, transposed, sizes, batch: 1, terms: 1, add: false }.run();
}
