use super::optimizer::{Method, Optimizer};
use crate::params::Params;
use tensor::updates::decision::DeviceStepControl;
use tensor::updates::{Parameter, adafactor, adamw, lamb, lion, muon, sgd};
use tensor::{Dtype, Tensor};
use unix::text::matches;
use unix::{Error, Result};

/// Optimizer state of each parameter, with its learning-rate factor and weight decay.
pub struct OptimizerState {
    moments: Vec<Vec<Tensor>>,
    factors: Vec<(f64, f64)>,
}

/// Combines a parameter with the tensors that its update rule needs.
fn parameter<'a, const N: usize>(
    (((value, gradient), moments), (rate, weight_decay)): ParamUpdate<'a>,
) -> Parameter<'a, N> {
    let Ok(moments) = <&mut [Tensor; N]>::try_from(moments.as_mut_slice()) else {
        unreachable!("the state was made for this method")
    };
    let (rate, weight_decay) = (*rate, *weight_decay);
    Parameter { rate, weight_decay, gradient, value, moments: moments.each_mut() }
}

/// Value, gradient, state, and learning-rate factor with weight decay of one parameter.
type ParamUpdate<'a> = (((&'a mut Tensor, &'a Tensor), &'a mut Vec<Tensor>), &'a (f64, f64));

impl OptimizerState {
    /// Creates the state before the first step. Parameters that this rank does not own have no state and are left
    /// unchanged.
    pub fn new(optimizer: &Optimizer, params: &Params, is_ours: impl Fn(usize) -> bool) -> Self {
        let zeros = |t: &Tensor| -> Vec<Tensor> {
            let shapes = optimizer.moments(t).into_iter().map(|(_, shape)| shape);
            shapes.map(|shape| Tensor::zeros_on(t.device(), &shape, Dtype::F32)).collect()
        };
        let of = |(i, t)| if is_ours(i) { zeros(t) } else { Vec::new() };
        let entries = params.entries().iter().zip(params.depths());
        let factors = entries.map(|((name, value), depth)| optimizer.of_param(name, value, *depth));
        Self { moments: params.tensors().enumerate().map(of).collect(), factors: factors.collect() }
    }

