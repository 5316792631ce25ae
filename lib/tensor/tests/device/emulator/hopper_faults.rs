//! Kernels that violate a rule of Hopper's primitives, and the error that the emulator reports for each.

use super::{ORDERS, device, empty, host};
use crate::emulator::faults::assert_says;
use tensor::kernel::{Arg, Grid, emu};
use tensor::{Dtype, Tensor, args};

fn run(kernel: &str, grid: Grid, args: &[Arg], order: u64) -> String {
    emu::run("hopper_faults", Dtype::Bf16, kernel, grid, args, order)
        .map_or_else(|e| e.to_string(), |()| String::new())
}

fn ones(n: usize) -> Tensor {
    device(&Tensor::from_slice(&vec![1.0f32; n], &[n]).to_dtype(Dtype::Bf16))
}

/// A matrix of `rows` rows of 64 elements, in one box.
fn map(x: &Tensor, rows: usize) -> Arg<'_> {
    Arg::tensor_map(x, [64, rows, 1, 1], [64, 64 * rows, 64 * rows], [64, rows, 1, 1])
}

#[test]
fn barriers_misused() {
    let mut y = empty(64, Dtype::F32);
    for (wrong, part) in [
        (
            1,
            "a barrier at offset 0 of shared array 'barriers' (16 bytes), which was not initialized",
        ),
        (2, "a barrier for 0 arrivals: at least 1"),
        (3, "initializes the barrier at offset 0 of shared array 'barriers' (16 bytes) again"),
        (4, "initialized but not published (publish_barriers is missing)"),
        (5, "a barrier that "),
        (6, " barrier"),
        (
            7,
            "bytes at offset 4 of shared array 'barriers' (16 bytes): the address is not a multiple of 8",
        ),
        (8, "a barrier outside of shared memory"),
        (9, "reads 8 bytes at offset 0 of shared array 'barriers' (16 bytes), where a barrier is"),
        (10, "has all 2 arrivals of phase 0 and lacks only copies of "),
        (11, "arrives at a barrier in phase 1, but this thread has not waited for phase 0"),
        (
            12,
            "wait at a barrier (offset 0 of 'barriers') for phase 0, which lacks 1 arrivals and 0 bytes",
        ),
        (13, "for phase 0, which lacks 0 arrivals and 128 bytes"),
        (14, "a phase of a barrier that expects 1048576 bytes: at most 1048575"),
    ] {
        for order in ORDERS {
            let mut run = |wrong: i32| {
                run("hopper_faults_barrier", Grid::new(1, 64), args![&mut y, wrong], order)
            };
            assert_eq!(run(0), "");
            assert_says(&run(wrong), &[part, "hopper_faults.cu (bf16), kernel"]);
        }
    }
    // With one warp, the first thread publishes before the others wait.
    let words = run("hopper_faults_barrier", Grid::new(1, 32), args![&mut y, 5], 1);
    assert_says(&words, &["a barrier that thread 0 has published without a barrier between"]);
    for order in ORDERS {
        let grid = Grid::new(1, 64);
        assert_eq!(run("hopper_faults_overtake", grid, args![0], order), "");
        assert_says(&run("hopper_faults_overtake", grid, args![1], order), &["wait", "for phase "]);
    }
    let words = run("hopper_faults_overtake", Grid::new(1, 64), args![1], 1);
    assert_says(&words, &["waits for phase 0 of a barrier of which phase 1 is complete"]);
}

#[test]
fn barriers_that_do_not_order() {
    let mut y = empty(32, Dtype::F32);
    for wrong in 1..=7 {
        for order in ORDERS {
            let mut run = |wrong: i32| {
                run("hopper_faults_order", Grid::new(1, 64), args![&mut y, wrong], order)
            };
            assert_eq!(run(0), "");
            assert_says(&run(wrong), &["race: ", " 4 bytes at offset", "shared array 'values'"]);
        }
    }
}

