//! Encoders that turn a text into a vector: a folder of transformers, or the encoder of a trained text model.

use super::options::{EmbedOptions, TokenPooling};
use crate::text::Classifier;
use crate::text::batch::{EncodedText, TextEncoder};
use crate::text::encoder::EncoderConfig;
use crate::text::head::pool;
use crate::text::joint::Joint;
use crate::text::pretrained::pretrained_encoder;
use crate::text::sets::trained_tokens;
use crate::text::span::SpanFinder;
use crate::text::task::{DefineText, EVAL_BATCH, require_fit};
use crate::text::trained::require_tokens_of;
use crate::trained::Opener;
use data::text::{Embedding, Tokenizer};
use learn::adapt::Lora;
use learn::params::{Builder, ParamSet};
use learn::task::Batch;
use learn::trained::{ComputeMode, Parts};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use unix::{Context, Error, Exit, Result, small};

/// The file in which sentence-transformers stores the maximum length of texts.
const LENGTH_FILE: &str = "sentence_bert_config.json";
/// Maximum size of that file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Vectors with a smaller norm are divided by this, as in torch.nn.functional.normalize.
const MIN_NORM: f64 = 1e-12;

/// An encoder with its weights.
struct Opened {
    encoder: TextEncoder,
    config: EncoderConfig,
    lora: Option<Lora>,
    params: ParamSet,
    /// The folder of the tokenizer.
    tokenizer: PathBuf,
    /// The length of texts that it was trained with, if known.
    max_length: Option<usize>,
}

/// An encoder of texts with its tokenizer.
pub(super) struct SentenceEncoder {
    encoder: TextEncoder,
    params: ParamSet,
    mode: ComputeMode,
    path: PathBuf,
    pooling: TokenPooling,
    normalize: bool,
    /// The encoder's own tokenizer.
    pub tokenizer: Tokenizer,
    /// Maximum number of tokens that the encoder reads.
    pub max_length: usize,
    /// Length of the vectors.
    pub dimensions: usize,
    /// Identifies the encoder and its settings.
    pub embedding: Embedding,
}

/// The vectors of some texts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Vectors {
    /// The vectors, one after the other.
    pub values: Vec<f32>,
    /// Number of texts of which the encoder read only the beginning.
    pub cut: usize,
}

impl SentenceEncoder {
    /// Opens the encoder at `path`: a folder of transformers, a run directory or a checkpoint.
    ///
    /// Errors: 2 for options that do not fit the encoder; 66, 65.
    pub fn open(path: &Path, opener: &Opener, options: &EmbedOptions) -> Result<Self> {
        let is_run = path.join("ckpt").is_dir() || path.join("manifest.json").is_file();
        let opened = match path.join("config.json").is_file() && !is_run {
            true => of_folder(path, opener)?,
            false => of_run(path, opener)?,
        };
        let Opened { encoder, config, lora, params, tokenizer, max_length } = opened;
        // Opened first without a maximum length, which depends on the padding token.
        let unlimited = Tokenizer::open(&tokenizer, usize::MAX)?;
        let longest = config.longest(unlimited.special().padding as usize);
        let max_length = match options.max_length() {
            Some(own) if own > longest => {
                return Err(Error::usage(format!(
                    "--max-length {own}: {} reads at most {longest} tokens",
                    path.display()
                )));
            }
            own => own.or(max_length).unwrap_or(longest).min(longest),
        };
        let (tokenizer, width) = (Tokenizer::open(&tokenizer, max_length)?, config.hidden_size);
        let dimensions = options.dimensions().unwrap_or(width);
        if dimensions > width {
            return Err(Error::usage(format!(
                "--dimensions {dimensions}: the vectors of {} have {width} numbers",
                path.display()
            )));
        }
        let shape = json!([
            config.model_type,
            config.num_attention_heads,
            config.layer_norm_eps,
            lora,
            params.trained.hash()?,
            params.frozen.hash()?,
            tokenizer.hash(),
        ]);
        let (pooling, normalize) = (options.pooling(), options.normalize);
        let embedding = Embedding {
            encoder: blake3::hash(shape.to_string().as_bytes()).to_hex().to_string(),
            pooling: pooling.to_string(),
            normalize,
            max_length,
            amp: opener.mode.amp,
        };
        let mode = opener.mode;
        let params = params.to_device(mode.device)?;
        let path = path.to_path_buf();
        Ok(Self {
            encoder,
            params,
            mode,
            path,
            pooling,
            normalize,
            tokenizer,
            max_length,
            dimensions,
            embedding,
        })
    }

