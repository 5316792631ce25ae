//! Generation with a decoder in a folder of transformers, for comparison with other programs: the counterpart of
//! `tests/peers/generation.py`, which says what is measured.
//!
//! Reads requests from standard input, one a line, and answers each with a JSON object on a line: after
//! `generate BATCH PROMPT NEW`, the milliseconds in which NEW tokens are added greedily to each of BATCH prompts of PROMPT
//! tokens, and the ids; after `products BATCH PROMPT NEW`, also the milliseconds in matrix products; after `parameters`,
//! their number and bytes.

mod image_prefix;
#[allow(dead_code, reason = "nothing is trained")]
mod peer;

use clap::Parser;
use image_prefix::ImagePrefix;
use learn::foreign;
use learn::forward::Forward;
use learn::generate::{Generation, Prompt, Sampling, generate};
use learn::params::{Builder, ParamSet};
use peer::Place;
use serde_json::{Value, json};
use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tasks::language::vision::{Grid, Images};
use tasks::language::{Generator, Language, SftModel};
use tensor::product::{self, bf16::Rounding};
use tensor::{Device, Dtype, Tape, Tensor};
use unix::{Error, Result};

/// Time generation with a decoder, as requests on standard input say
#[derive(Parser)]
#[command(name = "generation")]
struct Args {
    /// Folder of transformers with config.json and weights
    #[arg(long, value_name = "FOLDER")]
    model: PathBuf,
    /// Patches of the image that each prompt begins with
    #[arg(long, value_name = "ROWSxCOLUMNS", value_parser = image_prefix::grid)]
    image: Option<Grid>,
    /// Round the operands of products to bf16, as `evaluate predict --amp` on the CPU
    #[arg(long)]
    amp: bool,
    #[command(flatten)]
    place: Place,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| args.place.inside(|device, dtype| serve(&args, device, dtype)))
}

fn serve(args: &Args, device: Device, dtype: Dtype) -> Result<()> {
    let config = SftModel::read(&args.model)?;
    let mut builder = Builder::new(1);
    let model = Language::new(&mut builder, &config, 0);
    builder.check()?;
    let mut params = builder.finish();
    let file = foreign::open(&foreign::folder_weights(&args.model)?)?;
    let read = |entry: &_| file.read(entry, Dtype::F32);
    let values: Vec<(String, Tensor)> = file
        .tensors()
        .iter()
        .map(|entry| Ok((entry.name.clone(), read(entry)?)))
        .collect::<Result<_>>()?;
    params.trained.assign(&values)?;
    let params = ParamSet { trained: params.trained.to_dtype(dtype), ..params };
    let mut params = params.to_device(device)?;
    params.compact(args.amp);
    let _rounding = args.amp.then(Rounding::begin);
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &params);
    let prefix = ImagePrefix::new(&args.model, &config, args.image)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::bug(format!("standard input: {error}")))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["parameters"] => {
                json!({"parameters": params.trained.count(), "bytes": params.trained.bytes()})
            }
            ["generate", ref sizes @ ..] => timed(&forward, &model, &prefix, sizes)?,
            ["products", ref sizes @ ..] => {
                let (answer, products) =
                    product::time_within(|| timed(&forward, &model, &prefix, sizes));
                let mut answer = answer?;
                answer["products_ms"] = json!(1e3 * products.as_secs_f64());
                answer
            }
            _ => return Err(Error::usage(format!("`{line}` is not a request"))),
        };
        println!("{answer}");
    }
    Ok(())
}

fn timed(
    forward: &Forward,
    model: &Language,
    prefix: &ImagePrefix,
    sizes: &[&str],
) -> Result<Value> {
    let numbers: Option<Vec<usize>> = sizes.iter().map(|word| word.parse().ok()).collect();
    let Some(&[batch, tokens, new]) = numbers.as_deref() else {
        return Err(Error::usage(format!("{sizes:?} are not BATCH PROMPT NEW")));
    };
    if tokens < prefix.tokens.len() {
        return Err(Error::usage(format!("the image takes {} tokens", prefix.tokens.len())));
    }
    // The same prompts as in the other program.
    let id = |row: usize, i: usize| match prefix.tokens.get(i) {
        Some(token) => *token,
        None => ((i * i * 31 + i * 7 + row * 13) % prefix.text) as i32,
    };
    let ids: Vec<Vec<i32>> =
        (0..batch).map(|row| (0..tokens).map(|i| id(row, i)).collect()).collect();
    let values = prefix.values(0, batch);
    let images: Vec<Images> = (0..batch).map(|row| prefix.images(&values, row)).collect();
    let generator = Generator::new(forward, model).with_images(&images);
    let prompts: Vec<Prompt> =
        ids.iter().zip(0..).map(|(ids, number)| Prompt { ids, number }).collect();
    let sampling = Sampling::default();
    let options = Generation { sampling, max_new_tokens: new, stop: Vec::new(), max_repeat: 0 };
    let start = Instant::now();
    let found = generate(&generator, &prompts, &options)?;
    let ms = 1e3 * start.elapsed().as_secs_f64();
    let found: Vec<Vec<i32>> = found.into_iter().map(|sample| sample.ids).collect();
    Ok(json!({"ms": ms, "ids": found}))
}
