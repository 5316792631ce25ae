//! The task `classify`: one class for each text or pair of texts.

use super::batch::padded;
use super::encoder::{Encoder, EncoderConfig, Tokens};
use super::head::{Head, HeadConfig};
use super::loss::ClassifyLoss;
use crate::regression::TrainOn;
use data::inputs::InputFile;
use data::loader::Buckets;
use data::split::SplitName;
use data::text::{TokenInfo, TokenSet};
use learn::adapt::Lora;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{Batch, Buffers, ConfigOf, Define, Direction, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::{Tensor, Var};
use unix::config::{Violations, within};
use unix::{Error, Result};

/// The training and validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifyData {
    /// Token ids of the splits, a directory written by `ds-prep tokenize`.
    pub tokens: PathBuf,
    /// The splits to train on.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Batches per pool: within each pool, texts are sorted by length and cut into batches, which are then read in random
    /// order. Larger pools need less padding. 0 or 1: batches of random lengths.
    #[serde(default = "bucket_batches")]
    #[schemars(range(min = 0, max = 10_000))]
    pub bucket_batches: u64,
}

fn bucket_batches() -> u64 {
    32
}

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassifyModel {
    /// Encoder; its vocabulary is that of the tokens.
    pub encoder: EncoderConfig,
    /// Pooling and layers after the encoder.
    pub head: HeadConfig,
    /// Low-rank adaptation of the encoder, whose own weights are frozen. Null: all weights are trained.
    pub lora: Option<Lora>,
}

/// The configuration of the task.
pub type ClassifyConfig = Config<ClassifyData, ClassifyModel, ClassifyLoss>;

/// Classification of texts.
pub struct ClassifyTask {
    model: Classifier,
    loss: ClassifyLoss,
    train: Vec<TokenSet>,
    /// Batches per pool of texts that are sorted by length.
    bucket_batches: u64,
    validation: TokenSet,
    /// Weight of each class, and the factor of its loss in addition (α of a focal loss).
    weights: Vec<f64>,
    factors: Vec<f64>,
}

/// Encoder and head.
#[derive(Clone, Debug)]
pub struct Classifier {
    encoder: Encoder,
    head: Head,
    /// Id of the padding token, and position of the first token.
    padding: [usize; 2],
}

impl Classifier {
    /// For tokens and labels of this kind.
    pub fn new(b: &mut Builder, config: &ClassifyModel, info: &TokenInfo) -> Self {
        let padding = info.special.padding as usize;
        Self {
            encoder: b.adapted(config.lora.as_ref(), |b| {
                Encoder::new(b, &config.encoder, info.vocabulary)
            }),
            head: Head::new(b, &config.encoder, &config.head, info.labels.len()),
            padding: [padding, config.encoder.first_position(padding)],
        }
    }

    /// A batch of texts.
    pub fn batch(&self, texts: &[(&[i32], &[u8])]) -> Batch {
        padded(texts, self.padding[0] as i32, self.padding[1])
    }

    /// Logits [B, classes].
    pub fn forward(&self, forward: &Forward, batch: &Batch) -> Result<Var> {
        let tokens = Tokens::of(batch, forward)?;
        let states = self.encoder.forward(forward, &tokens)?;
        let [mean, hidden] = ["mean", "hidden"].map(|name| batch.input(forward, name));
        let inputs = [&mean?, &hidden?, &tokens.lengths];
        forward.to_param_dtype(&self.head.forward(forward, &states, inputs)?)
    }
}

/// What does not fit between a model and its tokens. Errors: 78.
pub(super) fn require_fit(
    model: &ClassifyModel,
    info: &TokenInfo,
    folder: &std::path::Path,
) -> Result<()> {
    model.encoder.require_fit(info, folder)?;
    if info.multi_label {
        return Err(Error::config(format!(
            "{}: texts have several labels each; task classify learns one label for each text",
            folder.display()
        )));
    }
    if info.labels.len() < 2 {
        let found = info.labels.len();
        let text = format!("{}: {found} labels; two or more are needed", folder.display());
        return Err(Error::config(text));
    }
    Ok(())
}

impl Define for ClassifyTask {
    const SPEC: Spec =
        Spec::new("classify", "macro_f1", Direction::Maximize, include_str!("classify.yaml"));
    type Data = ClassifyData;
    type Model = ClassifyModel;
    type Loss = ClassifyLoss;

