//! Training updates and predictions of the task `classify`, for comparison with other programs: the counterpart of
//! `tests/peers/text_update.py`, which says what is measured.
//!
//! The model has random weights and two labels, in the shapes of bert-base unless
//! options say otherwise. Batches are made by the task's own code, and in the order in which training reads them.
//!
//! Reads requests from standard input, one word a line, and answers each with a JSON object on a line: after `update`,
//! `predict`, `max` (an update of texts of various lengths, padded to the longest of all) and `buckets` (batches of
//! texts of similar length, padded to the longest of the batch), `ms` and the number of tokens with padding; after
//! `products`, the milliseconds of an update and of its matrix products; after `predict-products`, those of a
//! prediction, which are measured on the CPU only; after `peak`, the peaks of resident memory and of the device's tensors so
//! far; after `loss`, that of the last update. `--device cuda` and `--precision bf16` measure a GPU, `--compile` with passes
//! recorded as CUDA graphs while the shapes of batches stay the same.

mod peer;

use clap::Parser;
use data::loader::{Buckets, Mixture};
use data::text::{SpecialTokens, TokenInfo};
use learn::forward::Forward;
use learn::params::Builder;
use learn::task::Batch;
use peer::{Place, Training};
use serde_json::{Value, json};
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Instant;
use tasks::text::classify::{Classifier, ClassifyModel};
use tasks::text::encoder::EncoderConfig;
use tasks::text::{TextModel, padded};
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tape, Tensor, constant, kernel, product};
use unix::{Error, Result};

/// Time training updates and predictions of the task classify, as requests on standard input say
#[derive(Parser)]
#[command(name = "text_update")]
struct Args {
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Tokens of the longest text
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    #[arg(long, default_value_t = 30522)]
    vocabulary: usize,
    #[arg(long, default_value_t = 768)]
    hidden: usize,
    #[arg(long, default_value_t = 12)]
    depth: usize,
    #[arg(long, default_value_t = 12)]
    heads: usize,
    /// Width of the MLP
    #[arg(long, default_value_t = 3072)]
    wide: usize,
    /// Lengths of texts, separated by commas, for the requests max and buckets
    #[arg(long, value_delimiter = ',')]
    lengths: Vec<u32>,
    #[command(flatten)]
    place: Place,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| args.place.inside(|device, dtype| serve(&args, device, dtype)))
}

/// The model in training, and the texts it reads.
struct Bench {
    model: Classifier,
    training: Training,
    device: Device,
    dtype: Dtype,
    batch: usize,
    /// Tokens of the longest text.
    tokens: usize,
    /// Lengths of texts of various lengths, and the batches they are read in.
    lengths: Vec<u32>,
    order: Mixture,
    vocabulary: usize,
    /// Updates so far, and those of each kind of texts of various lengths.
    updates: usize,
    varied: [u64; 2],
}

