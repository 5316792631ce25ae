//! Preconditioning, noise levels and samplers against `tests/golden/edm.py` of the root, and the order of the solvers.

use learn::forward::Forward;
use learn::params::{Builder, Init, ParamSet};
use serde_json::Value;
use tasks::diffusion::{Churn, Preconditioning, Sampler, Schedule, Solver, refine};
use tensor::{Dtype, Tape, Tensor, Var, constant};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/edm.json");

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Parameters in f64, so that samplers compute in f64.
fn double() -> ParamSet {
    let mut builder = Builder::new(0);
    builder.param("unused", &[1], Init::Constant(0.0));
    ParamSet::from(builder.finish().trained.to_dtype(Dtype::F64))
}

/// Computed in f64 on both sides: only the order of a few operations differs.
fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-11 * (1.0 + b.abs()), "{what}: {a}, not {b}");
    }
}

/// E[y | x] for y from a mixture of two Gaussians and x = y + σ·n.
fn mixture(golden: &Value) -> impl Fn(&Var, f64) -> unix::Result<Var> {
    let (means, deviation) = (numbers(&golden["means"]), golden["deviation"].as_f64().unwrap());
    move |x: &Var, sigma: f64| {
        let variance = deviation.powi(2) + sigma.powi(2);
        let of = |x: f64| {
            let logs: Vec<f64> =
                means.iter().map(|m| -(x - m).powi(2) / (2.0 * variance)).collect();
            let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = logs.iter().map(|log| (log - largest).exp()).collect();
            let posterior = means.iter().map(|m| m + deviation.powi(2) / variance * (x - m));
            let sum: f64 = weights.iter().zip(posterior).map(|(w, p)| w * p).sum();
            sum / weights.iter().sum::<f64>()
        };
        let values: Vec<f64> = x.value().to_f64().into_iter().map(of).collect();
        Ok(constant(Tensor::from_slice(&values, x.shape())))
    }
}

/// Column `i` of the noise: one number for each sample.
fn noise(golden: &Value) -> impl Fn(usize) -> unix::Result<Var> {
    let rows: Vec<Vec<f64>> = golden["noise"].as_array().unwrap().iter().map(numbers).collect();
    move |i| {
        let column: Vec<f64> = rows.iter().map(|row| row[i]).collect();
        Ok(constant(Tensor::from_slice(&column, &[column.len(), 1])))
    }
}

#[test]
fn preconditioning_and_noise_levels_are_those_of_the_papers() {
    let golden = golden();
    for case in golden["preconditioning"].as_array().unwrap() {
        let number = |key: &str| case[key].as_f64();
        let (sigma, sigma_data) = (number("sigma").unwrap(), number("data").unwrap());
        let own = match number("min") {
            None => Preconditioning::Edm { sigma_data },
            Some(sigma_min) => Preconditioning::Consistency { sigma_data, sigma_min },
        };
        let c = own.at(sigma);
        let found = [c.skip, c.output, c.input, c.noise];
        assert_close(&found, &numbers(&case["values"]), &format!("{own:?} at {sigma}"));
    }
    for case in golden["schedules"].as_array().unwrap() {
        let [sigma_min, sigma_max, rho] =
            ["min", "max", "rho"].map(|key| case[key].as_f64().unwrap());
        let schedule = Schedule { sigma_min, sigma_max, rho };
        let n = case["n"].as_u64().unwrap() as usize;
        assert_close(&schedule.sigmas(n), &numbers(&case["levels"]), &format!("{schedule:?}"));
    }
}

#[test]
fn samples_are_those_of_the_papers() {
    let golden = golden();
    let (tape, params) = (Tape::without_gradients(), double());
    let forward = Forward::evaluation(&tape, &params);
    for case in golden["samples"].as_array().unwrap() {
        let [amount, sigma_min, sigma_max, scale] = numbers(&case["churn"])[..] else { panic!() };
        let solver = if case["heun"] == true { Solver::Heun } else { Solver::Euler };
        let sampler = Sampler {
            steps: case["n"].as_u64().unwrap() as usize,
            solver,
            churn: Churn { amount, sigma_min, sigma_max, scale },
            schedule: Schedule { sigma_min: 0.05, sigma_max: 5.0, rho: 7.0 },
        };
        let mut evaluations = 0;
        let exact = mixture(&golden);
        let denoise = |x: &Var, sigma: f64| {
            evaluations += 1;
            exact(x, sigma)
        };
        let found = sampler.sample(&forward, noise(&golden), denoise).unwrap();
        assert_close(&found.value().to_f64(), &numbers(&case["results"]), &format!("{sampler:?}"));
        assert_eq!(evaluations, sampler.evaluations(), "{sampler:?}");
    }
    for case in golden["refined"].as_array().unwrap() {
        let sigmas = numbers(&case["sigmas"]);
        let zero = constant(Tensor::full(&[9, 1], 0.0, Dtype::F64));
        let found = refine(&forward, &sigmas, zero, noise(&golden), mixture(&golden)).unwrap();
        assert_close(&found.value().to_f64(), &numbers(&case["results"]), &format!("{sigmas:?}"));
    }
}

/// For data from N(0, σ_d²) the ODE has the solution x(σ) = x₀·√((σ² + σ_d²)/(σ₀² + σ_d²)). Between σ_max and σ_min,
/// where the solvers' order shows, halving the steps divides the error by 2 and by 4.
#[test]
fn euler_is_of_first_and_heun_of_second_order() {
    let (tape, params) = (Tape::without_gradients(), double());
    let forward = Forward::evaluation(&tape, &params);
    let error = |solver: Solver, steps: usize| {
        let schedule = Schedule { sigma_min: 1e-5, sigma_max: 5.0, rho: 7.0 };
        let sampler = Sampler { steps, solver, churn: Churn::default(), schedule };
        let start = |_: usize| Ok(constant(Tensor::full(&[1, 1], 1.0, Dtype::F64)));
        let denoise = |x: &Var, sigma: f64| {
            tasks::diffusion::combine(&forward, &[(0.25 / (0.25 + sigma * sigma), x)])
        };
        let found = sampler.sample(&forward, start, denoise).unwrap().value().item();
        (found - 5.0 * (0.25 / 25.25_f64).sqrt()).abs()
    };
    for (solver, order) in [(Solver::Euler, 1.0), (Solver::Heun, 2.0)] {
        let rate = (error(solver, 64) / error(solver, 128)).log2();
        assert!((rate - order).abs() < 0.1, "{solver:?}: order {rate}");
    }
}