    /// The vectors of texts, which are numbered from `first` in messages. Texts of similar length share a batch, so the
    /// batches depend on these texts alone. Errors: 1 for vectors that are not finite; 65.
    pub fn vectors(&self, texts: &[&str], first: usize) -> Result<Vectors> {
        let all: Vec<[Option<&str>; 2]> = texts.iter().map(|text| [Some(*text), None]).collect();
        let encoded = self.tokenizer.encode_all(&all)?;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|i| encoded[*i].ids.len());
        let mut values = vec![0.0; texts.len() * self.dimensions];
        for own in order.chunks(EVAL_BATCH) {
            let tokens = own.iter().map(|i| (&encoded[*i].ids[..], &encoded[*i].types[..]));
            let states = self.pooled(&tokens.collect::<Vec<_>>())?;
            let width = states.len() / own.len();
            for (i, state) in own.iter().zip(states.chunks_exact(width)) {
                let found = &mut values[i * self.dimensions..][..self.dimensions];
                found.copy_from_slice(&state[..self.dimensions]);
                if self.normalize {
                    normalize(found);
                }
                if let Some(at) = found.iter().position(|value| !value.is_finite()) {
                    let (path, text, value) = (self.path.display(), first + i, found[at]);
                    return Err(Error::new(
                        Exit::Failure,
                        format!("{path}: the vector of text {text} (from 0) is {value} at {at}"),
                    ));
                }
            }
        }
        let cut = encoded.iter().filter(|encoded| encoded.truncated).count();
        Ok(Vectors { values, cut })
    }

    /// The pooled states of a batch of texts, [B, H].
    fn pooled(&self, texts: &[EncodedText]) -> Result<Vec<f32>> {
        let batch = self.encoder.add(Batch::new(texts.len() as f64), "", texts);
        self.mode.run(&self.params, |forward| {
            let batch = batch.to_device(forward.device())?;
            let states = self.encoder.forward(forward, &batch, "")?;
            let pooled = forward.to_param_dtype(&pool(self.pooling, forward, &states)?)?;
            Ok(pooled.value().to_host()?.read::<f32>().to_vec())
        })
    }
}

/// Divides a vector by its Euclidean norm.
fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let norm = square.sqrt().max(MIN_NORM);
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
}

/// Opens a folder of transformers. Errors: 2 for `--with`; 66, 65.
fn of_folder(folder: &Path, opener: &Opener) -> Result<Opened> {
    #[derive(Deserialize)]
    struct Length {
        max_seq_length: Option<usize>,
    }
    if let Some((name, _)) = opener.with.first() {
        let text = format!("--with {name}: a folder of transformers depends on no other model");
        return Err(Error::usage(text));
    }
    let (config, init) = pretrained_encoder(folder)?;
    let tokenizer = Tokenizer::open(folder, usize::MAX)?;
    let mut builder = Builder::new(0);
    let (vocabulary, padding) = (tokenizer.vocabulary(), tokenizer.special().padding);
    let encoder = TextEncoder::with_vocabulary(&mut builder, &config, None, vocabulary, padding);
    builder.check()?;
    let mut params = builder.finish();
    init.apply(&mut params, false)?;
    let advice = "correct or remove it";
    let length: Option<Length> = small::read_json(&folder.join(LENGTH_FILE), MAX_BYTES, advice)?;
    Ok(Opened {
        encoder,
        config,
        lora: None,
        params,
        tokenizer: folder.into(),
        max_length: length.and_then(|length| length.max_seq_length),
    })
}

/// Opens the encoder of a trained text model. Errors: 66; 65, also for a model without an encoder of texts.
fn of_run(path: &Path, opener: &Opener) -> Result<Opened> {
    let parts = Parts::read(path, opener.weights)?;
    let of: fn(&Parts, &Opener) -> Result<Opened> = match parts.task.as_str() {
        task if task == Classifier::SPEC.name => of_task::<Classifier>,
        task if task == SpanFinder::SPEC.name => of_task::<SpanFinder>,
        task if task == Joint::SPEC.name => of_task::<Joint>,
        task => {
            return Err(Error::data(format!(
                "{}: a model of task {task} does not encode texts; name a folder of transformers (config.json), or a run of \
                 task classify, span or joint",
                parts.origin.checkpoint.display()
            )));
        }
    };
    of(&parts, opener)
}

fn of_task<M: DefineText>(parts: &Parts, opener: &Opener) -> Result<Opened> {
    let (data, set) = trained_tokens(parts, opener)?;
    let info = set.info();
    let checkpoint = || parts.origin.checkpoint.display().to_string();
    let config: M::Config = parts.section("model").context(checkpoint)?;
    require_tokens_of(parts, info, &data.tokens)?;
    require_fit::<M>(&config, info, &data.tokens)?;
    let build = |b: &mut Builder| {
        let model = M::new(b, &config, info);
        b.check().map(|()| model.text_encoder().clone())
    };
    let trained = parts.restore(opener.mode, build).context(checkpoint)?;
    let (encoder, lora) = M::encoder(&config);
    Ok(Opened {
        encoder: trained.model,
        config: encoder.clone(),
        lora: lora.cloned(),
        params: trained.params,
        tokenizer: data.tokens,
        max_length: Some(info.max_length),
    })
}
