//! The primitives of Hopper compared with plain arithmetic, and their layouts with tables of the PTX ISA.

use super::{ORDERS, device, empty, host};
use tensor::kernel::{Arg, Grid, emu};
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor, args};

const HALVES: [Dtype; 2] = [Dtype::Bf16, Dtype::F16];

/// Where the 16-byte chunks of eight lines of 128 bytes lie with the 128-byte swizzle: a row for each line, a column for
/// each place, the chunk that is there (PTX ISA, "Swizzling modes").
const SWIZZLE: [[usize; 8]; 8] = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [1, 0, 3, 2, 5, 4, 7, 6],
    [2, 3, 0, 1, 6, 7, 4, 5],
    [3, 2, 1, 0, 7, 6, 5, 4],
    [4, 5, 6, 7, 0, 1, 2, 3],
    [5, 4, 7, 6, 1, 0, 3, 2],
    [6, 7, 4, 5, 2, 3, 0, 1],
    [7, 6, 5, 4, 3, 2, 1, 0],
];

fn normals(shape: &[usize], sample: u64, element: Dtype) -> Tensor {
    let mut x = vec![0.0; shape.iter().product()];
    Philox::new(test_support::seed(), Purpose::Test).fill_normal(sample, &mut x);
    Tensor::from_slice(&x, shape).to_dtype(element)
}

fn run(element: Dtype, kernel: &str, grid: Grid, args: &[Arg], order: u64) {
    emu::run("hopper", element, kernel, grid, args, order).unwrap();
}

/// A row-major matrix, in boxes of 64 columns and `rows` rows.
fn matrix(x: &Tensor, rows: usize) -> Arg<'_> {
    let [height, width] = *x.shape() else { panic!("a matrix") };
    Arg::tensor_map(
        x,
        [width, height, 1, 1],
        [width, width * height, width * height],
        [64, rows, 1, 1],
    )
}

#[test]
fn boxes_are_swizzled() {
    let extents = [72usize, 70, 3, 2];
    let shape: Vec<usize> = extents.iter().rev().copied().collect();
    let strides = [72, 72 * 70, 72 * 70 * 3];
    for (element, order) in HALVES.into_iter().zip(ORDERS) {
        let x = normals(&shape, 1, element);
        let (values, from) = (x.to_f64(), device(&x));
        let cases: [([usize; 4], [i32; 4]); 9] = [
            ([64, 64, 1, 1], [0, 0, 0, 0]),
            ([64, 64, 1, 1], [8, 6, 2, 1]),
            ([64, 128, 1, 1], [0, 0, 1, 1]),
            ([64, 256, 1, 1], [64, 1, 0, 0]),
            // Partly or completely outside.
            ([64, 64, 1, 1], [16, 60, 1, 0]),
            ([64, 64, 1, 1], [-5, -3, 0, 0]),
            ([64, 128, 1, 1], [0, 0, 3, 0]),
            ([64, 64, 1, 1], [72, 70, 0, -1]),
            ([64, 8, 4, 2], [3, 65, 0, 0]),
        ];
        for (boxes, at) in cases {
            let lines = boxes[1] * boxes[2] * boxes[3];
            let mut out = empty(lines * 64, element);
            let map = Arg::tensor_map(&from, extents, strides, boxes);
            let [a, b, c, d] = at;
            let args = args![map, &mut out, a, b, c, d, lines];
            run(element, "hopper_copy", Grid::new(1, 64).shared(1024 + lines * 128), args, order);
            let expected = |line: usize, e: usize| {
                let [_, rows, planes, _] = boxes;
                let inside = [e, line % rows, line / rows % planes, line / rows / planes];
                let mut index = 0;
                for i in (0..4).rev() {
                    let place = usize::try_from(at[i] + inside[i] as i32).ok();
                    let Some(place) = place.filter(|p| *p < extents[i]) else { return 0.0 };
                    index = index * extents[i] + place;
                }
                values[index]
            };
            for (i, got) in host(&out).into_iter().enumerate() {
                let (line, place, e) = (i / 64, i % 64 / 8, i % 8);
                let expected = expected(line, SWIZZLE[line % 8][place] * 8 + e);
                assert_eq!(got, expected, "{boxes:?} at {at:?}, line {line}, place {place}");
            }
        }
    }
}

/// PTX ISA, "Matrix descriptor": bits 0-13 the address, 16-29 the leading and 32-45 the stride dimension byte offset, all in
/// units of 16 bytes; 62-63 the swizzle, 1 for 128 bytes.
#[test]
fn descriptors_have_the_bits_of_the_isa() {
    for (bytes, next) in
        [(0usize, 16usize), (32, 16), (96, 16), (2048, 8192), (40960, 8192), (6144, 8192)]
    {
        let mut out = empty(3, Dtype::I32);
        let args = args![&mut out, bytes, next];
        run(Dtype::Bf16, "hopper_describe", Grid::new(1, 1).shared(65536), args, 0);
        let words = out.to_host().unwrap().read::<i32>().to_vec();
        let offset = words[2] as u64;
        assert_eq!(offset % 1024, bytes as u64 % 1024);
        let low = (offset / 16) | ((next as u64 / 16) << 16);
        assert_eq!([words[0] as u32, words[1] as u32], [low as u32, 0x4000_0040]);
    }
}