#[test]
fn numbered_barriers_misused() {
    let mut y = empty(32, Dtype::F32);
    for (wrong, part) in [
        (1, "wait at a numbered barrier"),
        (2, "wait at barrier 5, which lacks 32 of 64 threads"),
        (3, "barrier 0: 1 to 15"),
        (4, "barrier 16: 1 to 15"),
        (5, "barrier 5 for 48 threads: a multiple of 32, at most the 64 of the block"),
        (6, "barrier 5 for 96 threads: a multiple of 32, at most the 64 of the block"),
        (7, "race: "),
        (8, "race: "),
        (9, ""),
    ] {
        for order in ORDERS {
            let mut run = |wrong: i32| {
                run("hopper_faults_numbered", Grid::new(1, 64), args![&mut y, wrong], order)
            };
            assert_eq!(run(0), "");
            let words = run(wrong);
            assert!(!words.is_empty(), "{wrong}");
            assert_says(&words, &[part]);
        }
    }
}

#[test]
fn boxes_misused() {
    const FLIGHT: &str =
        "where a box is copied for phase 0 of a barrier, which this thread has not waited for";
    let (x, mut y) = (ones(64 * 64), empty(64 * 64, Dtype::Bf16));
    for (wrong, part) in [
        (1, "bytes at offset"),
        (2, "which this launch has written: copies do not see that"),
        (3, "copies of 8192 bytes in phase 0 of a barrier, which expects 4096"),
        (4, "copies of 8192 bytes in phase 0 of a barrier, which expects 4096"),
        (5, "for phase 0, which lacks 0 arrivals and 8192 bytes"),
        (6, "which is not a multiple of 1024"),
        (7, "a box is copied to memory outside of shared memory"),
        (8, "this thread has not waited for"),
        (9, "the source of a box changed before its copy was waited for"),
        (10, FLIGHT),
        (11, "this thread has not waited for"),
        (12, "the block ends while a box is copied for a phase that no thread has waited for"),
        // The order decides whether a read or the copy is reported first.
        (13, " of shared array 'dynamic' (9344 bytes), wh"),
        (14, "the block ends while a box is copied for a phase that no thread has waited for"),
        (15, " of shared array 'dynamic' (9344 bytes), wh"),
    ] {
        for order in ORDERS {
            let mut run = |wrong: i32| {
                let args = args![map(&x, 64), &x, &mut y, wrong];
                run("hopper_faults_copy", Grid::new(1, 64).shared(1024 + 8192 + 128), args, order)
            };
            assert_eq!(run(0), "");
            assert_says(&run(wrong), &[part]);
        }
    }
}

#[test]
fn tensor_maps_that_no_gpu_accepts() {
    let (x, mut y) = (ones(64 * 64), empty(64 * 64, Dtype::Bf16));
    let grid = Grid::new(1, 64).shared(1024 + 65 * 128);
    let strides = [64, 4096, 4096];
    for (extents, strides, boxes, part) in [
        (
            [64, 64, 1, 1],
            [60, 4096, 4096],
            [64, 64, 1, 1],
            "a stride of 120 bytes: a multiple of 16",
        ),
        ([64, 64, 1, 1], strides, [32, 64, 1, 1], "boxes of lines of 64 bytes, not 128"),
        ([64, 64, 0, 1], strides, [64, 64, 1, 1], "dimension 2 has 0 elements"),
        ([64, 64, 1, 1], strides, [64, 257, 1, 1], "dimension 1 has 64 elements, 257 in a box"),
        ([64, 65, 1, 1], strides, [64, 65, 1, 1], "outside of argument 0 'map' (8192 bytes)"),
    ] {
        let map = Arg::tensor_map(&x, extents, strides, boxes);
        let words = run("hopper_faults_copy", grid, args![map, &x, &mut y, 0], 0);
        assert_says(&words, &[part]);
    }
    let words = run("hopper_faults_copy", grid, args![&x, &x, &mut y, 0], 0);
    assert_says(&words, &["argument 0 of (map,x,y,wrong) is a tensor map, got a pointer"]);
}

