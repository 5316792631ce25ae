//! The options of `evaluate score`.

use crate::multimodal::sample::{Reveal, TextSampler};
use serde_json::{Value, json};
use std::path::PathBuf;
use unix::{Error, Result};

/// The options of `evaluate score` for texts and vectors.
#[derive(clap::Args, Clone, Debug)]
pub struct PairScoreOptions {
    /// Number of records whose texts are sampled
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub texts: usize,
    /// Numbers of steps in which texts are sampled
    #[arg(long, value_name = "N,...", default_value = "1,8,16", value_delimiter = ',')]
    pub text_steps: Vec<usize>,
    /// Number of drafts of each text, of which the one is chosen whose vector is closest; 0 for none
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub drafts: usize,
    /// Number of steps of a draft
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub draft_steps: usize,
    /// Temperature of drafts
    #[arg(long, value_name = "X", default_value_t = 0.5)]
    pub draft_temperature: f64,
    /// Pairs of texts with a score, in columns text, text2 and score: correlations of cosines with these scores
    #[arg(long, value_name = "FILE")]
    pub similarity: Option<PathBuf>,
}

impl PairScoreOptions {
    /// Errors: 2.
    pub fn require_valid(&self) -> Result<()> {
        let steps = self.text_steps.iter().chain([&self.draft_steps]);
        if steps.clone().any(|steps| *steps == 0) || self.text_steps.is_empty() {
            return Err(Error::usage("--text-steps, --draft-steps: must be at least 1"));
        }
        match self.draft_temperature >= 0.0 && self.draft_temperature.is_finite() {
            true => Ok(()),
            false => Err(Error::usage("--draft-temperature: must not be negative")),
        }
    }

    /// The largest number of steps.
    pub fn best_steps(&self) -> usize {
        self.text_steps.iter().copied().max().unwrap_or(1)
    }

    /// The sampler of drafts.
    pub fn draft_sampler(&self) -> TextSampler {
        TextSampler {
            reveal: Reveal::Linear,
            temperature: self.draft_temperature,
            ..TextSampler::greedy(self.draft_steps)
        }
    }

    /// What the samples depend on.
    pub fn sampling(&self) -> Value {
        json!({
            "text_steps": self.text_steps,
            "drafts": self.drafts,
            "draft_steps": self.draft_steps,
            "draft_temperature": self.draft_temperature,
        })
    }
}