    /// Applies one step as decided by the step policy; `gradients` are in parameter order. The learning rate of
    /// parameters whose names match one of the patterns `frozen` is 0.
    pub fn step(
        &mut self,
        optimizer: &Optimizer,
        factor: f64,
        frozen: &[&str],
        decided: &DeviceStepControl,
        params: &mut Params,
        gradients: &[Tensor],
    ) {
        let learning_rate = optimizer.learning_rate * factor;
        let names =
            params.entries().iter().map(|(name, _)| frozen.iter().any(|p| matches(p, name)));
        let factors = names.zip(&self.factors);
        let factors: Vec<(f64, f64)> = factors
            .map(|(is_frozen, (rate, decay))| (if is_frozen { 0.0 } else { *rate }, *decay))
            .collect();
        let tensors = params.tensors_mut().zip(gradients).zip(&mut self.moments).zip(&factors);
        let tensors = tensors.filter(|((_, moments), _)| !moments.is_empty());
        match optimizer.method {
            Method::AdamW { betas, epsilon } => {
                adamw::AdamW { learning_rate, betas, epsilon, coupled: false }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::Adam { betas, epsilon } => {
                adamw::AdamW { learning_rate, betas, epsilon, coupled: true }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::Lamb { betas, epsilon } => {
                lamb::Lamb { learning_rate, betas, epsilon }
                    .apply_all(decided, tensors.map(parameter));
            }
            Method::Lion { betas } => {
                lion::Lion { learning_rate, betas }.apply_all(decided, tensors.map(parameter));
            }
            Method::Muon { momentum, betas, epsilon, .. } => {
                let (matrices, others): (Vec<_>, Vec<_>) =
                    tensors.partition(|((_, moments), _)| moments.len() == 1);
                muon::Muon { learning_rate, momentum }
                    .apply_all(decided, matrices.into_iter().map(parameter));
                adamw::AdamW { learning_rate, betas, epsilon, coupled: false }
                    .apply_all(decided, others.into_iter().map(parameter));
            }
            Method::Adafactor { beta2_decay, clip_threshold, epsilon } => {
                let rule =
                    adafactor::Adafactor { learning_rate, beta2_decay, clip_threshold, epsilon };
                let (matrices, others): (Vec<_>, Vec<_>) =
                    tensors.partition(|((_, moments), _)| moments.len() == 2);
                rule.apply_all(decided, matrices.into_iter().map(parameter::<2>));
                rule.apply_all(decided, others.into_iter().map(parameter::<1>));
            }
            Method::Sgd { momentum } => {
                sgd::Sgd { learning_rate, momentum }.apply_all(decided, tensors.map(parameter));
            }
        }
    }

    /// Returns the named state tensors for a checkpoint.
    pub fn entries(&self, optimizer: &Optimizer, params: &Params) -> Vec<(String, Tensor)> {
        let all = (0..params.entries().len()).map(|i| self.entry(optimizer, params, i));
        all.flatten().collect()
    }

    /// Returns the state tensors of the parameter with index `i`; zeros when this rank does not own it.
    pub fn entry(&self, optimizer: &Optimizer, params: &Params, i: usize) -> Vec<(String, Tensor)> {
        let (name, value) = &params.entries()[i];
        let entry = |(at, (moment, shape)): (usize, (&str, Vec<usize>))| {
            let zeros = || Tensor::zeros_on(value.device(), &shape, Dtype::F32);
            let tensor = self.moments[i].get(at).cloned().unwrap_or_else(zeros);
            (format!("{name}.{moment}"), tensor)
        };
        optimizer.moments(value).into_iter().enumerate().map(entry).collect()
    }

    /// Restores the state from the output of [`OptimizerState::entries`].
    pub fn assign(
        &mut self,
        optimizer: &Optimizer,
        params: &Params,
        values: &[(String, Tensor)],
    ) -> Result<()> {
        for ((name, value), moments) in params.entries().iter().zip(&mut self.moments) {
            for ((moment, _), tensor) in optimizer.moments(value).into_iter().zip(moments) {
                let key = format!("{name}.{moment}");
                match values.iter().find(|(n, v)| *n == key && v.shape() == tensor.shape()) {
                    Some((_, value)) => {
                        *tensor = value.to_dtype(tensor.dtype()).to_device(tensor.device())?;
                    }
                    None => {
                        return Err(Error::data(format!(
                            "the checkpoint has no optimizer state {key} of shape {:?}: \
                             was it saved with a different optimizer.method?",
                            tensor.shape()
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::ParamGroup;
    use crate::params::{Builder, Init};
    use tensor::updates::decision::StepControl;

    /// A checkpoint file is untrusted input: its state tensors may have any dtype that checkpoints support.
    #[test]
    fn a_state_of_another_element_type_is_taken_over() {
        let method = Method::Sgd { momentum: 0.5 };
        let optimizer = Optimizer {
            method,
            learning_rate: 1.0,
            weight_decay: 0.0,
            groups: vec![],
            layer_decay: None,
            shard: false,
        };
        let mut builder = Builder::new(1);
        builder.param("w", &[2], Init::Constant(1.0));
        let mut params = builder.finish().trained;
        for dtype in [Dtype::F64, Dtype::Bf16, Dtype::F16, Dtype::I32] {
            let mut state = OptimizerState::new(&optimizer, &params, |_| true);
            let stored = Tensor::from_slice(&[2.0_f32, -4.0], &[2]).to_dtype(dtype);
            state.assign(&optimizer, &params, &[("w.momentum".into(), stored)]).unwrap();
            let kept = state.entries(&optimizer, &params);
            assert_eq!(kept[0].1.read::<f32>(), [2.0, -4.0], "{dtype}");
            let before = params.tensors().next().unwrap().to_f64();
            let decided = DeviceStepControl::of(
                &StepControl { applied: true, ..StepControl::default() },
                1.0,
            );
            state.step(
                &optimizer,
                1.0,
                &[],
                &decided,
                &mut params,
                &[Tensor::zeros(&[2], Dtype::F32)],
            );
            let after = params.tensors().next().unwrap().to_f64();
            assert_eq!([after[0] - before[0], after[1] - before[1]], [-1.0, 2.0], "{dtype}");
        }
    }

    #[test]
    fn a_frozen_parameter_keeps_its_value_and_its_average_takes_the_gradient() {
        let optimizer: Optimizer = serde_json::from_str(
            r#"{"method": {"kind": "sgd", "momentum": 0.5}, "learning_rate": 1.0}"#,
        )
        .unwrap();
        let mut builder = Builder::new(1);
        for name in ["head.weight", "body.weight"] {
            builder.param(name, &[1, 1], Init::Constant(1.0));
        }
        let mut params = builder.finish().trained;
        let mut state = OptimizerState::new(&optimizer, &params, |_| true);
        let control =
            StepControl { applied: true, scale: 1.0, rate: 1.0, root: 1.0, ..Default::default() };
        let decided = DeviceStepControl::of(&control, 1.0);
        let gradients = [1.0_f32, 1.0].map(|x| Tensor::from_slice(&[x], &[1, 1]));
        state.step(&optimizer, 1.0, &["head.*"], &decided, &mut params, &gradients);
        let values: Vec<f64> = params.tensors().map(|tensor| tensor.to_f64()[0]).collect();
        assert_eq!(values[0], 1.0);
        assert!(values[1] < 0.1, "{values:?}");
        for (name, moment) in state.entries(&optimizer, &params) {
            assert_eq!(moment.to_f64(), [1.0], "{name}");
        }
    }

    #[test]
    fn muon_updates_matrices_and_adamw_the_rest() {
        let optimizer: Optimizer = serde_json::from_str(
            r#"{"method": {"kind": "muon", "filters": true}, "learning_rate": 0.5}"#,
        )
        .unwrap();
        let mut builder = Builder::new(1);
        for (name, shape) in [("weight", &[2, 2][..]), ("bias", &[2]), ("conv", &[2, 1, 2, 1])] {
            builder.param(name, shape, Init::Constant(1.0));
        }
        let mut params = builder.finish().trained;
        let plain: Optimizer =
            serde_json::from_str(r#"{"method": {"kind": "muon"}, "learning_rate": 0.5}"#).unwrap();
        let of_conv = |optimizer: &Optimizer| optimizer.moments(params.tensors().nth(2).unwrap());
        let shape = || vec![2, 1, 2, 1];
        assert_eq!(of_conv(&plain), [("m", shape()), ("v", shape())]);
        assert_eq!(of_conv(&optimizer), [("momentum", shape())]);
        let mut state = OptimizerState::new(&optimizer, &params, |_| true);
        let names: Vec<_> =
            state.entries(&optimizer, &params).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["weight.momentum", "bias.m", "bias.v", "conv.momentum"]);
        let control =
            StepControl { applied: true, scale: 1.0, rate: 0.5, root: 1.0, ..Default::default() };
        let gradients = [
            Tensor::from_slice(&[3.0_f32, 0.0, 0.0, -3.0], &[2, 2]),
            Tensor::from_slice(&[0.1_f32, -0.2], &[2]),
            Tensor::from_slice(&[3.0_f32, 0.0, 0.0, -3.0], &[2, 1, 2, 1]),
        ];
        let decided = DeviceStepControl::of(&control, 1.0);
        state.step(&optimizer, 1.0, &[], &decided, &mut params, &gradients);
        let after: Vec<_> = params.tensors().map(Tensor::to_f64).collect();
        // Both singular values are 1/√2 of the norm; five iterations bring them within 0.3 of 1, the method's
        // tolerance.
        let [a, b, c, d] = after[0][..] else { panic!("{after:?}") };
        assert!(
            ((1.0 - a) / 0.5 - 1.0).abs() < 0.3 && a + d == 2.0 && [b, c] == [1.0; 2],
            "{after:?}"
        );
        assert_eq!(after[0], after[2]);
        assert!(after[1][0] < 1.0 && after[1][1] > 1.0, "{after:?}");
    }

    #[test]
    fn groups_have_a_learning_rate_and_weight_decay_of_their_own() {
        let text = r#"{"method": {"kind": "sgd"}, "learning_rate": 0.5, "weight_decay": 0.1, "groups":
            [{"params": ["head.*"], "learning_rate": 4.0}, {"params": ["*.bias"], "weight_decay": 0.2}]}"#;
        let optimizer: Optimizer = serde_json::from_str(text).unwrap();
        let mut builder = Builder::new(1);
        for (name, shape) in
            [("body.weight", &[1, 1][..]), ("body.bias", &[1]), ("head.weight", &[1, 1])]
        {
            builder.param(name, shape, Init::Constant(1.0));
        }
        let set = builder.finish();
        optimizer.check_groups(&set).unwrap();
        let mut params = set.trained.clone();
        let mut state = OptimizerState::new(&optimizer, &params, |_| true);
        let decided = DeviceStepControl::of(
            &StepControl { applied: true, scale: 1.0, ..StepControl::default() },
            1.0,
        );
        let gradients =
            [&[1, 1][..], &[1], &[1, 1]].map(|shape| Tensor::full(shape, 0.25, Dtype::F32));
        state.step(&optimizer, 1.0, &[], &decided, &mut params, &gradients);
        let after: Vec<f64> = params.tensors().map(Tensor::item).collect();
        // θ - η·f·(g + λθ) with θ = 1, in f32.
        let expected =
            [1.0 - 0.5 * (0.25 + 0.1), 1.0 - 0.5 * (0.25 + 0.2), 1.0 - 2.0 * (0.25 + 0.1)];
        for (after, expected) in after.iter().zip(expected) {
            assert!((after - expected).abs() < 4.0 * Dtype::F32.roundoff(), "{after} {expected}");
        }
        let other = optimizer.groups[1].clone();
        let other = Optimizer {
            groups: vec![ParamGroup { params: vec!["tail.*".into()], ..other }],
            ..optimizer
        };
        let error = other.check_groups(&set).unwrap_err().to_string();
        assert!(error.contains("optimizer.groups[0].params: tail.*"), "{error}");
    }

    #[test]
    fn the_rate_of_a_layer_decays_with_its_depth() {
        let text = r#"{"method": {"kind": "sgd"}, "learning_rate": 1.0, "layer_decay": 0.5, "groups":
            [{"params": ["embeddings"], "learning_rate": 4.0}]}"#;
        let optimizer: Optimizer = serde_json::from_str(text).unwrap();
        let mut builder = Builder::new(1);
        for (name, depth) in [("embeddings", 3), ("layer.0", 2), ("layer.1", 1)] {
            builder.at_depth(depth, |b| b.param(name, &[1], Init::Constant(0.0)));
        }
        builder.param("head", &[1], Init::Constant(0.0));
        let set = builder.finish();
        optimizer.check_groups(&set).unwrap();
        let mut params = set.trained;
        let mut state = OptimizerState::new(&optimizer, &params, |_| true);
        let applied = StepControl { applied: true, scale: 1.0, ..StepControl::default() };
        let gradients: Vec<Tensor> = (0..4).map(|_| Tensor::full(&[1], -1.0, Dtype::F32)).collect();
        let decided = DeviceStepControl::of(&applied, 1.0);
        state.step(&optimizer, 1.0, &[], &decided, &mut params, &gradients);
        let after: Vec<f64> = params.tensors().map(Tensor::item).collect();
        assert_eq!(after, [4.0 * 0.125, 0.25, 0.5, 1.0]);
        let flat = {
            let mut builder = Builder::new(1);
            builder.param("head", &[1], Init::Constant(0.0));
            builder.finish()
        };
        let error = optimizer.check_groups(&flat).unwrap_err().to_string();
        assert!(error.contains("layer_decay"), "{error}");
    }

    #[test]
    fn every_rule_learns_and_restores_its_state() {
        let rules = [
            r#"{"kind": "adamw"}"#,
            r#"{"kind": "adam"}"#,
            r#"{"kind": "lion"}"#,
            r#"{"kind": "lamb"}"#,
            r#"{"kind": "adafactor"}"#,
            r#"{"kind": "muon"}"#,
            r#"{"kind": "sgd", "momentum": 0.9}"#,
        ];
        for method in rules {
            let text = format!(r#"{{"method": {method}, "learning_rate": 0.1}}"#);
            let optimizer: Optimizer = serde_json::from_str(&text).unwrap();
            assert!(optimizer.violations().is_empty(), "{method}");
            let start = || {
                let mut builder = Builder::new(3);
                for (name, shape) in [("w", &[3, 2][..]), ("b", &[2]), ("c", &[2, 3, 2, 2])] {
                    builder.param(name, shape, Init::Constant(1.0));
                }
                builder.finish().trained
            };
            let gradients: Vec<Tensor> = start()
                .tensors()
                .map(|t| {
                    let values: Vec<f32> = (1..=t.len()).map(|i| i as f32 * 0.1).collect();
                    Tensor::from_slice(&values, t.shape())
                })
                .collect();
            let rule = tensor::updates::decision::StepPolicy {
                clip: f64::INFINITY,
                betas: optimizer.corrected(),
                decay: 0.0,
                warmup: false,
                scaled: false,
                unit: 1.0,
            };
            let step = |steps, state: &mut OptimizerState, params: &mut Params| {
                let before = StepControl { steps, ..StepControl::default() };
                let made = rule.decide(&before, [1.0, 1.0], 1.0, optimizer.learning_rate);
                let decided = DeviceStepControl::of(&made, 1.0);
                state.step(&optimizer, 1.0, &[], &decided, params, &gradients);
            };
            let mut params = start();
            let mut state = OptimizerState::new(&optimizer, &params, |_| true);
            (0..3).for_each(|steps| step(steps, &mut state, &mut params));
            let lower = params.tensors().all(|t| t.to_f64().iter().all(|x| *x < 1.0));
            // Muon orthogonalizes, which makes some elements grow.
            assert!(lower || method.contains("muon"), "{method}");
            let mut restored = OptimizerState::new(&optimizer, &params, |_| true);
            restored.assign(&optimizer, &params, &state.entries(&optimizer, &params)).unwrap();
            let mut other = params.clone();
            step(3, &mut state, &mut params);
            step(3, &mut restored, &mut other);
            assert_eq!(params.hash().unwrap(), other.hash().unwrap(), "{method}");
            // A rank that does not own a parameter sends zeros of the same shapes.
            let nothing = OptimizerState::new(&optimizer, &params, |_| false);
            let shapes = |state: &OptimizerState| -> Vec<_> {
                let entries = state.entries(&optimizer, &params);
                entries.into_iter().map(|(name, t)| (name, t.shape().to_vec())).collect()
            };
            assert_eq!(shapes(&nothing), shapes(&state), "{method}");
        }
        let unknown = serde_json::from_str::<Method>(r#"{"kind": "adamw_8bit"}"#).unwrap_err();
        for known in ["adamw", "muon", "adam", "lion", "lamb", "adafactor", "sgd"] {
            assert!(unknown.to_string().contains(known), "{unknown}");
        }
    }
}