#[track_caller]
fn assert_product(
    width: usize,
    got: &[f64],
    start: &[f64],
    at: impl Fn(usize, usize, usize) -> f64,
    depth: usize,
) {
    for (i, got) in got.iter().enumerate() {
        let (row, column) = (i / width, i % width);
        let expected: f64 = start[i] + (0..depth).map(|k| at(row, column, k)).sum::<f64>();
        let off = (got - expected).abs();
        assert!(off < 1e-5 * depth as f64, "({row}, {column}): {got} for {expected}");
    }
}

#[test]
fn products_of_every_layout() {
    for element in HALVES {
        for (kernel, n, lhs_lines, rhs_lines) in [
            ("hopper_multiply_nn", 256, true, false),
            ("hopper_multiply_nt", 256, true, true),
            ("hopper_multiply_tn", 256, false, false),
            ("hopper_multiply_tt", 256, false, true),
            ("hopper_multiply_128_nn", 128, true, false),
            ("hopper_multiply_64_nt", 64, true, true),
            ("hopper_multiply_zero_nt", 128, true, true),
            ("hopper_multiply_registers_128_nn", 128, true, false),
            ("hopper_multiply_registers_64_nt", 64, true, true),
        ] {
            let a = normals(&[64, 64], 2, element);
            let b = normals(if rhs_lines { &[256, 64] } else { &[64, 256] }, 3, element);
            let start = normals(&[64 * n], 4, Dtype::F32);
            let (x, y) = (device(&a), device(&b));
            let (a, b) = (a.to_f64(), b.to_f64());
            let at = |row: usize, column: usize, k: usize| {
                let a = if lhs_lines { a[row * 64 + k] } else { a[k * 64 + row] };
                a * if rhs_lines { b[column * 64 + k] } else { b[k * 256 + column] }
            };
            let before = if kernel.contains("zero") { vec![0.0; 64 * n] } else { start.to_f64() };
            for order in ORDERS {
                let mut out = device(&start);
                let (lhs, rhs) = (matrix(&x, 64), matrix(&y, if rhs_lines { n } else { 64 }));
                let grid = Grid::new(1, 128).shared(1024 + 5 * 8192);
                run(element, kernel, grid, args![lhs, rhs, &mut out], order);
                assert_product(n, &host(&out), &before, at, 64);
            }
        }
    }
}

/// The second of two warps lets the first one begin; without order, accesses of `digits` would be races.
#[test]
fn numbered_barriers_take_turns() {
    for order in ORDERS {
        let mut out = empty(64, Dtype::I32);
        run(Dtype::Bf16, "hopper_turns", Grid::new(1, 64), args![&mut out, 3], order);
        assert!(out.to_host().unwrap().read::<i32>().iter().all(|digits| *digits == 121_212));
    }
}

#[test]
fn products_through_a_ring() {
    let (tiles, element) = (7, Dtype::Bf16);
    let depth = 64 * tiles;
    let (a, b) = (normals(&[64, depth], 5, element), normals(&[depth, 256], 6, element));
    let (x, y) = (device(&a), device(&b));
    let (a, b) = (a.to_f64(), b.to_f64());
    for order in ORDERS {
        let mut out = empty(64 * 256, Dtype::F32);
        let args = args![matrix(&x, 64), matrix(&y, 64), &mut out, tiles];
        run(element, "hopper_ring", Grid::new(1, 256).shared(1024 + 10 * 8192), args, order);
        let at = |row: usize, column: usize, k: usize| a[row * depth + k] * b[k * 256 + column];
        assert_product(256, &host(&out), &[0.0; 64 * 256], at, depth);
    }
}

#[test]
fn boxes_through_a_ring() {
    let boxes = 7;
    let x = normals(&[64 * boxes, 64], 7, Dtype::F16);
    let from = device(&x);
    for order in ORDERS {
        let mut out = empty(boxes * 64 * 64, Dtype::F16);
        let args = args![matrix(&from, 64), &mut out, boxes];
        run(Dtype::F16, "hopper_stream", Grid::new(1, 96).shared(1024 + 2 * 8192), args, order);
        for (i, (got, line)) in host(&out).chunks(64).zip(x.to_f64().chunks(64)).enumerate() {
            let expected: Vec<f64> =
                SWIZZLE[i % 8].iter().flat_map(|c| line[c * 8..c * 8 + 8].to_vec()).collect();
            assert_eq!(got, expected, "line {i}");
        }
    }
}
