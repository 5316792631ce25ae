//! Activation recomputation (`training.mem_budget`): the same bits whatever is recomputed, and less memory the smaller
//! the budget.

use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::recompute::Recompute;
use serde_json::json;
use std::rc::Rc;
use tasks::common::models::backbone::{Attention, BackboneConfig};
use tasks::common::models::{PdetStack, PdetUnet};
use tasks::pde::models::ConditionPath;
use tasks::pde::models::operator::Output;
use tasks::pde::models::{Operator, OperatorModel};
use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Dtype, Tape, Tensor};

const DIM: usize = 4;
const TOKENS: usize = 24;

/// Models, and the fraction of its peak that a model needs at most when everything is recomputed. The U-Net has few
/// blocks, the finest of which need most of the memory, and here as much for its gradients.
fn models() -> [(OperatorModel, f64); 3] {
    let stack = PdetStack {
        hidden: 24,
        depth: 4,
        iterations: 1,
        attention: Attention::MultiHead { heads: 2, qk_norm: true },
        attention_every: 2,
        kernel_size: 3,
        mlp_ratio: 2,
        branch_scale: 0.1,
        positions: false,
    };
    let unet = PdetUnet {
        hidden: 12,
        depths: vec![1, 2],
        attention: Attention::ChannelSeparated { group: 6, heads: 2 },
        kernel_size: 0,
        mlp_ratio: 2,
        positions: false,
    };
    let convolutions = json!({"kind": "unet", "hidden": 8, "levels": 2, "norm": "group"});
    let convolutions = serde_json::from_value(convolutions).unwrap();
    let model = |backbone, condition, output| OperatorModel {
        backbone,
        condition,
        condition_width: 8,
        output,
    };
    [
        (model(BackboneConfig::PdetStack(stack), ConditionPath::Adaptive, Output::Scale), 0.5),
        (model(BackboneConfig::PdetUnet(unet), ConditionPath::Additive, Output::LayerNorm), 0.5),
        (model(convolutions, ConditionPath::Adaptive, Output::Scale), 0.85),
    ]
}

fn shaken(params: &ParamSet) -> ParamSet {
    let mut shaken = params.clone();
    for (i, t) in (0..).zip(shaken.trained.tensors_mut()) {
        let noise = draw(t.shape(), &Draw::Uniform(-0.3, 0.3), 5, i).to_dtype(Dtype::F32);
        tensor::updates::sum::add(t, &noise);
    }
    shaken
}

/// Gradients of a rollout of two steps, in which every parameter is used twice; and the peak memory of tensors
/// meanwhile, beyond what was in use before.
fn gradients(operator: &Operator, params: &ParamSet, plan: &Rc<Recompute>) -> (Vec<Tensor>, usize) {
    let value = |shape: &[usize], seed| draw(shape, &Draw::Normal, seed, 0).to_dtype(Dtype::F32);
    let before = tensor::memory::usage().live;
    tensor::memory::reset_peak();
    let tape = Tape::new();
    let forward = Forward::training(&tape, params).recomputing(Rc::clone(plan));
    let features = forward.constant(&value(&[3, 2], 1)).unwrap();
    let target = forward.constant(&value(&[3, TOKENS, DIM], 2)).unwrap();
    let mut z = forward.constant(&value(&[3, TOKENS, DIM], 3)).unwrap();
    let (weights, channels) =
        (forward.full(&[3], 0.3).unwrap(), forward.full(&[DIM], 1.0).unwrap());
    let mut terms = Vec::new();
    for _ in 0..2 {
        z = operator.forward(&forward, &z, &features).unwrap();
        terms.push(forward.apply(SquaredError, &[&z, &target, &weights, &channels]).unwrap());
    }
    let loss = forward.apply(WeightedSum(vec![0.5; 2]), &[&terms[0], &terms[1]]).unwrap();
    let variables = forward.variables().to_vec();
    drop(forward);
    plan.end_pass();
    let mut found = tape.backward(&loss).unwrap();
    let peak = tensor::memory::usage().peak - before;
    (variables.iter().map(|v| found.take(v).unwrap()).collect(), peak)
}

// The only test in this file, because the memory counters are process-wide.
#[test]
fn less_memory_for_the_same_bits() {
    for (model, share) in models() {
        let mut builder = Builder::new(1);
        let operator = Operator::new(&mut builder, &model, DIM, [1, TOKENS], Padding::Periodic, 2);
        let params = shaken(&builder.finish());
        let (expected, most) = gradients(&operator, &params, &Rc::new(Recompute::new(1.0)));
        let mut peaks = vec![most];
        for budget in [0.6, 0.3, 0.0] {
            let plan = Rc::new(Recompute::new(budget));
            // The first pass measures, the others follow the plan.
            for pass in 0..3 {
                let (found, peak) = gradients(&operator, &params, &plan);
                for ((name, _), (found, expected)) in
                    params.trained.entries().iter().zip(found.iter().zip(&expected))
                {
                    assert!(found.as_bytes() == expected.as_bytes(), "{name} at {budget}, {pass}");
                }
                if pass == 2 {
                    peaks.push(peak);
                }
            }
            let made = plan.plan().unwrap();
            let (kept, all) = made.bytes();
            assert!(kept as f64 <= budget * all as f64 && all > 0, "{kept} of {all}");
            assert!(made.flops().0 > 0, "something is computed again at {budget}");
        }
        assert!(peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
        assert!((peaks[3] as f64) < share * peaks[0] as f64, "{peaks:?}");
    }
}
