//! The task `span`: the part of a context that answers a question, or that is of the kind that was annotated.
//!
//! A sample of training is a window of a context; a record is scored as a whole. Windows without the answer are trained to
//! point to the first special token (Devlin et al. 2019, section 4.3).

mod baselines;
mod decode;
mod metrics;
mod model;
mod scores;

pub use decode::{Candidate, Decoded, decode, fit_threshold};
pub use metrics::{Agreement, Answer, means, normalised, word_f1};
pub use model::{SpanFinder, SpanHead, SpanHeadConfig, SpanModel, span_loss};
pub(super) use model::{add_windows, require_answers, with_answers};
pub use scores::SpanScores;

use super::sets::{Sets, TextData};
use data::inputs::InputFile;
use data::loader::Buckets;
use data::text::{TokenInfo, TokenSet, Window};
use learn::adapt::Lora;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::score::Scores;
use learn::task::{
    Batch, Buffers, ConfigOf, Define, Direction, Empty, Loss, Predictions, Spec, Task,
};
use std::path::Path;
use tensor::Var;
use unix::Result;
use unix::config::{Violations, within};

/// The configuration of the task.
pub type SpanConfig = Config<TextData, SpanModel, Empty>;

/// Windows per forward run of a validation.
const WINDOWS: usize = 32;

/// Answers in contexts.
pub struct SpanTask {
    model: SpanFinder,
    windows: Windows,
}

/// The opened splits, and the windows of the training split.
pub(super) struct Windows {
    pub sets: Sets,
    /// The set and the window of each sample.
    samples: Vec<(usize, Window)>,
    /// The margin from which on validations in training take an answer for better than none: 0 if training has records
    /// without one.
    threshold: Option<f64>,
}

impl Windows {
    pub fn of(sets: Sets) -> Self {
        let windows = |(number, set): (usize, &TokenSet)| {
            let all = (0..set.len()).flat_map(|i| set.windows(i));
            all.map(|window| (number, window)).collect::<Vec<_>>()
        };
        let samples = sets.train.iter().enumerate().flat_map(windows).collect();
        let has_no_answer = sets.records().any(|(set, i)| set.answer(i).is_none());
        Self { sets, samples, threshold: has_no_answer.then_some(0.0) }
    }

    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn buckets(&self) -> Buckets {
        let tokens = |(set, window): &(usize, Window)| {
            let (set, i) = (&self.sets.train[*set], window.record);
            set.ids(i).len() - set.context_tokens(i).len() + window.tokens.len()
        };
        self.sets.buckets(self.samples.iter().map(tokens))
    }

    pub fn pick(&self, samples: &[u64]) -> Vec<(&TokenSet, &Window)> {
        let of = |sample: &u64| {
            let (set, window) = &self.samples[*sample as usize];
            (&self.sets.train[*set], window)
        };
        samples.iter().map(of).collect()
    }

    /// Adds the metrics of these validation records to `scores`; `run` computes the logits [B, T, 2] of windows.
    pub fn evaluate(
        &self,
        samples: &[u64],
        longest: usize,
        scores: &mut Scores,
        run: impl Fn(&[(&TokenSet, &Window)]) -> Result<Var>,
    ) -> Result<()> {
        let set = &self.sets.validation;
        let windows: Vec<Window> = samples.iter().flat_map(|i| set.windows(*i as usize)).collect();
        let mut logits: Vec<Vec<f32>> = Vec::with_capacity(windows.len());
        for own in windows.chunks(WINDOWS) {
            let own: Vec<_> = own.iter().map(|window| (set, window)).collect();
            logits.extend(rows(&run(&own)?)?);
        }
        let all: Vec<_> = windows.iter().zip(logits.iter().map(Vec::as_slice)).collect();
        for own in all.chunk_by(|a, b| a.0.record == b.0.record) {
            let record = own[0].0.record;
            let found = decode(own, longest, 1).answer(self.threshold);
            let agreement = Agreement::of(predicted(set, record, found), truth(set, record));
            for (name, value) in agreement.values() {
                scores.mean(name, value, 1.0);
            }
        }
        Ok(())
    }
}

