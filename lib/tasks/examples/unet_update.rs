//! Time and memory of one training update of U-Net S, for comparison with other programs: the counterpart of
//! `tests/peers/unet_update.py`.
//!
//! Prints one JSON object: median and minimum milliseconds per update (forward, mean squared error, backward, clipping,
//! AdamW) with --batch samples of 4 frames of 5 channels on --grid x --grid points; the same for each convolution alone
//! (forward and backward), by layer; the bytes that a forward pass keeps for the backward pass, with --mem-budget percent
//! of them (`training.mem_budget`); the last loss; and the peaks of resident memory and of the device's tensors in bytes.
//!
//! `--device cuda` and `--precision bf16` measure a GPU, `--compile` with passes recorded as CUDA graphs; bytes that are kept
//! are those on the CPU.

mod peer;

use clap::Parser;
use learn::params::Builder;
use peer::{Place, Training, peak_rss, random, times};
use serde_json::{Value, json};
use std::process::ExitCode;
use tasks::common::models::backbone::BackboneConfig;
use tasks::pde::models::{ConditionPath, Network, NetworkShape};
use tensor::op::Op;
use tensor::ops::conv::Conv;
use tensor::ops::conv_transpose::ConvTranspose;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::{Device, Dtype, Tape, Tensor, constant, kernel};

const INPUT: usize = 20;
const OUTPUT: usize = 5;
const HIDDEN: usize = 32;
const LEVELS: usize = 3;

/// Time one training update of U-Net S
#[derive(Parser)]
#[command(name = "unet_update")]
struct Args {
    /// Points of the grid along each axis
    #[arg(long, default_value_t = 64)]
    grid: usize,
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Updates that are measured, after two
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Percentage of what the forward pass keeps (training.mem_budget)
    #[arg(long, default_value_t = 100)]
    mem_budget: u8,
    #[command(flatten)]
    place: Place,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| args.place.inside(|device, dtype| measure(&args, device, dtype)))
}

fn measure(args: &Args, device: Device, dtype: Dtype) -> unix::Result<()> {
    let &Args { grid, batch, repeats, .. } = args;
    let config: BackboneConfig =
        serde_json::from_value(json!({"kind": "unet", "hidden": HIDDEN, "levels": LEVELS}))
            .map_err(unix::Error::bug)?;
    let shape = NetworkShape {
        input: INPUT,
        output: OUTPUT,
        grid: [1, grid, grid],
        padding: Padding::Zero,
        condition: 0,
    };
    let mut builder = Builder::new(1);
    let model = Network::new(&mut builder, &config, (ConditionPath::Concatenated, 1), &shape);
    let params = builder.finish();
    let (count, budget) = (params.count(), f64::from(args.mem_budget) / 100.0);
    let mut training = Training::new(params, device, &args.place, budget)?;
    let points = grid * grid;
    let given = |shape: &[usize], i| random(shape, i).to_device(device);
    let (x, target) = (given(&[batch, points, INPUT], 0)?, given(&[batch, points, OUTPUT], 1)?);
    let weights = Tensor::full(&[batch], 1.0 / batch as f64, Dtype::F32).to_device(device)?;
    let channels = Tensor::full(&[OUTPUT], 1.0, Dtype::F32).to_device(device)?;
    // There is no condition.
    let features = Tensor::zeros(&[batch, 0], Dtype::F32).to_device(device)?;
    let updates = times(repeats, || {
        training.update(dtype, Vec::new(), |forward| {
            let [x, target, weights, channels, features] =
                [&x, &target, &weights, &channels, &features].map(|t| constant(t.clone()));
            let found = model.forward(forward, &x, &features)?;
            forward.apply(SquaredError, &[&found, &target, &weights, &channels])
        })
    })?;
    let (peak, on_device) = (peak_rss(), peer::peak_on(device));
    let (mut layers, mut sum) = (serde_json::Map::new(), 0.0);
    for (name, side, [from, to], is_transposed) in convolutions(grid) {
        let x = random(&[batch, side, side, from], 2).to_dtype(dtype).to_device(device)?;
        let found = match is_transposed {
            false => {
                alone(Conv::same([1, 3, 3], Padding::Zero), &x, &[to, 3, 3, from], to, repeats)
            }
            true => alone(ConvTranspose::patches([1, 2, 2]), &x, &[from, 2, 2, to], to, repeats),
        }?;
        sum += found;
        layers.insert(name, Value::from((found * 100.0).round() / 100.0));
    }
    println!(
        "{}",
        json!({"parameters": count, "median_ms": updates[updates.len() / 2], "minimum_ms": updates[0],
               "loss": training.last_loss(), "activation_bytes": training.activations,
               "convolutions_ms": sum, "peak_rss_bytes": peak, "peak_device_bytes": on_device, "layers": layers})
    );
    Ok(())
}

/// Name, side of the input's grid, channels, and whether it is transposed, of each convolution.
fn convolutions(grid: usize) -> Vec<(String, usize, [usize; 2], bool)> {
    let width = |level: usize| HIDDEN << level;
    let mut all = vec![("input".to_string(), grid, [INPUT, HIDDEN], false)];
    let mut double = |name: String, side: usize, from: usize, to: usize| {
        all.push((format!("{name}.0"), side, [from, to], false));
        all.push((format!("{name}.1"), side, [to, to], false));
    };
    for level in 0..LEVELS {
        double(format!("down.{level}"), grid >> level, width(level), width(level + 1));
    }
    double("bottom".into(), grid >> LEVELS, width(LEVELS), width(LEVELS + 1));
    for level in (0..LEVELS).rev() {
        let to = width(level + 1);
        double(format!("up.{level}"), grid >> level, 2 * to, to);
    }
    for level in (0..LEVELS).rev() {
        let sizes = [width(level + 2), width(level + 1)];
        all.push((format!("up.{level}.transposed"), grid >> (level + 1), sizes, true));
    }
    all
}

/// Median milliseconds of an op with the weight `w` and a bias, forward and backward.
fn alone(
    op: impl Op + Copy + 'static,
    x: &Tensor,
    w: &[usize],
    bias: usize,
    repeats: usize,
) -> unix::Result<f64> {
    let (device, dtype) = (x.device(), x.dtype());
    let given = |shape: &[usize], i| random(shape, i).to_dtype(dtype).to_device(device);
    let (w, bias) = (given(w, 3)?, given(&[bias], 4)?);
    let mut dy = None;
    let all = times(repeats, || {
        let tape = Tape::new();
        let [x, w, bias] = [x, &w, &bias].map(|t| tape.leaf(t.clone()));
        let y = tape.apply(op, &[&x, &w, &bias])?;
        let dy: &Tensor = match &mut dy {
            Some(dy) => dy,
            none => none.insert(given(y.shape(), 5)?),
        };
        drop(tape.backward_from(&y, dy.clone())?);
        if device == Device::Cpu { Ok(()) } else { kernel::finish(device) }
    })?;
    Ok(all[all.len() / 2])
}
