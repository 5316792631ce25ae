//! The options of `evaluate` for decoders.

use super::normalise::{Normalisation, NormaliseStep};
use learn::generate::{Generation, Sampling};
use unix::{Error, Result};

/// The options of `evaluate score`.
#[derive(clap::Args, Clone, Debug)]
pub struct LanguageScoreOptions {
    /// Maximum number of tokens of an answer, which is generated without randomness and compared with the true one; 0
    /// generates none
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new_tokens: usize,
    /// Conversations whose answers are generated; with `worst` answers have no metrics
    #[arg(long, value_name = "WHICH", default_value_t)]
    pub answers: AnswersOf,
    /// Comma-separated steps that answers and true answers go through before they are compared [default: none]
    #[arg(long, value_name = "STEPS", value_delimiter = ',')]
    normalise: Vec<NormaliseStep>,
}

/// Conversations whose answers are generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, clap::ValueEnum)]
#[strum(serialize_all = "lowercase")]
pub enum AnswersOf {
    /// All of them
    #[default]
    All,
    /// Those with the greatest loss, which worst.html shows
    Worst,
}

/// The options of `evaluate predict`.
#[derive(clap::Args, Clone, Debug)]
pub struct LanguagePredictOptions {
    /// Maximum number of tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_new_tokens: usize,
    /// Divides the logits of tokens; 0 takes the most probable token [default: 0]
    #[arg(long, value_name = "X")]
    temperature: Option<f64>,
    /// Draw from the N most probable tokens; 0: from all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: usize,
    /// Draw from the most probable tokens that together have at least this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Draw from tokens with at least this fraction of the probability of the most probable one
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Divides positive logits, and multiplies negative ones, of tokens that occurred before
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// An answer ends when its last N tokens only repeat a block of at most 32 tokens; 0: never
    #[arg(long, value_name = "N", default_value_t = MAX_REPEAT)]
    max_repeat: usize,
    /// Seed of the samples
    #[arg(long, value_name = "N", default_value_t = 0)]
    sampling_seed: u64,
}

/// Repeated tokens after which an answer ends.
const MAX_REPEAT: usize = 128;

impl LanguageScoreOptions {
    /// How answers are generated, which end with one of the tokens `stop`; None: not at all.
    pub fn generation(&self, stop: Vec<i32>) -> Option<Generation> {
        let (max_new_tokens, sampling) = (self.max_new_tokens, Sampling::default());
        let generation = Generation { sampling, max_new_tokens, stop, max_repeat: MAX_REPEAT };
        (max_new_tokens > 0).then_some(generation)
    }

    /// What is made equal before answers are compared.
    pub fn normalisation(&self) -> Normalisation {
        Normalisation::new(&self.normalise)
    }

    /// Errors: 2 for options without effect.
    pub fn check(&self) -> Result<()> {
        let option = match self {
            Self { answers: AnswersOf::Worst, .. } => "--answers worst",
            Self { normalise, .. } if !normalise.is_empty() => "--normalise",
            _ => return Ok(()),
        };
        match self.max_new_tokens {
            0 => Err(Error::usage(format!(
                "{option}: no effect with --max-new-tokens 0, which generates no answers"
            ))),
            _ => Ok(()),
        }
    }
}

impl LanguagePredictOptions {
    /// How answers are generated, which end with one of the tokens `stop`. Errors: 2 for numbers out of range, and for
    /// options without effect.
    pub fn generation(&self, stop: Vec<i32>) -> Result<Generation> {
        let temperature = self.temperature.unwrap_or(0.0);
        let wrong = |text: &str| Err(Error::usage(text));
        if self.max_new_tokens == 0 {
            return wrong("--max-new-tokens: must be at least 1");
        }
        if !(temperature.is_finite() && temperature >= 0.0) {
            return wrong("--temperature: must be a number that is not negative");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("--top-p: must be greater than 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("--min-p: must be from 0 to 1");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return wrong("--repetition-penalty: must be a positive number");
        }
        let filters = self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0;
        if temperature == 0.0 && filters {
            return wrong(
                "--top-k, --top-p, --min-p: no effect without --temperature, at which the most probable token is taken",
            );
        }
        let &Self { top_k, top_p, min_p, repetition_penalty, sampling_seed: seed, .. } = self;
        let sampling = Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed };
        let (max_new_tokens, max_repeat) = (self.max_new_tokens, self.max_repeat);
        Ok(Generation { sampling, max_new_tokens, stop, max_repeat })
    }
}
