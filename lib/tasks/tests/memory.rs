//! After its first updates, training allocates no memory from the system.

use learn::forward::Forward;
use learn::params::Builder;
use tasks::common::models::PdetStack;
use tasks::common::models::backbone::{Attention, BackboneConfig};
use tasks::pde::models::ConditionPath;
use tasks::pde::models::operator::Output;
use tasks::pde::models::{Operator, OperatorModel};
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::{Dtype, Tape, Tensor, constant};

// The only test in its process, because the counters are process-wide.
#[test]
fn later_updates_allocate_nothing_from_the_system() {
    let backbone = PdetStack {
        hidden: 24,
        depth: 2,
        iterations: 1,
        attention: Attention::MultiHead { heads: 2, qk_norm: true },
        attention_every: 1,
        kernel_size: 3,
        mlp_ratio: 2,
        branch_scale: 0.1,
        positions: false,
    };
    let model = OperatorModel {
        backbone: BackboneConfig::PdetStack(backbone),
        condition: ConditionPath::Adaptive,
        condition_width: 8,
        output: Output::Scale,
    };
    let mut builder = Builder::new(1);
    let operator = Operator::new(&mut builder, &model, 4, [1, 33], Padding::Periodic, 2);
    let params = builder.finish();
    let full = |shape: &[usize], value| constant(Tensor::full(shape, value, Dtype::F32));
    let update = || {
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params);
        let z = full(&[5, 33, 4], 0.5);
        let next = operator.forward(&forward, &z, &full(&[5, 2], 0.1)).unwrap();
        let target = full(&[5, 33, 4], 0.0);
        let (weights, channels) = (full(&[5], 0.2), full(&[4], 1.0));
        let loss = forward.apply(SquaredError, &[&next, &target, &weights, &channels]).unwrap();
        drop(forward);
        tape.backward(&loss).unwrap();
    };
    // A single thread: otherwise the number of simultaneous temporary buffers depends on timing.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(update);
    let first = tensor::memory::usage().system_calls;
    assert!(first > 0);
    (0..3).for_each(|_| pool.install(update));
    assert_eq!(tensor::memory::usage().system_calls, first);
}
