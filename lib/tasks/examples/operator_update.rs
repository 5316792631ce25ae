//! Time and memory of one training update of the operator, for comparison with other programs: the counterpart of
//! `tests/peers/operator_update.py`.
//!
//! `--device cuda` and `--precision bf16` measure a GPU.
//!
//! Prints one JSON object: median and minimum milliseconds per update (forward over the horizon, squared error,
//! backward, clipping, AdamW), and the peaks of resident memory and of the device's tensors in bytes.

mod peer;

use learn::params::Builder;
use peer::{Training, argument};
use serde_json::json;
use tasks::pde::models::operator::{Attention, BackboneConfig, ConditionPath, Output};
use tasks::pde::models::{Operator, OperatorModel, PdetStack};
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Dtype, Tensor, constant};

fn main() -> unix::Result<()> {
    peer::check_options(
        &[
            "hidden",
            "depth",
            "heads",
            "tokens",
            "dim",
            "batch",
            "filter",
            "attention-every",
            "mlp-ratio",
            "horizon",
            "repeats",
            "qk-norm",
            "threads",
        ],
        &[],
    )?;
    tensor::parallel::start_threads(Some(argument("threads", 2)))?;
    tensor::parallel::inside(measure)
}

fn measure() -> unix::Result<()> {
    let [hidden, depth, heads] =
        [("hidden", 256), ("depth", 8), ("heads", 8)].map(|(n, d)| argument(n, d));
    let [tokens, dim, batch] =
        [("tokens", 128), ("dim", 128), ("batch", 64)].map(|(n, d)| argument(n, d));
    let [kernel_size, every, ratio] =
        [("filter", 7), ("attention-every", 1), ("mlp-ratio", 4)].map(|(n, d)| argument(n, d));
    let [horizon, repeats] = [("horizon", 1), ("repeats", 9)].map(|(n, d)| argument(n, d));
    let attention = match heads {
        0 => Attention::None,
        heads => Attention::MultiHead { heads, qk_norm: argument("qk-norm", 1) == 1 },
    };
    let model = OperatorModel {
        backbone: BackboneConfig::PdetStack(PdetStack {
            hidden,
            depth,
            iterations: 1,
            attention,
            attention_every: every,
            kernel_size,
            mlp_ratio: ratio,
            branch_scale: 0.1,
            positions: false,
        }),
        condition: ConditionPath::Adaptive,
        condition_width: 64,
        output: Output::Scale,
    };
    let mut builder = Builder::new(1);
    let operator = Operator::new(&mut builder, &model, dim, [1, tokens], Padding::Periodic, 2);
    let (device, dtype) = peer::place()?;
    let params = builder.finish();
    let count = params.count();
    let mut training = Training::new(params, device, 1.0)?;
    let random = |shape: &[usize], i| peer::random(shape, i).to_device(device);
    let (z, target) = (random(&[batch, tokens, dim], 0)?, random(&[batch, tokens, dim], 1)?);
    let features = random(&[batch, 2], 2)?;
    let weights = Tensor::full(&[batch], 1.0 / batch as f64, Dtype::F32).to_device(device)?;
    let channels = Tensor::full(&[dim], 1.0, Dtype::F32).to_device(device)?;
    let times = peer::times(repeats, || {
        training.update(dtype, |forward| {
            let [features, weights, channels, target] =
                [&features, &weights, &channels, &target].map(|t| constant(t.clone()));
            let (mut state, mut terms) = (constant(z.clone()), Vec::new());
            for _ in 0..horizon {
                state = operator.forward(forward, &state, &features)?;
                terms.push(forward.apply(SquaredError, &[&state, &target, &weights, &channels])?);
            }
            let share = WeightedSum(vec![1.0 / horizon as f64; horizon]);
            forward.apply(share, &terms.iter().collect::<Vec<_>>())
        })
    })?;
    println!(
        "{}",
        json!({"parameters": count, "median_ms": times[times.len() / 2], "minimum_ms": times[0],
               "peak_rss_bytes": peer::peak_rss(), "peak_device_bytes": peer::peak_on(device)})
    );
    Ok(())
}
