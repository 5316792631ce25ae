//! Time and memory of one training update of the operator, for comparison with other programs: the counterpart of
//! `tests/peers/operator_update.py`.
//!
//! `--device cuda` and `--precision bf16` measure a GPU, `--compile` with passes recorded as CUDA graphs.
//!
//! Prints one JSON object: median and minimum milliseconds per update (forward over the horizon, squared error,
//! backward, clipping, AdamW), the last loss, and the peaks of resident memory and of the device's tensors in bytes.

mod peer;

use clap::Parser;
use learn::params::Builder;
use peer::{Place, Training};
use serde_json::json;
use std::process::ExitCode;
use tasks::common::models::PdetStack;
use tasks::common::models::backbone::{Attention, BackboneConfig};
use tasks::pde::models::ConditionPath;
use tasks::pde::models::operator::Output;
use tasks::pde::models::{Operator, OperatorModel};
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Device, Dtype, Tensor, constant};

/// Time one training update of the operator
#[derive(Parser)]
#[command(name = "operator_update")]
struct Args {
    #[arg(long, default_value_t = 256)]
    hidden: usize,
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Heads of attention; 0: no attention
    #[arg(long, default_value_t = 8)]
    heads: usize,
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    #[arg(long, default_value_t = 128)]
    dim: usize,
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Size of the depthwise convolutions
    #[arg(long, default_value_t = 7)]
    filter: usize,
    #[arg(long, default_value_t = 1)]
    attention_every: usize,
    #[arg(long, default_value_t = 4)]
    mlp_ratio: usize,
    /// Steps of the rollout
    #[arg(long, default_value_t = 1)]
    horizon: usize,
    /// Updates that are measured, after two
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Normalise queries and keys: 1 or 0
    #[arg(long, default_value_t = 1)]
    qk_norm: u8,
    #[command(flatten)]
    place: Place,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| args.place.inside(|device, dtype| measure(&args, device, dtype)))
}

fn measure(args: &Args, device: Device, dtype: Dtype) -> unix::Result<()> {
    let &Args { hidden, depth, tokens, dim, batch, horizon, .. } = args;
    let attention = match args.heads {
        0 => Attention::None,
        heads => Attention::MultiHead { heads, qk_norm: args.qk_norm == 1 },
    };
    let model = OperatorModel {
        backbone: BackboneConfig::PdetStack(PdetStack {
            hidden,
            depth,
            iterations: 1,
            attention,
            attention_every: args.attention_every,
            kernel_size: args.filter,
            mlp_ratio: args.mlp_ratio,
            branch_scale: 0.1,
            positions: false,
        }),
        condition: ConditionPath::Adaptive,
        condition_width: 64,
        output: Output::Scale,
    };
    let mut builder = Builder::new(1);
    let operator = Operator::new(&mut builder, &model, dim, [1, tokens], Padding::Periodic, 2);
    let params = builder.finish();
    let count = params.count();
    let mut training = Training::new(params, device, &args.place, 1.0)?;
    let random = |shape: &[usize], i| peer::random(shape, i).to_device(device);
    let (z, target) = (random(&[batch, tokens, dim], 0)?, random(&[batch, tokens, dim], 1)?);
    let features = random(&[batch, 2], 2)?;
    let weights = Tensor::full(&[batch], 1.0 / batch as f64, Dtype::F32).to_device(device)?;
    let channels = Tensor::full(&[dim], 1.0, Dtype::F32).to_device(device)?;
    let times = peer::times(args.repeats, || {
        training.update(dtype, Vec::new(), |forward| {
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
               "loss": training.last_loss(), "peak_rss_bytes": peer::peak_rss(), "peak_device_bytes": peer::peak_on(device)})
    );
    Ok(())
}
