//! Training updates of the task `sft`, for comparison with other programs: the counterpart of
//! `tests/peers/decoder_update.py`, which says what is measured.
//!
//! The decoder is that of a folder of transformers, with an adapter of PEFT if it is given: both programs start from the
//! same values, read the same tokens and images, and so must report the same losses. Batches are made by the task's own code.
//!
//! Reads requests from standard input, one word a line, and answers each with a JSON object on a line: after `update`,
//! its milliseconds and its loss; after `products`, also those of its matrix products, on the CPU only; after `parameters`,
//! the numbers of trained and of all parameters; after `peak`, the peaks of resident memory and of the device's tensors so
//! far.

mod image_prefix;
mod peer;

use clap::Parser;
use image_prefix::{ImagePrefix, mixed};
use learn::adapt::{Lora, Targets};
use learn::foreign::{NameMap, folder_weights};
use learn::init::InitFrom;
use learn::optim::Method;
use learn::params::{Builder, Storage};
use learn::task::Batch;
use learn::trained::Weights;
use peer::{Place, Training};
use serde_json::{Value, json};
use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tasks::language::vision::{ADAPTED, Grid};
use tasks::language::{Labelled, Language, SftModel};
use tensor::{Device, Dtype, Tensor, product};
use unix::{Error, Result};

/// Time training updates of the task sft, as requests on standard input say
#[derive(Parser)]
#[command(name = "decoder_update")]
struct Args {
    /// Folder of transformers with config.json and weights
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Sequences in a batch
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Tokens of a sequence
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Patches of the image that each sequence begins with; the labels are the tokens after it
    #[arg(long, value_name = "ROWSxCOLUMNS", value_parser = image_prefix::grid)]
    image: Option<Grid>,
    /// Rank of the LoRA of all linear layers, in Qwen3-VL but the mergers, with α twice as large; 0: the whole model is trained
    #[arg(long, value_name = "R", default_value_t = 0)]
    lora: usize,
    /// Initial values of the adapter, adapter_model.safetensors of PEFT
    #[arg(long, value_name = "FILE")]
    adapter: Option<PathBuf>,
    /// How frozen weights are stored; by default as in the folder
    #[arg(long, value_name = "FORM", value_parser = ["bf16", "nf4"])]
    storage: Option<String>,
    /// The optimizer
    #[arg(long, value_name = "METHOD", value_parser = ["adamw", "adamw8bit"], default_value = "adamw")]
    optimizer: String,
    /// Share of the activations that is kept (training.mem_budget)
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    mem_budget: f64,
    #[command(flatten)]
    place: Place,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| args.place.inside(|device, dtype| serve(&args, device, dtype)))
}

/// The model in training.
struct Bench {
    model: Language,
    training: Training,
    device: Device,
    dtype: Dtype,
    /// Sequences and tokens of a batch.
    shape: [usize; 2],
    prefix: ImagePrefix,
    /// Updates so far.
    updates: usize,
}

fn serve(args: &Args, device: Device, dtype: Dtype) -> Result<()> {
    let mut bench = Bench::new(args, device, dtype)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::bug(format!("standard input: {error}")))?;
        println!("{}", bench.answer(line.trim())?);
    }
    Ok(())
}

