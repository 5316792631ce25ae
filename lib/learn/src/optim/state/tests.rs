use super::*;
use crate::optim::ParamGroup;
use crate::params::{Builder, Init};
use tensor::updates::decision::StepControl;

/// A checkpoint file is untrusted input: its state tensors may have any dtype of numbers.
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
        let decided =
            DeviceStepControl::of(&StepControl { applied: true, ..StepControl::default() }, 1.0);
        state.step(&optimizer, 1.0, &[], &decided, &mut params, &[Tensor::zeros(&[2], Dtype::F32)]);
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
    let of_conv = |optimizer: &Optimizer| {
        let moments = optimizer.moments(params.tensors().nth(2).unwrap());
        moments.into_iter().map(|own| (own.name, own.shape)).collect::<Vec<_>>()
    };
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
    assert!(((1.0 - a) / 0.5 - 1.0).abs() < 0.3 && a + d == 2.0 && [b, c] == [1.0; 2], "{after:?}");
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
    let gradients = [&[1, 1][..], &[1], &[1, 1]].map(|shape| Tensor::full(shape, 0.25, Dtype::F32));
    state.step(&optimizer, 1.0, &[], &decided, &mut params, &gradients);
    let after: Vec<f64> = params.tensors().map(Tensor::item).collect();
    // θ - η·f·(g + λθ) with θ = 1, in f32.
    let expected = [1.0 - 0.5 * (0.25 + 0.1), 1.0 - 0.5 * (0.25 + 0.2), 1.0 - 2.0 * (0.25 + 0.1)];
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
        r#"{"kind": "adamw8bit"}"#,
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
            for (name, shape) in
                [("w", &[3, 2][..]), ("b", &[2]), ("c", &[2, 3, 2, 2]), ("e", &[65, 64])]
            {
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
    for known in ["adamw", "adamw8bit", "muon", "adam", "lion", "lamb", "adafactor", "sgd"] {
        assert!(unknown.to_string().contains(known), "{unknown}");
    }
}

/// Large parameters have codes, small ones numbers; neither is taken for the other.
#[test]
fn averages_in_8_bits_are_restored_as_codes() {
    let optimizer: Optimizer =
        serde_json::from_str(r#"{"method": {"kind": "adamw8bit"}, "learning_rate": 0.1}"#).unwrap();
    let mut builder = Builder::new(3);
    for (name, shape) in [("a", &[4096][..]), ("b", &[4095])] {
        builder.param(name, shape, Init::Constant(1.0));
    }
    let params = builder.finish().trained;
    let mut state = OptimizerState::new(&optimizer, &params, |_| true);
    let mut entries = state.entries(&optimizer, &params);
    let forms: Vec<_> = entries.iter().map(|(n, t)| (n.as_str(), t.dtype(), t.len())).collect();
    let (codes, numbers) = (Dtype::U8, Dtype::F32);
    let large = [("a.m", codes, 4096), ("a.v", codes, 4096)];
    let blocks = [("a.m_absmax", numbers, 16), ("a.v_absmax", numbers, 16)];
    let small = [("b.m", numbers, 4095), ("b.v", numbers, 4095)];
    assert_eq!(forms, [large, blocks, small].concat());
    let bytes: usize = params.tensors().map(|value| optimizer.state_bytes(value)).sum();
    assert_eq!(bytes, 2 * 4096 + 2 * 4 * 16 + 2 * 4 * 4095);
    entries[0].1 = Tensor::zeros(&[4096], Dtype::F32);
    let error = state.assign(&optimizer, &params, &entries).unwrap_err().to_string();
    assert!(error.contains("no optimizer state a.m"), "{error}");
}
