//! The distribution from which the next token is drawn, on the host and in f64.

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use tensor::random::Philox;
use unix::config::Violations;

/// Tokens that are sorted first for `top_p`; more only if these are not enough.
const SORTED: usize = 64;

/// How tokens are drawn. The filters are applied in the order of transformers: repetition penalty, temperature, top-k,
/// top-p, min-p.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divide logits by this number; 0: always take the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f64,
    /// Draw among this many most probable tokens; 0: among all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Draw among the most probable tokens whose probabilities sum to at least this number; 1: among all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Draw among tokens with at least this fraction of the largest probability; 0: among all
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f64,
    /// Divide positive logits of tokens that have occurred by this number and multiply negative ones; 1: off
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f64,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl Default for Sampling {
    /// The most probable token, without a penalty.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Violations, by key.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut check = |key: &str, value: f64, is_allowed: bool, allowed: &str| {
            if !is_allowed {
                violations.push((key.into(), format!("must be {allowed}, not {value}")));
            }
        };
        let (t, p, min, penalty) =
            (self.temperature, self.top_p, self.min_p, self.repetition_penalty);
        check("temperature", t, t >= 0.0 && t.is_finite(), "a number of at least 0");
        check("top_p", p, p > 0.0 && p <= 1.0, "greater than 0 and at most 1");
        check("min_p", min, (0.0..=1.0).contains(&min), "from 0 to 1");
        let is_positive = penalty > 0.0 && penalty.is_finite();
        check("repetition_penalty", penalty, is_positive, "a positive number");
        violations
    }

    /// Whether the token with the largest logit of the model is taken.
    pub(super) fn is_argmax(&self) -> bool {
        self.temperature == 0.0 && !self.has_penalty()
    }

    /// Whether tokens that have occurred are penalized.
    pub(super) fn has_penalty(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// Draws a token for the logits [V]. `seen` are the tokens of the prompt and those generated before; it may be empty
    /// without a penalty. `sample` and `position` are those of the draw. None: a logit is NaN, or none is finite.
    pub(super) fn draw(
        &self,
        logits: &[f32],
        seen: &HashSet<i32>,
        random: &Philox,
        [sample, position]: [u64; 2],
    ) -> Option<i32> {
        let candidates = self.distribution(logits, seen)?;
        let number = random.uniform64(sample, position);
        let mut sum = 0.0;
        let is_drawn = |(_, probability): &&(i32, f64)| {
            sum += probability;
            number < sum
        };
        // The probabilities may sum to slightly less than 1.
        let drawn = candidates.iter().find(is_drawn).or(candidates.last());
        drawn.map(|(id, _)| *id)
    }

    /// The tokens that may be drawn, by id, with their probabilities; see [`Self::draw`].
    pub(super) fn distribution(
        &self,
        logits: &[f32],
        seen: &HashSet<i32>,
    ) -> Option<Vec<(i32, f64)>> {
        let mut logits: Vec<(i32, f64)> = (0..).zip(logits.iter().map(|z| f64::from(*z))).collect();
        if self.has_penalty() {
            let own = seen.iter().filter_map(|id| usize::try_from(*id).ok());
            for id in own.filter(|id| *id < logits.len()).collect::<Vec<_>>() {
                let logit = &mut logits[id].1;
                let is_negative = *logit < 0.0;
                *logit *= if is_negative { self.repetition_penalty } else { 1.0 };
                *logit /= if is_negative { 1.0 } else { self.repetition_penalty };
            }
        }
        // The first of equal logits.
        let best = logits.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        if logits.iter().any(|(_, logit)| logit.is_nan()) || !best.1.is_finite() {
            return None;
        }
        if self.temperature == 0.0 {
            return Some(vec![(best.0, 1.0)]);
        }
        let mut weights = logits;
        if (1..weights.len()).contains(&self.top_k) {
            let by_logit = |a: &(i32, f64), b: &(i32, f64)| b.1.total_cmp(&a.1);
            let least = weights.select_nth_unstable_by(self.top_k - 1, by_logit).1.1;
            weights.retain(|(_, logit)| *logit >= least);
        }
        for (_, weight) in &mut weights {
            *weight = ((*weight - best.1) / self.temperature).exp();
        }
        weights.retain(|(_, weight)| *weight > 0.0);
        // The order of a sum is that of the ids.
        weights.sort_unstable_by_key(|(id, _)| *id);
        let mut total = total_of(&weights);
        if self.top_p < 1.0 {
            keep_top_p(&mut weights, self.top_p * total);
        }
        // The largest weight is 1.
        weights.retain(|(_, weight)| *weight >= self.min_p);
        total = total_of(&weights);
        weights.iter_mut().for_each(|(_, weight)| *weight /= total);
        Some(weights)
    }
}

fn total_of(weights: &[(i32, f64)]) -> f64 {
    weights.iter().map(|(_, weight)| weight).sum()
}

/// Keeps the largest weights until they sum to `enough`, at least one; of equal ones the first ids. Leaves them by id.
fn keep_top_p(weights: &mut Vec<(i32, f64)>, enough: f64) {
    let by_weight = |a: &(i32, f64), b: &(i32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    // Most of a large vocabulary need not be sorted.
    let mut sorted = SORTED.min(weights.len());
    loop {
        if sorted < weights.len() {
            weights.select_nth_unstable_by(sorted, by_weight);
        }
        weights[..sorted].sort_unstable_by(by_weight);
        let mut sum = 0.0;
        let count = weights[..sorted].iter().take_while(|(_, weight)| {
            let is_kept = sum < enough;
            sum += weight;
            is_kept
        });
        let count = count.count();
        if count < sorted || sorted == weights.len() {
            weights.truncate(count.max(1));
            break;
        }
        sorted = (4 * sorted).min(weights.len());
    }
    weights.sort_unstable_by_key(|(id, _)| *id);
}
