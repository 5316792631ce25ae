//! Time and memory of one training update of task `cycle-vae`, for comparison with other programs: the counterpart of
//! `tests/peers/cycle_update.py`.
//!
//! Prints one JSON object: median and minimum milliseconds per update (forward, cross entropy of masked tokens and
//! squared error of latents, backward, clipping, AdamW) of --batch samples, half of them in each direction; the time of
//! its matrix products; the last loss; and the peaks of resident memory and of the device's tensors in bytes.

mod peer;

use clap::Parser;
use learn::params::Builder;
use learn::task::Batch;
use peer::{Place, Training, peak_rss, times};
use serde_json::json;
use std::process::ExitCode;
use tasks::multimodal::CycleVaeModel;
use tasks::multimodal::model::{Inputs, Network, Sizes};
use tensor::ops::binary::Binary;
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tensor, constant, product};

/// Time one training update of the task cycle-vae
#[derive(Parser)]
#[command(name = "cycle_update")]
struct Args {
    #[arg(long, default_value_t = 64)]
    hidden: usize,
    #[arg(long, default_value_t = 2)]
    depth: usize,
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Tokens of a text
    #[arg(long, default_value_t = 22)]
    tokens: usize,
    #[arg(long, default_value_t = 181)]
    vocabulary: usize,
    /// Dimension of a vector
    #[arg(long, default_value_t = 32)]
    vector: usize,
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Updates that are measured, after two
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    #[command(flatten)]
    place: Place,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| args.place.inside(|device, dtype| measure(&args, device, dtype)))
}

fn measure(args: &Args, device: Device, dtype: Dtype) -> unix::Result<()> {
    let config = CycleVaeModel {
        hidden: args.hidden,
        depth: args.depth,
        heads: args.heads,
        ..CycleVaeModel::default()
    };
    let sizes =
        Sizes { vocabulary: args.vocabulary, mask: 4, length: args.tokens, vector: args.vector };
    let mut builder = Builder::new(1);
    let network = Network::new(&mut builder, &config, sizes);
    builder.check()?;
    let params = builder.finish();
    let count = params.count();
    let mut training = Training::new(params, device, &args.place, 1.0)?;
    let batch = samples(&network, args.batch).to_device(device)?;
    let ones = Tensor::full(&[args.vector], 1.0, Dtype::F32).to_device(device)?;
    let mut update = || {
        training.update(dtype, Vec::new(), |forward| {
            let input = |name: &str| batch.input(forward, name);
            let [text, latent] = network.forward(forward, &Inputs::of(forward, &batch, "")?)?;
            let logits = network.logits(forward, &text)?;
            let [targets, weights] = [input("targets")?, input("weights")?];
            let text = forward.apply(CrossEntropy::default(), &[&logits, &targets, &weights])?;
            let found = network.latents(forward, &latent)?;
            let [targets, weights] = [input("latent_targets")?, input("latent_weights")?];
            let ones = constant(ones.clone());
            let latent = forward.apply(SquaredError, &[&found, &targets, &weights, &ones])?;
            forward.apply(Binary::Add, &[&text, &latent])
        })
    };
    let updates = times(args.repeats, &mut update)?;
    let (found, products) = product::time_within(|| times(args.repeats, &mut update));
    let repeats = (args.repeats + 2) * tensor::parallel::threads();
    println!(
        "{}",
        json!({"parameters": count, "median_ms": updates[updates.len() / 2], "minimum_ms": updates[0],
               "products_ms": found.map(|_| 1e3 * products.as_secs_f64() / repeats as f64)?,
               "loss": training.last_loss(), "peak_rss_bytes": peak_rss(), "peak_device_bytes": peer::peak_on(device)})
    );
    Ok(())
}

/// Random samples: of the first half, every second token is masked and the latent is clean; of the others, the latent is
/// noise.
fn samples(network: &Network, count: usize) -> Batch {
    let Sizes { vocabulary, mask, length, vector } = network.sizes();
    let philox = Philox::new(1, Purpose::Test);
    let half = count / 2;
    let (mut ids, mut targets, mut weights, mut times) = (vec![], vec![], vec![], vec![]);
    for sample in 0..count {
        for place in 0..length {
            let id = 5.0 + philox.uniform(sample as u64, place as u64) * (vocabulary - 5) as f32;
            let is_masked = sample < half && place % 2 == 0;
            ids.push(if is_masked { mask } else { id as i32 });
            targets.push(id as i32);
            let masked = (half * length.div_ceil(2)) as f32;
            weights.push(if is_masked { 1.0 / masked } else { 0.0 });
        }
        times.push(if sample < half { [0.5, 0.0] } else { [0.0, 1.0] });
    }
    let mut latents = vec![0.0; count * vector];
    philox.at_source(1).fill_normal(0, &mut latents);
    let of_latent = |sample| if sample < half { 0.0 } else { 5.0 / (count - half) as f32 };
    let latent_weights: Vec<f32> = (0..count).map(of_latent).collect();
    let batch = Batch::new(count as f64);
    network
        .add_inputs(batch, "", &ids, &latents, &times)
        .with("targets", Tensor::from_slice(&targets, &[targets.len()]))
        .with("weights", Tensor::from_slice(&weights, &[weights.len()]))
        .with("latent_targets", Tensor::from_slice(&latents, &[count, vector]))
        .with("latent_weights", Tensor::from_slice(&latent_weights, &[count]))
}