    fn violations(config: &ClassifyConfig) -> Violations {
        let mut violations: Violations =
            within("model.encoder", config.model.encoder.violations()).collect();
        violations.extend(within("model.head", config.model.head.violations()));
        violations.extend(Lora::violations(config.model.lora.as_ref(), config));
        violations.extend(within("loss", config.loss.violations()));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let ClassifyConfig { data, model, loss, seed, .. } = config;
        let open = |name| TokenSet::open(&data.tokens, name);
        let (training, validation) = (open(SplitName::Train)?, open(SplitName::Validation)?);
        for set in [&training, &validation] {
            if set.is_empty() {
                let text = format!(
                    "{}: the {} split is empty; run ds-prep split again with a share for it",
                    data.tokens.display(),
                    set.name()
                );
                return Err(Error::data(text));
            }
        }
        require_fit(model, training.info(), &data.tokens)?;
        let mut builder = Builder::new(*seed);
        let classifier = Classifier::new(&mut builder, model, training.info());
        builder.check()?;
        let mut train = vec![training];
        if data.train_on == TrainOn::TrainAndValidation {
            train.push(open(SplitName::Validation)?);
        }
        let mut counts = vec![0; train[0].info().labels.len()];
        for set in &train {
            (0..set.len()).for_each(|i| counts[class(set, i)] += 1);
        }
        let weights = loss.class_weights.of(&counts);
        let classes = counts.len();
        if loss.focal.is_some_and(|focal| focal.alpha.is_some()) && classes != 2 {
            return Err(Error::config(format!(
                "loss.focal.alpha is for two labels, but {} has {classes}; use loss.class_weights",
                data.tokens.display()
            )));
        }
        let factors = loss.focal.map_or(vec![1.0; classes], |focal| focal.factors(classes));
        let task = Self {
            model: classifier,
            loss: loss.clone(),
            train,
            bucket_batches: data.bucket_batches,
            validation,
            weights,
            factors,
        };
        Ok((task, builder.finish()))
    }
}

/// The class of each text of a set.
pub fn classes(set: &TokenSet) -> Vec<usize> {
    (0..set.len()).map(|i| class(set, i)).collect()
}

/// The class of a text.
pub(super) fn class(set: &TokenSet, i: usize) -> usize {
    set.label(i).first().map_or(0, |class| *class as usize)
}

impl Task for ClassifyTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(self.train.iter().map(|set| set.len() as u64).sum(), 1.0)]
    }

    fn buckets(&self) -> Option<Buckets> {
        Some(lengths(&self.train, self.bucket_batches))
    }

    fn data_hash(&self) -> String {
        self.train[0].hash().into()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.train[0].input_files()
    }

    fn batch(&self, _micro_batch: u64, _first: u64, samples: &[u64]) -> Result<Batch> {
        let own: Vec<(&TokenSet, usize)> =
            samples.iter().map(|sample| self.find(*sample)).collect();
        let texts: Vec<(&[i32], &[u8])> =
            own.iter().map(|(set, i)| (set.ids(*i), set.types(*i))).collect();
        let classes: Vec<i32> = own.iter().map(|(set, i)| class(set, *i) as i32).collect();
        let weights: Vec<f32> =
            classes.iter().map(|class| self.weights[*class as usize] as f32).collect();
        let total = weights.iter().map(|weight| f64::from(*weight)).sum();
        let factors = classes.iter().map(|class| self.factors[*class as usize] as f32);
        let weights: Vec<f32> = weights.iter().zip(factors).map(|(w, factor)| w * factor).collect();
        Ok(self
            .model
            .batch(&texts)
            .weighing(total)
            .with("classes", Tensor::from_slice(&classes, &[classes.len()]))
            .with("weights", Tensor::from_slice(&weights, &[weights.len()])))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let logits = self.model.forward(forward, batch)?;
        let [classes, weights] =
            [batch.input(forward, "classes")?, batch.input(forward, "weights")?];
        let op = CrossEntropy {
            smoothing: self.loss.label_smoothing,
            gamma: self.loss.focal.map_or(0.0, |focal| focal.gamma),
            ..CrossEntropy::default()
        };
        Ok(forward.apply(op, &[&logits, &classes, &weights])?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.validation.len() as u64
    }

    /// Metrics: accuracy, and macro averages of precision, recall and F1; loss, the mean cross entropy without weights.
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let set = &self.validation;
        let texts: Vec<(&[i32], &[u8])> =
            samples.iter().map(|i| (set.ids(*i as usize), set.types(*i as usize))).collect();
        let batch = self.model.batch(&texts).to_device(forward.device())?;
        let predictions = self.predict(forward, &batch)?;
        for (sample, logits) in samples.iter().zip(predictions.rows("logits")?) {
            let truth = class(set, *sample as usize);
            scores.confusion("", truth, largest(logits));
            scores.mean("loss", cross_entropy(logits, truth), 1.0);
        }
        Ok(())
    }

    /// Predicts `logits`, [classes].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let logits = self.model.forward(forward, batch)?.value().to_host()?;
        let classes = logits.width();
        Ok(Predictions::default().with("logits", classes, logits.read::<f32>().to_vec()))
    }

    fn buffers(&self) -> Buffers {
        super::trained::buffers(self.train[0].info())
    }
}

/// Buckets of texts by number of tokens, in pools of so many batches.
fn lengths(sets: &[TokenSet], pool: u64) -> Buckets {
    let of =
        |set: &TokenSet| -> Vec<u32> { (0..set.len()).map(|i| set.ids(i).len() as u32).collect() };
    Buckets { lengths: sets.iter().flat_map(of).collect(), pool }
}

impl ClassifyTask {
    fn find(&self, sample: u64) -> (&TokenSet, usize) {
        let (first, at) = (&self.train[0], sample as usize);
        match self.train.get(1) {
            Some(second) if at >= first.len() => (second, at - first.len()),
            _ => (first, at),
        }
    }
}

/// The index of the largest value, the first of several.
fn largest(values: &[f32]) -> usize {
    (0..values.len()).rev().max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap_or(0)
}

/// -log softmax(logits)[truth].
fn cross_entropy(logits: &[f32], truth: usize) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - most).exp()).sum();
    most + sum.ln() - f64::from(logits[truth])
}