impl Bench {
    fn new(args: &Args, device: Device, dtype: Dtype) -> Result<Self> {
        let config = SftModel::read(&args.folder)?;
        let prefix = ImagePrefix::new(&args.folder, &config, args.image)?;
        // The first token is no label.
        let labels = args.tokens.checked_sub(prefix.tokens.len().max(1)).filter(|n| *n > 0);
        let labels = labels.ok_or_else(|| Error::usage("--tokens: too few for a label"))?;
        let targets = if config.vision.is_some() { ADAPTED } else { learn::adapt::ALL_LINEAR };
        let lora = (args.lora > 0).then(|| Lora {
            r: args.lora,
            alpha: 2.0 * args.lora as f64,
            rslora: false,
            dropout: 0.0,
            targets: Targets::Pattern(targets.into()),
            pooler: false,
        });
        let config = SftModel { lora, ..config };
        let mut builder = Builder::replaced(1, vec!["*.lora_*".into()]);
        let model = Language::new(&mut builder, &config, 0);
        builder.check()?;
        let mut params = builder.finish();
        let init = InitFrom {
            from: folder_weights(&args.folder)?,
            weights: Weights::default(),
            storage: args.storage.as_deref().map(|form| match form {
                "nf4" => Storage::Nf4,
                _ => Storage::Bf16,
            }),
            names: NameMap::default(),
            adapter: args.adapter.clone(),
        };
        init.apply(&mut params, false)?;
        let (betas, epsilon) = ([0.9, 0.999], 1e-8);
        let method = match args.optimizer.as_str() {
            "adamw8bit" => Method::AdamW8bit { betas, epsilon },
            _ => Method::AdamW { betas, epsilon },
        };
        let training = Training::new(params, device, &args.place, args.mem_budget)?;
        let mut training =
            training.with_method(method).with_weight((args.batch * labels) as f64)?;
        training.params.frozen.prepare(dtype);
        let shape = [args.batch, args.tokens];
        Ok(Self { model, training, device, dtype, shape, prefix, updates: 0 })
    }

    fn answer(&mut self, request: &str) -> Result<Value> {
        Ok(match request {
            "update" => self.update()?,
            "products" if self.device == Device::Cpu => {
                let (answer, products) = product::time_within(|| self.update());
                let ms = 1e3 * products.as_secs_f64() / tensor::parallel::threads() as f64;
                json!({"ms": answer?["ms"], "products_ms": ms})
            }
            "parameters" => {
                let params = &self.training.params;
                json!({"trained": params.trained.count(), "parameters": params.count(),
                       "bytes": params.trained.bytes() + params.frozen.bytes()})
            }
            "peak" => json!({"peak_rss_bytes": peer::peak_rss(),
                             "peak_device_bytes": peer::peak_on(self.device)}),
            other => return Err(Error::usage(format!("`{other}` is not a request"))),
        })
    }

    /// Sequences of the same pseudorandom tokens and images as in the other program; all tokens of text are labels.
    fn sequences(&self) -> Result<Batch> {
        let ([batch, tokens], prefix) = (self.shape, &self.prefix);
        let first = self.updates * batch * tokens;
        let id = |at: usize| (mixed((first + at) as u64) % prefix.text as u64) as i32;
        let mut ids: Vec<i32> = (0..batch * tokens).map(id).collect();
        let mut counted = vec![1; tokens];
        counted[..prefix.tokens.len()].fill(0);
        ids.chunks_exact_mut(tokens)
            .for_each(|own| own[..prefix.tokens.len()].copy_from_slice(&prefix.tokens));
        let values = prefix.values(self.updates * batch, batch);
        let of = |(i, ids)| Labelled { ids, counted: &counted, images: prefix.images(&values, i) };
        let sequences: Vec<Labelled> = ids.chunks_exact(tokens).enumerate().map(of).collect();
        self.model.batch(&sequences, Dtype::F32)
    }

    fn update(&mut self) -> Result<Value> {
        let batch = self.sequences()?;
        let labels = batch.weight().item();
        self.updates += 1;
        let start = Instant::now();
        let batch = batch.to_device(self.device)?;
        let differing: Vec<Tensor> = batch.tensors().cloned().collect();
        let counter = Tensor::from_slice(&[1, 2, self.updates as i32, 0], &[4]);
        self.training.counter = Some(counter.to_device(self.device)?);
        let model = &self.model;
        self.training.update(self.dtype, differing, move |forward| {
            forward.to_param_dtype(&model.loss(forward, &batch)?)
        })?;
        let ms = 1e3 * start.elapsed().as_secs_f64();
        Ok(json!({"ms": ms, "loss": self.training.last_loss().map(|sum| sum / labels)}))
    }
}