#[test]
fn products_misused() {
    const READS: &str =
        "which a product may still read (wait_products and an arrival at a barrier are missing)";
    let (a, b, mut y) = (ones(64 * 64), ones(256 * 64), empty(128, Dtype::F32));
    let grid = |threads| Grid::new(1, threads).shared(1024 + 6 * 8192);
    for (wrong, part) in [
        (1, "were not copied by copy_box: products do not see ordinary writes"),
        (2, "where an asynchronous copy is in flight"),
        (3, "a product reads 16 bytes at offset"),
        (4, "where a box is copied for a phase of a barrier that this thread has not waited for"),
        (5, "the sums of a product are not local to the thread"),
        (6, "a product adds to sums that this thread has used since the last fence_products"),
        (7, "which nothing was copied to"),
        (8, "threads of a warpgroup give a product different operands"),
        (9, "of swizzle mode 0: only 1, of 128 bytes"),
        (10, "with a base offset"),
        (11, "divergent wgmma: this thread is at hopper.cuh:"),
        (12, "wait at wgmma"),
        (13, "the sums of a product have been written before wait_products"),
        (15, READS),
        (16, READS),
        (
            17,
            "exits before its products are complete (commit_products and wait_products are missing)",
        ),
        (18, "lanes of a warp wait for different products"),
        (
            19,
            "exits before its products are complete (commit_products and wait_products are missing)",
        ),
        (20, READS),
        (21, "a product adds to sums that this thread has used since the last fence_products"),
        (22, "whose left operand is in registers without fence_products since"),
    ] {
        for order in ORDERS {
            let mut run = |wrong: i32| {
                let args = args![map(&a, 64), map(&b, 256), &mut y, wrong];
                run("hopper_faults_product", grid(128), args, order)
            };
            assert_eq!(run(0), "");
            assert_says(&run(wrong), &[part]);
        }
    }
    assert!(host(&y).iter().all(|y| *y == 16.0 || y.is_nan()));
    let mut run = |threads, wrong: i32| {
        let args = args![map(&a, 64), map(&b, 256), &mut y, wrong];
        run("hopper_faults_product", grid(threads), args, 0)
    };
    assert_says(&run(96, 0), &["wgmma in a warpgroup of 96 threads only"]);
    // Sums that are not waited for are NaN.
    assert_eq!(run(128, 14), "");
    assert!(host(&y).iter().all(|y| y.is_nan()));
}

#[test]
fn registers_that_do_not_suffice() {
    for (wrong, part) in [
        (2, "wait at setmaxnreg"),
        (3, "setmaxnreg of 28 registers: a multiple of 8 from 24 to 256"),
        (4, "threads of a warpgroup ask for different numbers of registers"),
        (6, "setmaxnreg of 264 registers"),
    ] {
        for order in ORDERS {
            let run =
                |wrong: i32| run("hopper_faults_registers", Grid::new(1, 256), args![wrong], order);
            assert_eq!(run(0), "");
            assert_says(&run(wrong), &[part]);
        }
    }
    for order in ORDERS {
        let run = |wrong: i32| {
            run("hopper_faults_more_registers", Grid::new(1, 384), args![wrong], order)
        };
        assert_eq!(run(0), "");
        let words =
            "asked for 82944 registers in all, but the block has 64512: it may wait forever";
        assert_says(&run(1), &[words]);
    }
}

#[test]
fn architectures_without_the_primitives() {
    let mut y = empty(64, Dtype::F32);
    for name in ["sm_80", "sm_100"] {
        emu::set_architecture(name).unwrap();
        let words = run("hopper_faults_barrier", Grid::new(1, 64), args![&mut y, 0], 0);
        assert_says(&words, &["a barrier needs sm_90a"]);
        let words = run("hopper_faults_registers", Grid::new(1, 256), args![0], 0);
        assert_says(&words, &["setmaxnreg needs sm_90a"]);
    }
    emu::set_architecture("sm_90a").unwrap();
    assert_eq!(run("hopper_faults_barrier", Grid::new(1, 64), args![&mut y, 0], 0), "");
}
