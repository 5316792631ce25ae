//! Kernels that violate a rule, and the error that the emulator reports for each.

use super::{ORDERS, device, empty, floats, host};
use tensor::kernel::{Arg, Grid, emu};
use tensor::{Dtype, Tensor, args};

/// The error of launching a kernel of faults.cu; empty if it succeeds.
fn fault(kernel: &str, grid: Grid, args: &[Arg]) -> String {
    emu::run("faults", Dtype::F32, kernel, grid, args, 0)
        .map_or_else(|e| e.to_string(), |()| String::new())
}

#[track_caller]
pub(super) fn assert_says(words: &str, parts: &[&str]) {
    for part in parts {
        assert!(words.contains(part), "\"{part}\" is not in \"{words}\"");
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
                "reads 16 bytes at offset 4 of argument 0 'x' (32 bytes): the address is not a multiple of 16",
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
            // The order decides whether the read or the write is reported first.
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
    // Neighbouring values are not the same location.
    let mut halves = empty(8, Dtype::F16);
    assert_eq!(fault("faults_neighbouring_halves", Grid::new(8, 1), args![&mut halves]), "");
    assert_eq!(fault("faults_neighbouring_bytes", Grid::new(8, 1), args![&mut halves]), "");
}

#[test]
fn copies_in_flight() {
    let (x, mut y) = (floats(&[1.0; 256]), empty(64, Dtype::F32));
    for (kernel, threads, part) in [
        ("faults_wait", 32, "where an asynchronous copy of thread (0, 0, 0) is in flight"),
        ("faults_wait_alone", 64, "race: "),
        ("faults_copy_over", 64, "race: "),
    ] {
        assert_eq!(fault(kernel, Grid::new(1, threads), args![&x, &mut y, 0]), "");
        let words = fault(kernel, Grid::new(1, threads), args![&x, &mut y, 1]);
        assert_says(&words, &[part, "shared array 'values'"]);
    }
}

#[test]
fn sources_that_change() {
    let (mut x, mut y) = (floats(&[1.0; 256]), empty(64, Dtype::F32));
    let grid = Grid::new(1, 32);
    assert_eq!(fault("faults_copy_from", grid, args![&mut x, &mut y, 0]), "");
    let words = fault("faults_copy_from", grid, args![&mut x, &mut y, 1]);
    assert_says(&words, &["source of an asynchronous copy changed before", "faults.cu:"]);
    assert_eq!(fault("faults_constant", grid, args![&x, &mut y]), "");
    let words = fault("faults_constant", grid, args![&x, &x]);
    assert_says(
        &words,
        &["writes 4 bytes at offset 0 of argument 0 'x' (1024 bytes)", "const __restrict__"],
    );
}

#[test]
fn endless_waits() {
    let mut y = empty(64, Dtype::F32);
    for (kernel, parts) in [
        (
            "faults_divergent",
            &["threads 0-15 wait at __syncthreads (faults.cu:", "threads 16-31 have exited"][..],
        ),
        ("faults_two_barriers", &["divergent __syncthreads"]),
        (
            "faults_two_sums",
            &["divergent __shfl_xor_sync: this thread is at warp.cuh:", " at faults.cu:"],
        ),
        ("faults_two_products", &["divergent mma", " at faults.cu:"]),
        ("faults_two_loads", &["divergent ldmatrix", " at faults.cu:"]),
        (
            "faults_absent",
            &["wait at __shfl_xor_sync with mask 0xffffffff (warp.cuh:", "threads 7-7 have exited"],
        ),
        (
            "faults_mask",
            &["a shuffle with mask 0x0000ffff reads lane 20, which does not participate"],
        ),
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
    // In a partial warp, shuffles have no value for the missing lanes.
    let words = fault("faults_absent", Grid::new(1, 20), args![&mut y, 0]);
    assert_says(&words, &["mask 0xffffffff, but the warp has 20 lanes only"]);
}

#[test]
fn launches_that_no_gpu_accepts() {
    let mut y = empty(2048, Dtype::F32);
    let grid = Grid::new(1, 1);
    let says = |words: &str, part: &str| assert_says(words, &[part]);
    says(&fault("faults_blocks", Grid::new(1, 1025), args![&mut y, 0]), "a block of (1025, 1, 1)");
    says(
        &fault("faults_blocks", Grid::over([1, 65536, 1], 1), args![&mut y, 0]),
        "a grid of (1, 65536, 1)",
    );
    says(
        &fault("faults_blocks", grid.shared(232449), args![&mut y, 0]),
        "232449 bytes of shared memory: a block has 232448",
    );
    says(
        &fault("faults_launch_bounds", Grid::new(1, 96), args![&mut y]),
        "96 threads, but the kernel takes at most 64",
    );
    says(
        &fault("faults_blocks", Grid::new(1, 257), args![&mut y, 0]),
        "257 threads, but the kernel takes at most 256",
    );
    says(&fault("faults_blocks", grid, args![&mut y]), "takes 2 arguments (y,wrong), got 1");
    says(
        &fault("faults_blocks", grid, args![&mut y, 0.5f32]),
        "argument 1 of (y,wrong) is i32, got f32",
    );
    says(&fault("faults_nothing", grid, args![&mut y]), "faults.cu has no kernel faults_nothing");
    let nothing = emu::run("nothing", Dtype::F32, "nothing", grid, args![&mut y], 0).unwrap_err();
    says(&nothing.to_string(), "no source nothing.cu was compiled for f32");
    emu::set_architecture("sm_86").unwrap();
    says(
        &fault("faults_blocks", grid.shared(101377), args![&mut y, 0]),
        "101377 bytes of shared memory: a block has 101376",
    );
    // With the 256 bytes of its array.
    says(
        &fault("faults_overwrite", Grid::new(1, 64).shared(101376), args![&mut y, 0]),
        "101632 bytes of shared memory: a block has 101376",
    );
    let unknown = emu::set_architecture("sm_87").unwrap_err().to_string();
    says(&unknown, "no architecture sm_87, only sm_80, sm_86");
    emu::set_architecture("sm_90a").unwrap();
    let args = args![&mut y, -3, 4u32, -5i64, 6u64, 0.5f32];
    assert_eq!(fault("faults_arguments", grid, args), "");
    assert_eq!(host_of(&y, 5), [-3.0, 4.0, -5.0, 6.0, 0.5]);
}

fn host_of(x: &Tensor, n: usize) -> Vec<f64> {
    host(x)[..n].to_vec()
}

#[test]
fn uninitialised_memory_is_nan() {
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
    let table = device(&Tensor::from_slice(&addresses, &[addresses.len()]));
    assert_eq!(fault("faults_table", Grid::new(1, 3), args![&table, 5, 0]), "");
    assert!(tensors.iter().all(|t| host(t)[4] == 3.0));
    let words = fault("faults_table", Grid::new(1, 3), args![&table, 5, 1]);
    assert_says(
        &words,
        &[
            "writes 4 bytes at offset 20, outside of memory whose address an argument holds (20 bytes)",
        ],
    );
    // A host address.
    addresses[..2].copy_from_slice(&halves(&raw const tensors as u64));
    let table = device(&Tensor::from_slice(&addresses, &[addresses.len()]));
    let words = fault("faults_table", Grid::new(1, 1), args![&table, 5, 0]);
    assert_says(&words, &["writes 4 bytes at address 0x", "which is outside of all device memory"]);
    assert!(host(&stranger)[0].is_nan());
}
