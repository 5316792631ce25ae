//! Ops with matrix products whose operands are rounded to bf16: what they compute, and the same bits on any number of threads.
//! Rounding holds for the whole process, so no test without it is in this program.

use tensor::check::{difference, draw, forward, inputs, run, tolerance};
use tensor::op::{Case, Draw, Op};
use tensor::ops::ALL;
use tensor::ops::activation::Activation;
use tensor::ops::frozen_linear::{FrozenLinear, Storage};
use tensor::ops::linear::Linear;
use tensor::product::bf16::Rounding;
use tensor::{Dtype, Tensor};
use test_support::seed;

/// The ops whose products round their operands, forward and backward.
const OPS: [&str; 8] = [
    "attention",
    "conv",
    "conv_transpose",
    "frozen_linear",
    "linear",
    "linear_cross_entropy",
    "low_rank",
    "matmul",
];

#[test]
fn every_op_with_products_rounds_their_operands() {
    let seed = seed();
    let _rounding = Rounding::begin();
    let bits = |t: &Tensor| t.read::<f32>().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (name, cases) in ALL {
        let (mut most, mut far) = (0.0_f64, Vec::new());
        for case in cases() {
            let elements: usize =
                case.inputs.iter().map(|(s, _)| s.iter().product::<usize>()).sum();
            if elements + case.operations / 64 > 2_000_000
                || !case.op.dtypes().contains(&Dtype::F32)
            {
                continue;
            }
            let x = case.inputs_in(&inputs(&case, seed), Dtype::F32);
            let shapes: Vec<&[usize]> = x.iter().map(Tensor::shape).collect();
            let dy = draw(&case.op.shape(&shapes).unwrap(), &Draw::Normal, seed, 99);
            let single = dy.to_dtype(Dtype::F32);
            let [result, two, four] = [1, 2, 4].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let (out, grads) = pool.install(|| run(&case, &x, &single, None));
                [vec![out], grads.into_iter().flatten().collect()].concat()
            });
            let of = |result: &[Tensor]| result.iter().map(bits).collect::<Vec<_>>();
            assert!(
                of(&result) == of(&two) && of(&result) == of(&four),
                "{name} {shapes:?} (seed {seed})"
            );
            let (out, grads) =
                run(&case, &case.inputs_in(&x, Dtype::F64), &single.to_dtype(Dtype::F64), None);
            let expected: Vec<Tensor> = [vec![out], grads.into_iter().flatten().collect()].concat();
            let error = |(found, expected)| {
                let error = difference(found, expected);
                if error.is_nan() { f64::INFINITY } else { error }
            };
            let error = result.iter().zip(&expected).map(error).fold(0.0, f64::max);
            most = most.max(error);
            // Twice what one rounding of every input is allowed: products of products, and exp in attention, round again.
            if error > 2.0 * tolerance(Dtype::Bf16, 1) {
                far.push(format!("{shapes:?}: {error:e}"));
            }
        }
        // The slope of an activation with a kink may be another one where its input is almost zero.
        assert!(far.len() <= 1, "{name}: {far:?} (seed {seed})");
        // What is not rounded differs by less than 1e-3.
        assert_eq!(most > 1e-3, OPS.contains(name), "{name}: {most:e}");
        println!("{name}: {most:.1e}");
    }
}

/// A W that is stored in bf16 gives the bits of the f32 numbers that are rounded to it, for single steps of few and of many
/// sequences and for any number of rows.
#[test]
fn a_matrix_in_bf16_gives_the_bits_of_one_that_is_rounded() {
    let seed = seed();
    let _rounding = Rounding::begin();
    let output = |op: Box<dyn Op>, inputs: &[&Tensor]| {
        let shapes: Vec<&[usize]> = inputs.iter().map(|tensor| tensor.shape()).collect();
        let mut case = Case::new(Linear { bias: false, activation: Activation::Identity }, &shapes);
        case.op = op;
        let inputs: Vec<Tensor> = inputs.iter().map(|tensor| (*tensor).clone()).collect();
        forward(&case, &inputs).0
    };
    let rows: [&[usize]; 7] = [&[1, 1], &[5, 1], &[8, 1], &[9, 1], &[1, 3], &[2, 40], &[3, 200]];
    for (rows, [n, k]) in rows.iter().flat_map(|rows| [(*rows, [70, 33]), (*rows, [520, 640])]) {
        for (bias, activation) in [(false, Activation::Identity), (true, Activation::Silu)] {
            let random = |shape: &[usize], input| {
                draw(shape, &Draw::Normal, seed, input).to_dtype(Dtype::F32)
            };
            let (x, w, b) =
                (random(&[rows, &[k]].concat(), 1), random(&[n, k], 2), random(&[n], 3));
            let stored = w.to_dtype(Dtype::Bf16);
            let bias_of = bias.then_some(&b);
            let all = |w| [&x, w].into_iter().chain(bias_of).collect::<Vec<_>>();
            let weight = Storage::Dense(Dtype::Bf16);
            let frozen = FrozenLinear { weight, bias, activation, merged: None };
            let found = output(Box::new(frozen), &all(&stored));
            let expected = output(Box::new(Linear { bias, activation }), &all(&w));
            assert_eq!(found.read::<f32>(), expected.read::<f32>(), "{rows:?} {n} {k} {bias}");
        }
    }
}