/// What does not fit between a model and its tokens. Errors: 78.
pub(super) fn require_fit(model: &SpanModel, info: &TokenInfo, folder: &Path) -> Result<()> {
    require_answers(info, folder)?;
    model.encoder.require_fit(info, folder)
}

impl Define for SpanTask {
    const SPEC: Spec =
        Spec::new("span", "exact_match", Direction::Maximize, include_str!("span.yaml"));
    type Data = TextData;
    type Model = SpanModel;
    type Loss = Empty;

    fn violations(config: &SpanConfig) -> Violations {
        let mut violations: Violations =
            within("model.encoder", config.model.encoder.violations(config.keeps_frozen()))
                .collect();
        violations.extend(within("model.head", config.model.head.violations()));
        violations.extend(Lora::violations(config.model.lora.as_ref(), config));
        violations
    }

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let SpanConfig { data, model, .. } = config;
        let sets = Sets::open(data)?;
        require_fit(model, sets.info(), &data.tokens)?;
        let mut builder = Builder::of(config);
        let finder = SpanFinder::new(&mut builder, model, sets.info());
        builder.check()?;
        let windows = Windows::of(sets);
        Ok((Self { model: finder, windows }, builder.finish()))
    }
}

impl Task for SpanTask {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(self.windows.len() as u64, 1.0)]
    }

    fn buckets(&self) -> Option<Buckets> {
        Some(self.windows.buckets())
    }

    fn data_hash(&self) -> String {
        self.windows.sets.hash()
    }

    fn input_files(&self) -> Vec<InputFile> {
        self.windows.sets.input_files()
    }

    fn batch(&self, _micro_batch: u64, _first: u64, samples: &[u64]) -> Result<Batch> {
        let own = self.windows.pick(samples);
        Ok(with_answers(self.model.batch(&own), &own))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        let (logits, states) = self.model.forward(forward, batch)?;
        Ok(span_loss(forward, batch, &logits, &states)?.into())
    }

    fn validation_samples(&self) -> u64 {
        self.windows.sets.validation.len() as u64
    }

    /// Metrics of whole records, see [`Agreement`].
    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        let run = |windows: &[(&TokenSet, &Window)]| {
            let batch = self.model.batch(windows).to_device(forward.device())?;
            Ok(self.model.forward(forward, &batch)?.0)
        };
        self.windows.evaluate(samples, self.model.longest(), scores, run)
    }

    /// Predicts `logits`, those of the first and of the last token, [tokens, 2].
    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let logits = self.model.forward(forward, batch)?.0.value().to_host()?;
        let width = 2 * logits.shape()[1];
        Ok(Predictions::default().with("logits", width, logits.read::<f32>().to_vec()))
    }

    fn buffers(&self) -> Buffers {
        self.windows.sets.buffers()
    }
}

/// Each row of a tensor, on the host.
pub(super) fn rows(x: &Var) -> Result<Vec<Vec<f32>>> {
    let width = x.shape()[1..].iter().product();
    Ok(x.value().to_host()?.read::<f32>().chunks_exact(width).map(<[f32]>::to_vec).collect())
}

/// An answer of the context of record `i` with its text.
pub(super) fn predicted(set: &TokenSet, i: usize, tokens: Option<[usize; 2]>) -> Answer<'_> {
    tokens.map(|tokens| (tokens, set.text_of_tokens(i, tokens).1))
}

/// The true answer to record `i`.
pub(super) fn truth(set: &TokenSet, i: usize) -> Answer<'_> {
    let (tokens, characters) = (set.answer_tokens(i)?, set.answer(i)?);
    Some((tokens, set.text_of_characters(i, characters)))
}
