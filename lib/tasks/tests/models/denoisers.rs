//! Denoisers and critics: the parameter counts of the published correctors, gradients, and why the published distillation
//! is not ours.

use super::*;
use tasks::diffusion::{Preconditioning, combine};
use tasks::pde::models::critic::log_rms;
use tasks::pde::models::denoiser::{Conditioning, Denoiser};
use tasks::pde::models::{Critic, NetworkModel};

fn mlp(hidden: usize) -> BackboneConfig {
    BackboneConfig::Mlp(Mlp { hidden, depth: 2 })
}

/// The parameter counts of the published correctors, which see one state and one number.
#[test]
fn the_published_correctors_have_their_parameter_counts() {
    for (hidden, dim, count) in [(96, 16, 12_592), (64, 32, 8_416)] {
        let mut b = Builder::new(1);
        let (grid, padding) = ([1, 1, 32], Padding::Periodic);
        let shape = NetworkShape { input: dim, output: dim, grid, padding, condition: 1 };
        Network::new(&mut b, &mlp(hidden), (ConditionPath::Concatenated, 1), &shape);
        assert_eq!(b.finish().count(), count);
    }
}

/// Through c_skip, c_in, c_noise and c_out of a consistency model, in every kind of condition.
#[test]
fn gradients_of_denoisers_are_right_and_reach_every_parameter() {
    use ConditionPath::{Adaptive, Additive, Concatenated};
    let backbones = [mlp(7), stack(3, Attention::None).backbone];
    for (backbone, condition) in
        [(0, Adaptive), (0, Additive), (0, Concatenated), (1, Adaptive), (1, Concatenated)]
    {
        let backbone = backbones[backbone].clone();
        let model = NetworkModel { backbone, condition, condition_width: 5 };
        let mut b = Builder::new(1);
        let denoiser = Denoiser::new(&mut b, &model, 3, [1, 9], Padding::Periodic, 2);
        let [x, next, z, target] =
            [1, 2, 3, 4].map(|seed| draw(&[2, 9, 3], &Draw::Normal, seed, 0));
        let features = draw(&[2, 2], &Draw::Normal, 5, 0);
        let c = Preconditioning::Consistency { sigma_data: 1.0, sigma_min: 0.05 }.at(0.7);
        check(&format!("{condition:?}"), &b.finish(), |forward| {
            let [x, next, z] = [&x, &next, &z].map(|t| constant(t.clone()));
            let features = constant(features.clone());
            let given = Conditioning { states: [&next, &z], features: &features };
            distance(forward, &denoiser.denoise(forward, &x, &given, &c).unwrap(), &target)
        });
    }
}

/// The loss of task `critic`, for predicted errors that differ by sample.
#[test]
fn gradients_of_critics_are_right_and_reach_every_parameter() {
    for backbone in [mlp(7), stack(3, Attention::None).backbone] {
        let condition = ConditionPath::Adaptive;
        let model = NetworkModel { backbone, condition, condition_width: 5 };
        let mut b = Builder::new(1);
        let critic = Critic::new(&mut b, &model, 3, [1, 9], Padding::Periodic, 2);
        let [z, candidate, next] = [1, 2, 3].map(|seed| draw(&[2, 9, 3], &Draw::Normal, seed, 0));
        let features = draw(&[2, 2], &Draw::Normal, 5, 0);
        let scale = Tensor::from_slice(&[0.1, 2.0], &[2, 1, 1]);
        check("critic", &b.finish(), |forward| {
            let [z, candidate, next] = [&z, &candidate, &next].map(|t| constant(t.clone()));
            let features = constant(features.clone());
            let scale = constant(scale.clone());
            let told = [&features, &scale];
            let found = critic.forward(forward, [&z, &candidate], told).unwrap();
            let error = combine(forward, &[(1.0, &candidate), (-1.0, &next)]).unwrap();
            let truth = log_rms(forward, &error).unwrap();
            // ln RMS of 27 numbers, computed from its definition.
            let squares = error.value().to_f64()[27..].iter().map(|x| x * x).sum::<f64>();
            let expected = 0.5 * (squares / 27.0 + 1e-12).ln();
            assert!((truth.value().to_f64()[1] - expected).abs() < 1e-12);
            distance(forward, &found.reshape(&[2, 1]), &truth.value().reshape(&[2, 1]))
        });
    }
}

/// The published distillation compares the operator's prediction plus the student's correction with that prediction
/// alone, so its loss is the mean square of the correction, and the best student corrects nothing. tests/corrector.rs of
/// the root shows that students of task `distill` keep the spread of their teacher.
#[test]
fn the_published_distillation_makes_corrections_vanish() {
    let model = NetworkModel {
        backbone: mlp(7),
        condition: ConditionPath::Concatenated,
        condition_width: 5,
    };
    let mut b = Builder::new(1);
    let student = Denoiser::new(&mut b, &model, 3, [1, 9], Padding::Periodic, 2);
    let mut params = shaken(&b.finish(), 3);
    let [x, next, z] = [1, 2, 3].map(|seed| draw(&[16, 9, 3], &Draw::Normal, seed, 0));
    let features = draw(&[16, 2], &Draw::Normal, 5, 0);
    let nothing = Tensor::full(&[16, 9, 3], 0.0, Dtype::F64);
    let mut losses = Vec::new();
    for _ in 0..600 {
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params);
        let [x, next, z] = [&x, &next, &z].map(|t| constant(t.clone()));
        let features = constant(features.clone());
        let given = Conditioning { states: [&next, &z], features: &features };
        let [input, noise] = [0.5, 0.1].map(|c| constant(Tensor::full(&[16, 1], c, Dtype::F64)));
        let drift = student.network(&forward, &x, &given, [&input, &noise]).unwrap();
        let loss = distance(&forward, &drift, &nothing);
        losses.push(loss.value().item());
        let variables = forward.variables().to_vec();
        drop(forward);
        let mut gradients = tape.backward(&loss).unwrap();
        for (p, v) in params.trained.tensors_mut().zip(&variables) {
            let Some(g) = gradients.take(v) else { continue };
            let moved =
                p.to_f64().iter().zip(g.to_f64()).map(|(p, g)| p - 3e-3 * g).collect::<Vec<_>>();
            *p = Tensor::from_slice(&moved, p.shape());
        }
    }
    assert!(losses[599] < 0.02 * losses[0], "{} {}", losses[0], losses[599]);
}
