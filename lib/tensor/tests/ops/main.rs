//! Every case of every op: the gradient, f32 compared with f64, accumulation of gradients, and the same bits on any
//! number of threads.

mod attention;
mod golden;
mod tape;

use tensor::check::{device_error, difference, draw, gradient_error, inputs, run};
use tensor::op::{Case, Draw};
use tensor::ops::ALL;
use tensor::{Device, Dtype, Tensor};
use test_support::seed;

fn each_case(check: impl Fn(&str, &Case)) {
    for (name, cases) in ALL {
        let cases = cases();
        assert!(!cases.is_empty(), "{name} has no cases");
        for case in &cases {
            let shapes: Vec<_> = case.inputs.iter().map(|(s, _)| s).collect();
            assert_eq!(case.op.name(), *name);
            check(&format!("{name} {shapes:?}"), case);
        }
    }
}

/// Total number of input elements; gradient checks evaluate a case up to thirteen times in f64.
fn size(case: &Case) -> usize {
    case.inputs.iter().map(|(s, _)| s.iter().product::<usize>()).sum::<usize>()
        + case.operations / 64
}

/// The largest error over several seeds, or for one seed if the case is large.
fn most(case: &Case, seed: u64, error: impl Fn(u64) -> f64) -> f64 {
    let seeds = if size(case) < 10_000 { 4 } else { 1 };
    (0..seeds).map(|i| error(seed.wrapping_add(i))).fold(0.0, f64::max)
}

#[test]
fn gradients_agree_with_finite_differences() {
    let seed = seed();
    each_case(|what, case| {
        if size(case) > 2_000_000 {
            return;
        }
        // Fourth-order differences with h = 3e-4 have a truncation error of about h⁴ and a rounding error of ε/h, both
        // negligible; a wrong term causes 1e-3 or more.
        let error = most(case, seed, |seed| gradient_error(case, seed));
        assert!(error < 1e-6, "{what}: {error:e} (seed {seed})");
    });
}

#[test]
fn f32_agrees_with_f64() {
    let seed = seed();
    each_case(|what, case| {
        if size(case) > 2_000_000 || !case.op.dtypes().contains(&Dtype::F32) {
            return;
        }
        let error = |seed| device_error(case, Dtype::F32, Device::Cpu, seed).unwrap();
        let error = most(case, seed, error);
        assert!(error < 1.0, "{what}: {error:.2} tolerances (seed {seed})");
    });
}

#[test]
fn gradients_are_added_to_what_is_there() {
    let seed = seed();
    each_case(|what, case| {
        if size(case) > 500_000 {
            return;
        }
        let x = inputs(case, seed);
        let shapes: Vec<&[usize]> = x.iter().map(Tensor::shape).collect();
        let dy = draw(&case.op.shape(&shapes).unwrap(), &Draw::Normal, seed, 99);
        let (_, fresh) = run(case, &x, &dy, None);
        let before: Vec<Tensor> =
            (100..).zip(&x).map(|(i, x)| draw(x.shape(), &Draw::Normal, seed, i)).collect();
        let (_, sums) = run(case, &x, &dy, Some(&before));
        for ((fresh, sum), before) in fresh.iter().zip(&sums).zip(&before) {
            let (Some(fresh), Some(sum)) = (fresh, sum) else { continue };
            let expected: Vec<f64> =
                fresh.to_f64().iter().zip(before.to_f64()).map(|(a, b)| a + b).collect();
            let error = difference(sum, &Tensor::from_slice(&expected, sum.shape()));
            assert!(error < 1e-12, "{what}: {error:e} (seed {seed})");
        }
    });
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let seed = seed();
    let bits = |t: &Tensor| t.read::<f32>().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    each_case(|what, case| {
        let x = case.inputs_in(&inputs(case, seed), Dtype::F32);
        let shapes: Vec<&[usize]> = x.iter().map(Tensor::shape).collect();
        let shape = case.op.shape(&shapes).unwrap();
        let dy = draw(&shape, &Draw::Normal, seed, 99).to_dtype(Dtype::F32);
        let results = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (out, grads) = pool.install(|| run(case, &x, &dy, None));
            (bits(&out), grads.iter().flatten().map(bits).collect::<Vec<_>>())
        });
        assert!(results[0] == results[1] && results[0] == results[2], "{what} (seed {seed})");
    });
}
