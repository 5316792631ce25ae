//! The task `sft`: supervised fine-tuning of a decoder on conversations. A sample is a conversation; the loss is the mean
//! cross entropy of the tokens that count, over the whole update.

use super::batch::{Labelled, Layout, by_length};
use super::config::{Architecture, DecoderConfig};
use super::fit::{image_tokens, require_fit, require_lengths, require_origin, special_tokens};
use super::model::{Decoder, Inputs, Sequences};
use super::record_patches::{self, Records};
use super::rope::Rope;
use super::vision::{VisionConfig, VisionTower};
use crate::text::{Sets, TextData};
use data::inputs::InputFile;
use data::loader::Buckets;
use data::text::chat::ImageTokens;
use learn::adapt::Lora;
use learn::config::Config;
use learn::dependency::{Dependencies, Dependency};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::{Direction, Scores};
use learn::task::{Batch, ConfigOf, Define, Empty, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::concat::Concat;
use tensor::ops::embedding::Embedding;
use tensor::{Dtype, Tensor, Var};
use unix::Result;
use unix::config::{Violations, within};

/// Tokens per batch in validation and evaluation, padding included.
const EVAL_TOKENS: usize = 8192;
/// What the manifest of a checkpoint calls the hash of the tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer";
/// What it calls the hash of the settings of the image processor.
pub(super) const PROCESSOR: &str = "image processor";
/// What it calls the hash of the chat template.
pub(super) const TEMPLATE: &str = "chat template";

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SftModel {
    /// Decoder.
    pub decoder: DecoderConfig,
    /// Vision tower, whose features take the places of image tokens in the decoder. Null: the model reads only text.
    pub vision: Option<VisionConfig>,
    /// Low-rank adaptation of decoder and vision tower, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
    /// Hash of the tokenizer of a pretrained decoder; tokens made with another one are refused. Null: not checked.
    pub tokenizer_hash: Option<String>,
}

impl SftModel {
    /// Violations that the schema does not express, by key, but those of `lora`.
    pub fn violations(&self) -> Violations {
        let mut violations: Violations = within("decoder", self.decoder.violations()).collect();
        let Some(vision) = &self.vision else { return violations };
        violations.extend(within("vision", vision.violations(&self.decoder)));
        if self.decoder.model_type != Architecture::Qwen3 {
            let text = "must be qwen3: no other decoder has a vision tower (model.vision)";
            violations.push(("decoder.model_type".into(), text.into()));
        }
        violations
    }
}

/// The configuration of the task.
pub type SftConfig = Config<TextData, SftModel, Empty>;

/// A decoder with what it needs to read conversations: the layout of tokens, and a vision tower if there may be images.
#[derive(Clone, Debug)]
pub struct Language {
    pub(super) decoder: Decoder,
    tower: Option<VisionTower>,
    pub(super) layout: Layout,
    /// Number of tokens in the vocabulary.
    pub(super) vocabulary: usize,
    /// Longest sequence.
    pub(super) longest: usize,
}

impl Language {
    /// Builds the model; sequences are padded with the token `padding`. Parameters have the names that transformers gives them:
    /// those of the tower begin with `model.visual`, and those of the decoder but the head with `model.language_model`, or with
    /// `model` if there is no tower. For layer-wise learning-rate decay, the tower has the depth of the token embeddings.
    pub fn new(b: &mut Builder, config: &SftModel, padding: i32) -> Self {
        let SftModel { decoder: shape, vision, .. } = config;
        let (tower, decoder) = b.adapted(config.lora.as_ref(), |b| match vision {
            Some(vision) => {
                let tower = b.at_depth(shape.num_hidden_layers as u32 + 1, |b| {
                    b.scope("model.visual", |b| VisionTower::new(b, vision))
                });
                (Some(tower), Decoder::within(b, "model.language_model", shape))
            }
            None => (None, Decoder::new(b, shape)),
        });
        let rope = Rope::new(&shape.rope_parameters, shape.head_size());
        Self {
            decoder,
            tower,
            layout: Layout { rope, padding, vision: vision.clone() },
            vocabulary: shape.vocab_size,
            longest: shape.max_position_embeddings,
        }
    }

    /// The batch of these sequences, each padded to the length T of the longest one, rounded up to a multiple of 8;
    /// floating-point tensors in `dtype`, f32, or f64 if the parameters are f64.
    ///
    /// Tensors: `ids`, i32 [B, T]; `lengths`, i32 [B]; `angles`, cosines and sines of the positions, [T, D], or [B, T, D] with
    /// images; `rows`, i32 [L], the positions b·T + t whose next token is a label, in the order of the sequences, and `targets`,
    /// i32 [L], these labels. L is rounded up in the same way, with targets that the loss ignores. The weight of the batch is
    /// the number of labels.
    ///
    /// Only if there is an image, those of all sequences, in order, padded to the number of patches P of the largest: `patches`,
    /// [N, P, 3·patch_size²]; `patch_angles`, [N, P, D]; `patch_positions`, i32 [N, P, 4], and `patch_weights`, [N, P, 4], rows
    /// of the table of learned positions and their weights; `patch_counts`, i32 [N], the numbers of patches; `image_rows`, i32
    /// [B·T], the row of each token among those of all tokens and, after them, of the features of the images; and
    /// `image_features`, i32 [B·T], for each token 0, or 1 + its row among these features. Such a batch is variant 1. Dropout of
    /// the tower (LoRA) draws a mask for each image and not for each sequence.
    ///
    /// Errors: 65 when the image tokens of a sequence are not those of its images, or it has images and the model no tower.
    pub fn batch(&self, sequences: &[Labelled], dtype: Dtype) -> Result<Batch> {
        self.layout.batch(sequences, dtype)
    }

    /// What the first layers of the decoder read of a batch.
    pub(super) fn inputs(&self, forward: &Forward, batch: &Batch) -> Result<Inputs> {
        let mut inputs = self.decoder.inputs(forward, &Sequences::of(batch, forward)?)?;
        if let Some(tower) = &self.tower {
            tower.insert(forward, batch, &mut inputs)?;
        }
        Ok(inputs)
    }

    /// The last hidden states of a batch after their normalization, [B, T, H]; those of padding have no meaning.
    fn states(&self, forward: &Forward, batch: &Batch) -> Result<Var> {
        let inputs = self.inputs(forward, batch)?;
        forward.part("decoder", || self.decoder.states(forward, &inputs))
    }

    /// The logits of the token that follows each token of a batch, [B, T, V].
    pub fn logits(&self, forward: &Forward, batch: &Batch) -> Result<Var> {
        self.decoder.logits(forward, &self.states(forward, batch)?)
    }

    /// The sum of the cross entropies of the labels of a batch, [1].
    pub fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Var> {
        let [rows, targets] = ["rows", "targets"].map(|name| batch.input(forward, name));
        self.loss_of(forward, &self.states(forward, batch)?, &rows?, &targets?)
    }

    /// The sum over `rows` of the states [B, T, H] of the cross entropy of `targets`, [1]. The head is applied to no other
    /// rows.
    fn loss_of(&self, forward: &Forward, states: &Var, rows: &Var, targets: &Var) -> Result<Var> {
        let (width, count) = (states.value().width(), states.value().rows());
        let states = states.reshape(&[count, width]);
        self.decoder.loss(forward, &forward.apply(Embedding, &[&states, rows])?, targets)
    }

    /// The sum of the cross entropies of the labels of each sequence.
    pub fn losses(&self, forward: &Forward, sequences: &[Labelled]) -> Result<Vec<f64>> {
        let lengths: Vec<usize> = sequences.iter().map(|own| own.ids.len()).collect();
        let mut found = vec![0.0; sequences.len()];
        for which in by_length(&lengths, EVAL_TOKENS) {
            let own: Vec<Labelled> = which.iter().map(|i| sequences[*i]).collect();
            let batch = self.batch(&own, float_of(forward))?.to_device(forward.device())?;
            let states = self.states(forward, &batch)?;
            let width = states.shape()[1];
            let mut sums = Vec::new();
            for (b, own) in own.iter().enumerate() {
                let (rows, targets) = own.labelled_rows(b * width);
                let [rows, targets] = [rows, targets]
                    .map(|all| forward.data(&Tensor::from_slice(&all, &[all.len()])));
                let sum = self.loss_of(forward, &states, &rows?, &targets?)?;
                sums.push(forward.to_param_dtype(&sum)?);
            }
            let all = forward.apply(Concat { axis: 0 }, &sums.iter().collect::<Vec<_>>())?;
            for (i, sum) in which.iter().zip(all.value().to_host()?.to_f64()) {
                found[*i] = sum;
            }
        }
        Ok(found)
    }
}

/// The dtype of the floating-point tensors of a batch for `forward`.
pub(super) fn float_of(forward: &Forward) -> Dtype {
    if forward.dtype() == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
}

/// The task that fine-tunes a decoder.
pub struct SftTask {
    model: Language,
    sets: Sets,
    /// The set and the record of each sample.
    samples: Vec<(usize, usize)>,
    /// What the images are cut with.
    images: Option<ImageTokens>,
}

impl Define for SftTask {
    const SPEC: Spec = Spec::new("sft", "loss", Direction::Minimize, include_str!("sft.yaml"));
    type Data = TextData;
    type Model = SftModel;
    type Loss = Empty;

    fn violations(config: &SftConfig) -> Violations {
        let mut violations: Violations = within("model", config.model.violations()).collect();
        violations.extend(Lora::violations(config.model.lora.as_ref(), config));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let (sets, folder) = (Sets::open(&config.data)?, &config.data.tokens);
        require_fit(&config.model, sets.info(), folder)?;
        for set in sets.train.iter().chain([&sets.validation]) {
            require_lengths(&config.model, set, folder)?;
        }
        if let Some(init) = config.init.as_ref().filter(|init| init.from.is_dir()) {
            require_origin(init, sets.info(), folder)?;
        }
        let all = sets.train.iter().chain([&sets.validation]);
        let images = all.map(|set| image_tokens(&config.model, set)).collect::<Result<Vec<_>>>()?;
        let images = images.into_iter().flatten().next();
        let mut builder = Builder::of(config);
        let model = Language::new(&mut builder, &config.model, sets.info().special.padding);
        builder.check()?;
        let samples = sets.numbered().collect();
        Ok((Self { model, sets, samples, images }, builder.finish()))
    }
}

impl Task for SftTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(self.samples.len() as u64, 1.0)]
    }

    fn buckets(&self) -> Option<Buckets> {
        let length = |(set, i): &(usize, usize)| self.sets.train[*set].ids(*i).len();
        Some(self.sets.buckets(self.samples.iter().map(length)))
    }

    fn data_hash(&self) -> String {
        self.sets.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.sets.input_files()
    }

    fn batch(&self, _micro_batch: u64, _first: u64, samples: &[u64]) -> Result<Batch> {
        let records = samples.iter().map(|sample| {
            let (set, i) = self.samples[*sample as usize];
            (&self.sets.train[set], i)
        });
        let read = Records::read(records, self.images.as_ref())?;
        self.model.batch(&read.labelled(), Dtype::F32)
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        Ok(self.model.loss(forward, batch)?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.sets.validation.len() as u64
    }

    /// `loss`: the mean cross entropy of the labels, in nats.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let records = samples.iter().map(|i| (&self.sets.validation, *i as usize));
        let read = Records::read(records, self.images.as_ref())?;
        let sequences = read.labelled();
        for (own, sum) in sequences.iter().zip(self.model.losses(forward, &sequences)?) {
            let labels = own.labels().count() as f64;
            scores.mean("loss", sum / labels, labels);
        }
        Ok(())
    }

    /// Predicts `logits` of the token that follows each sequence, [vocab_size].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let states = self.model.states(forward, batch)?;
        let (width, count) = (states.value().width(), states.value().rows());
        let lengths = batch.input(forward, "lengths")?.value().to_host()?;
        let tokens = states.shape()[1] as i32;
        let last = |(b, length): (usize, &i32)| b as i32 * tokens + length - 1;
        let rows: Vec<i32> = lengths.read::<i32>().iter().enumerate().map(last).collect();
        let rows = forward.data(&Tensor::from_slice(&rows, &[rows.len()]))?;
        let states = forward.apply(Embedding, &[&states.reshape(&[count, width]), &rows])?;
        let logits = self.model.decoder.logits(forward, &states)?;
        let logits = forward.to_param_dtype(&logits)?.value().to_host()?;
        let width = logits.width();
        Ok(Predictions::default().with("logits", width, logits.read::<f32>().to_vec()))
    }

    fn check(&self) -> Vec<(&'static str, Result<String>)> {
        let tokenizer = special_tokens(self.sets.info(), self.model.vocabulary);
        let validation = &self.sets.validation;
        let validation = (0..validation.len()).map(|i| (validation, i));
        let images = self.images.as_ref().map(|tokens| {
            ("images", record_patches::check(self.sets.records().chain(validation), tokens))
        });
        [("tokenizer", tokenizer)].into_iter().chain(images).collect()
    }

    fn dependencies(&self) -> Dependencies {
        let info = self.sets.info();
        let template = info.chat.as_ref().map(|chat| (TEMPLATE, chat.template.clone()));
        let images = info.chat.as_ref().and_then(|chat| chat.images.as_ref());
        let processor = images.filter(|_| self.images.is_some()).map(|own| own.processor.clone());
        let processor = processor.map(|hash| (PROCESSOR, hash));
        let all = template.into_iter().chain([(TOKENIZER, info.tokenizer_hash.clone())]);
        let all = all.chain(processor);
        all.map(|(name, hash)| (name.into(), Dependency::new(None, hash))).collect()
    }
}
