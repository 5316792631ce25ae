//! The emulator: each primitive of `kernel/include` against plain arithmetic, and for each check a
//! kernel that breaks its rule. The kernels are `tests/emulator/*.cu`.
#![cfg(feature = "emu")]

use tensor::dtype::{bf16, f16};
use tensor::kernel::{Arg, Grid, emu};
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tensor, args};

const ORDERS: [u64; 4] = [0, 1, 2, 77];

fn philox() -> Philox {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    Philox::new(seed, Purpose::Test)
}

fn normals(n: usize, sample: u64) -> Vec<f32> {
    let mut x = vec![0.0; n];
    philox().fill_normal(sample, &mut x);
    x
}

fn device(x: &Tensor) -> Tensor {
    x.to_device(Device::Emu).unwrap()
}

fn floats(values: &[f32]) -> Tensor {
    device(&Tensor::of(values, &[values.len()]))
}

/// A vector of arbitrary content.
fn empty(n: usize, dtype: Dtype) -> Tensor {
    Tensor::arbitrary_on(Device::Emu, &[n], dtype)
}

fn host(x: &Tensor) -> Vec<f64> {
    x.to_host().unwrap().to_f64()
}

fn primitive(element: Dtype, kernel: &str, grid: Grid, args: &[Arg], order: u64) {
    emu::run("primitives", element, kernel, grid, args, order).unwrap();
}

/// What is wrong with a launch of a kernel of faults.cu; empty when nothing is.
fn fault(kernel: &str, grid: Grid, args: &[Arg]) -> String {
    emu::run("faults", Dtype::F32, kernel, grid, args, 0)
        .map_or_else(|e| e.to_string(), |()| String::new())
}

#[track_caller]
fn assert_says(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "\"{part}\" is not in \"{words}\"");
    }
}