/// What is done with a batch.
#[derive(Clone, Copy)]
enum Work {
    Update,
    Predict,
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
        let &Args { batch, tokens, vocabulary, .. } = args;
        let encoder = EncoderConfig {
            hidden_size: args.hidden,
            num_hidden_layers: args.depth,
            num_attention_heads: args.heads,
            intermediate_size: args.wide,
            ..EncoderConfig::default()
        };
        let special = SpecialTokens {
            padding: 0,
            cls: Some(2),
            sep: Some(3),
            mask: Some(4),
            unk: Some(1),
            bos: None,
            eos: None,
        };
        let info = TokenInfo {
            chat: None,
            labels: vec!["no".into(), "yes".into()],
            multi_label: false,
            pairs: false,
            answers: false,
            stride: 0,
            vocabulary,
            special,
            max_length: tokens,
            tokenizer_hash: String::new(),
            vector: 0,
            vectors_only: false,
            language: None,
            embedding: None,
        };
        let mut builder = Builder::new(1);
        let config = ClassifyModel { encoder, ..ClassifyModel::default() };
        let model = Classifier::new(&mut builder, &config, &info);
        builder.check()?;
        let lengths = args.lengths.clone();
        let order = Mixture::new(1, &[(lengths.len().max(1) as u64, 1.0)], batch as u64)?
            .with_buckets(Some(Buckets { lengths: lengths.clone(), pool: 32 }));
        let training = Training::new(builder.finish(), device, &args.place, 1.0)?;
        let (updates, varied) = (0, [0, 0]);
        Ok(Self {
            model,
            training,
            device,
            dtype,
            batch,
            tokens,
            lengths,
            order,
            vocabulary,
            updates,
            varied,
        })
    }

    fn answer(&mut self, request: &str) -> Result<Value> {
        let full = vec![self.tokens; self.batch];
        Ok(match request {
            "update" => self.timed(Work::Update, &full)?,
            "predict" => self.timed(Work::Predict, &full)?,
            "products" | "predict-products" if self.device == Device::Cpu => {
                let work = if request == "products" { Work::Update } else { Work::Predict };
                let (answer, products) = product::time_within(|| self.timed(work, &full));
                let ms = 1e3 * products.as_secs_f64() / tensor::parallel::threads() as f64;
                json!({"ms": answer?["ms"], "products_ms": ms})
            }
            "max" | "buckets" => {
                let which = usize::from(request == "buckets");
                let number = self.varied[which];
                self.varied[which] += 1;
                let samples = self.order.batch(number).into_iter();
                let lengths: Vec<usize> = samples
                    .filter_map(|i| self.lengths.get(i as usize))
                    .map(|length| *length as usize)
                    .collect();
                let lengths = if which == 0 { self.padded(lengths) } else { lengths };
                self.timed(Work::Update, &lengths)?
            }
            "parameters" => json!({"parameters": self.training.params.count()}),
            "peak" => json!({"peak_rss_bytes": peer::peak_rss(),
                             "peak_device_bytes": peer::peak_on(self.device)}),
            "loss" => json!({"loss": self.training.last_loss()}),
            other => return Err(Error::bug(format!("`{other}` is not a request"))),
        })
    }

    /// Lengths of a batch that is padded to the longest text of all: batches are padded to their own longest text, so
    /// one text gets that length.
    fn padded(&self, mut lengths: Vec<usize>) -> Vec<usize> {
        lengths.iter_mut().take(1).for_each(|length| *length = self.tokens);
        lengths
    }

    fn timed(&mut self, work: Work, lengths: &[usize]) -> Result<Value> {
        let batch = self.texts(lengths);
        let start = Instant::now();
        let batch = batch.to_device(self.device)?;
        match work {
            Work::Update => self.update(batch, lengths.len())?,
            Work::Predict => self.predict(&batch)?,
        }
        let ms = 1e3 * start.elapsed().as_secs_f64();
        let width = lengths.iter().max().map_or(0, |longest| longest.next_multiple_of(8));
        Ok(json!({"ms": ms, "tokens": width * lengths.len()}))
    }

    /// Random texts of these lengths.
    fn texts(&self, lengths: &[usize]) -> Batch {
        let philox = Philox::new(1, Purpose::Test).at_update(self.updates as u64);
        let ids: Vec<Vec<i32>> = (0..)
            .zip(lengths)
            .map(|(text, length)| {
                let id = |at| 5.0 + philox.uniform(text, at) * (self.vocabulary - 5) as f32;
                (0..*length as u64).map(|at| id(at) as i32).collect()
            })
            .collect();
        let types = vec![0_u8; self.tokens];
        let texts: Vec<(&[i32], &[u8])> =
            ids.iter().map(|ids| (ids.as_slice(), &types[..ids.len()])).collect();
        padded(&texts, 0, 0)
    }

    fn update(&mut self, batch: Batch, texts: usize) -> Result<()> {
        let counter = [1, 2, self.updates as i32, 0];
        self.updates += 1;
        self.training.counter = Some(Tensor::from_slice(&counter, &[4]).to_device(self.device)?);
        let classes: Vec<i32> = (0..texts as i32).map(|text| text % 2).collect();
        let classes = Tensor::from_slice(&classes, &[texts]).to_device(self.device)?;
        let weights = Tensor::full(&[texts], 1.0 / texts as f64, Dtype::F32);
        let weights = weights.to_device(self.device)?;
        let differing = batch.tensors().chain([&classes, &weights]).cloned().collect();
        let model = &self.model;
        self.training.update(self.dtype, differing, move |forward| {
            let found = model.forward(forward, &batch)?;
            let (classes, weights) = (constant(classes), constant(weights));
            forward.apply(CrossEntropy::default(), &[found.classes()?, &classes, &weights])
        })
    }

    fn predict(&self, batch: &Batch) -> Result<()> {
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, &self.training.params).computing_in(self.dtype)?;
        self.model.forward(&forward, batch)?;
        if self.device == Device::Cpu { Ok(()) } else { kernel::finish(self.device) }
    }
}