#[test]
fn vectors_and_odd_ends() {
    for element in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        for n in [1, 7, 8, 64, 1000, 1027] {
            let x = Tensor::of(&normals(n, 1), &[n]).to_dtype(element);
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
        let x = Tensor::of(&normals(3 * width, 2), &[3, width]).to_dtype(Dtype::Bf16);
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
        let (from, mut to) = (floats(&x), empty(12 * lanes, Dtype::F32));
        let args = args![&from, &mut to, argument];
        primitive(Dtype::F32, "primitives_shuffle", Grid::new(1, lanes), args, argument as u64);
        let y = host(&to);
        for (w, width) in [32, 8, 4].into_iter().enumerate() {
            for i in 0..lanes {
                let (lane, first) = (i % 32, i % 32 / width * width);
                let expected = [
                    first + argument % width,
                    if lane >= first + argument { lane - argument } else { lane },
                    if lane + argument < first + width { lane + argument } else { lane },
                    if lane ^ argument < first + width { lane ^ argument } else { lane },
                ];
                for (form, from) in expected.into_iter().enumerate() {
                    let got = y[(w * 4 + form) * lanes + i];
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
    for (x, any, all) in [(x, 1, 0), (vec![0; 32], 0, 0), (vec![1; 32], 1, 1)] {
        let (from, mut to) = (device(&Tensor::of(&x, &[32])), empty(128, Dtype::I32));
        let args = args![&from, &mut to, 1i64 << 40];
        primitive(Dtype::F32, "primitives_vote", Grid::new(1, 32), args, 3);
        let y = to.to_host().unwrap();
        let ballot = (0..32).step_by(2).map(|i| x[i] << i).sum::<i32>();
        for (i, four) in y.read::<i32>().chunks(4).enumerate() {
            if i % 2 == 0 {
                assert_eq!(four[..3], [ballot, any, all]);
            }
            assert_eq!(four[3], 1);
        }
    }
}

/// |got - expected| against the sum of the sizes of what is added.
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
            let a = Tensor::of(&normals(256, 3), &[256]).to_dtype(element);
            let b = Tensor::of(&normals(128, 4), &[128]).to_dtype(element);
            let c = Tensor::of(&normals(128, 5), &[128]);
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
    let (from, mut to) = (device(&Tensor::of(&x, &[256])), empty(512, Dtype::Bf16));
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
            // Of pairs, where four bytes are two elements.
            let n = if fine { n / 2 * 2 } else { n };
            let x = Tensor::of(&normals(n, 10), &[n]).to_dtype(element);
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
fn random_numbers_are_the_hosts() {
    let philox = philox();
    let [a, b] = philox.key();
    let (mut x, mut y) = (empty(64, Dtype::F32), empty(64, Dtype::F32));
    for (sample, first) in [(0, 0), (1 << 35, 5), (3, 1 << 36)] {
        let args = args![&mut x, &mut y, a, b, sample as u64, first as u64];
        primitive(Dtype::F32, "primitives_philox", Grid::new(1, 64), args, 0);
        for (i, (uniform, normal)) in host(&x).into_iter().zip(host(&y)).enumerate() {
            assert_eq!(uniform, f64::from(philox.uniform(sample, first + i as u64)));
            let expected = f64::from(philox.normal(sample, first + i as u64));
            assert!((normal - expected).abs() < 4e-6, "{normal} for {expected}");
        }
    }
}

#[test]
fn conversions_are_the_nearest() {
    let philox = philox();
    // All magnitudes, and what is at the borders.
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
    let mut y = device(&Tensor::of(&[f32::NAN; 3], &[3]).to_dtype(Dtype::Bf16));
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

#[test]
fn accesses_outside() {
    let (x, mut y) = (floats(&[1.0; 33]), empty(33, Dtype::F32));
    let grid = Grid::new(2, 32);
    assert_eq!(fault("faults_read", grid, args![&x, &mut y, 33, 0]), "");
    assert_says(
        &fault("faults_read", grid, args![&x, &mut y, 33, 1]),
        &[
            "faults.cu (f32), kernel faults_read, block (1, 0, 0), thread (1, 0, 0)",
            "reads 4 bytes at offset 132, outside of argument 0 'x' (132 bytes)",
            "faults.cu:1",
        ],
    );
    assert_says(
        &fault("faults_write", grid, args![&x, &mut y, 33, 1]),
        &["writes 4 bytes at offset 132, outside of argument 1 'y' (132 bytes)"],
    );
    assert_says(
        &fault("faults_before", Grid::new(1, 1), args![&x, &mut y, 1]),
        &["reads 4 bytes at offset -4, outside of argument 0 'x' (132 bytes)"],
    );
    assert_eq!(fault("faults_shared", Grid::new(1, 32), args![&mut y, 0]), "");
    assert_says(
        &fault("faults_shared", Grid::new(1, 32), args![&mut y, 1]),
        &[
            "thread (31, 0, 0)",
            "writes 4 bytes at offset 128, outside of shared array 'first' (128 bytes)",
        ],
    );
}

#[test]
fn accesses_not_aligned() {
    let (x, mut y) = (floats(&[1.0; 8]), empty(8, Dtype::F32));
    for how in [0, 1] {
        assert_eq!(fault("faults_alignment", Grid::new(1, 1), args![&x, &mut y, how, 4]), "");
        assert_says(
            &fault("faults_alignment", Grid::new(1, 1), args![&x, &mut y, how, 1]),
            &[
                "reads 16 bytes at offset 4 of argument 0 'x' (32 bytes): an address that is no multiple of 16",
            ],
        );
    }
}

#[test]
fn races_between_lanes() {
    let mut y = empty(128, Dtype::F32);
    for (kernel, threads) in [
        ("faults_barrier", 64),
        ("faults_overwrite", 64),
        ("faults_lanes", 32),
        ("faults_half_warp", 32),
    ] {
        for order in ORDERS {
            let mut run = |wrong: bool| {
                let (grid, args) = (Grid::new(1, threads), args![&mut y, wrong]);
                emu::run("faults", Dtype::F32, kernel, grid, args, order)
            };
            assert!(run(false).is_ok(), "{:?}", run(false));
            // Whether the one reads or the other writes first depends on the order.
            let words = run(true).unwrap_err().to_string();
            let parts =
                ["race: ", " 4 bytes at offset", "array 'values'", "without a barrier between"];
            assert_says(&words, &parts);
        }
    }
    let words = fault("faults_overwrite", Grid::new(1, 64), args![&mut y, 1]);
    let parts = ["thread (0, 0, 0): race: reads", "which thread (63, 0, 0) has written without"];
    assert_says(&words, &parts);
}

#[test]
fn races_between_blocks() {
    let (mut y, mut z) = (device(&Tensor::zeros(&[8], Dtype::F32)), empty(8, Dtype::F32));
    assert_eq!(fault("faults_blocks", Grid::new(8, 1), args![&mut y, 0]), "");
    assert_says(
        &fault("faults_blocks", Grid::new(8, 1), args![&mut y, 1]),
        &[
            "block (1, 0, 0)",
            "race: writes 4 bytes at offset 0 of argument 0 'y' (32 bytes), which block (0, 0, 0) has written",
        ],
    );
    assert_eq!(fault("faults_neighbour", Grid::new(8, 1), args![&mut y, &mut z, 0]), "");
    assert_says(
        &fault("faults_neighbour", Grid::new(8, 1), args![&mut y, &mut z, 1]),
        &["race: ", "argument 0 'y'"],
    );
    // What is beside is not the same.
    let mut halves = empty(8, Dtype::F16);
    assert_eq!(fault("faults_neighbouring_halves", Grid::new(8, 1), args![&mut halves]), "");
    assert_eq!(fault("faults_neighbouring_bytes", Grid::new(8, 1), args![&mut halves]), "");
}

#[test]
fn copies_that_are_under_way() {
    let (x, mut y) = (floats(&[1.0; 256]), empty(64, Dtype::F32));
    for (kernel, threads, part) in [
        ("faults_wait", 32, "where an asynchronous copy of thread (0, 0, 0) is under way"),
        ("faults_wait_alone", 64, "race: "),
        ("faults_copy_over", 64, "race: "),
    ] {
        assert_eq!(fault(kernel, Grid::new(1, threads), args![&x, &mut y, 0]), "");
        let words = fault(kernel, Grid::new(1, threads), args![&x, &mut y, 1]);
        assert_says(&words, &[part, "shared array 'values'"]);
    }
}

#[test]
fn waits_without_end() {
    let mut y = empty(64, Dtype::F32);
    for (kernel, parts) in [
        (
            "faults_divergent",
            &["threads 0-15 wait at __syncthreads (faults.cu:", "threads 16-31 have exited"][..],
        ),
        ("faults_two_barriers", &["divergent __syncthreads"]),
        (
            "faults_absent",
            &["wait at __shfl_xor_sync with mask 0xffffffff (warp.cuh:", "threads 7-7 have exited"],
        ),
        ("faults_mask", &["a shuffle with mask 0x0000ffff reads lane 20, which takes no part"]),
    ] {
        for order in ORDERS {
            let mut run = |wrong: bool| {
                emu::run(
                    "faults",
                    Dtype::F32,
                    kernel,
                    Grid::new(1, 32),
                    args![&mut y, wrong],
                    order,
                )
            };
            assert!(run(false).is_ok(), "{:?}", run(false));
            let words = run(true).unwrap_err().to_string();
            assert_says(&words, &["faults.cu (f32), kernel", "block (0, 0, 0)"]);
            assert_says(&words, parts);
        }
    }
    // A warp that is not whole has no value for the lanes that are not there.
    let words = fault("faults_absent", Grid::new(1, 20), args![&mut y, 0]);
    assert_says(&words, &["mask 0xffffffff, but the warp has 20 lanes only"]);
}

#[test]
fn launches_that_no_card_takes() {
    let mut y = empty(2048, Dtype::F32);
    let grid = Grid::new(1, 1);
    let says = |words: &str, part: &str| assert_says(words, &[part]);
    says(&fault("faults_blocks", Grid::new(1, 1025), args![&mut y, 0]), "a block of (1025, 1, 1)");
    says(
        &fault("faults_blocks", Grid::grid([1, 65536, 1], 1), args![&mut y, 0]),
        "a grid of (1, 65536, 1)",
    );
    says(
        &fault("faults_blocks", grid.shared(232449), args![&mut y, 0]),
        "232449 bytes of shared memory: a block has 232448",
    );
    says(
        &fault("faults_launch_bounds", Grid::new(1, 96), args![&mut y]),
        "96 threads, but its KERNEL names at most 64",
    );
    says(&fault("faults_blocks", grid, args![&mut y]), "takes 2 arguments (y,wrong), got 1");
    says(
        &fault("faults_blocks", grid, args![&mut y, 0.5f32]),
        "argument 1 of (y,wrong) is i32, got f32",
    );
    says(&fault("faults_nothing", grid, args![&mut y]), "faults.cu has no kernel faults_nothing");
    let nothing = emu::run("nothing", Dtype::F32, "nothing", grid, args![&mut y], 0).unwrap_err();
    says(&nothing.to_string(), "no source nothing.cu was compiled for f32");
    let args = args![&mut y, -3, 4u32, -5i64, 6u64, 0.5f32];
    assert_eq!(fault("faults_arguments", grid, args), "");
    assert_eq!(host_of(&y, 5), [-3.0, 4.0, -5.0, 6.0, 0.5]);
}

fn host_of(x: &Tensor, n: usize) -> Vec<f64> {
    host(x)[..n].to_vec()
}

#[test]
fn what_is_uninitialised_is_not_a_number() {
    let (x, mut y) = (empty(1, Dtype::F32), empty(2, Dtype::F32));
    assert_eq!(fault("faults_poison", Grid::new(1, 1), args![&x, &mut y]), "");
    assert!(host(&y).iter().all(|y| y.is_nan()));
}

#[test]
fn addresses_in_memory() {
    let tensors: Vec<Tensor> = (0..3).map(|_| empty(5, Dtype::F32)).collect();
    let stranger = empty(5, Dtype::F32);
    let halves = |address: u64| [address as i32, (address >> 32) as i32];
    let mut addresses: Vec<i32> = tensors.iter().flat_map(|t| halves(emu::address(t))).collect();
    let table = device(&Tensor::of(&addresses, &[addresses.len()]));
    assert_eq!(fault("faults_table", Grid::new(1, 3), args![&table, 5, 0]), "");
    assert!(tensors.iter().all(|t| host(t)[4] == 3.0));
    let words = fault("faults_table", Grid::new(1, 3), args![&table, 5, 1]);
    assert_says(
        &words,
        &[
            "writes 4 bytes at offset 20, outside of memory whose address an argument holds (20 bytes)",
        ],
    );
    // An address of the host.
    addresses[..2].copy_from_slice(&halves(&raw const tensors as u64));
    let table = device(&Tensor::of(&addresses, &[addresses.len()]));
    let words = fault("faults_table", Grid::new(1, 1), args![&table, 5, 0]);
    assert_says(&words, &["writes 4 bytes at address 0x", "which is in no memory of this device"]);
    assert!(host(&stranger)[0].is_nan());
}
