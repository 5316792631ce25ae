//! The task `span`, extractive question answering: finds the span of a context that answers a question or, without
//! questions, a span of the kind that was annotated.
//!
//! A training sample is a window of a context; scores are per record. Windows without the answer are trained to point
//! to the first special token (Devlin et al. 2019, section 4.3).

mod baselines;
mod decode;
mod metrics;
mod model;
mod scores;

pub use decode::{Candidate, Decoded, decode, fit_threshold};
pub use metrics::{Agreement, Answer, means, normalised, word_f1};
pub use model::{SpanFinder, SpanHead, SpanHeadConfig, SpanModel, span_loss};
pub(super) use model::{require_answers, with_answers};
pub use scores::answer_fields;
pub(super) use scores::{agreement, fitted_threshold, needs_threshold, row, scores};

use super::sets::TextData;
use super::task::TextTask;
use data::text::{RecordTokens, TokenSet, Window};
use learn::config::Config;
use learn::score::Scores;
use learn::task::Empty;

/// The configuration of the task.
pub type SpanConfig = Config<TextData, SpanModel, Empty>;

/// Answers in contexts.
pub type SpanTask = TextTask<SpanFinder>;

/// Adds the metrics of the answer to a record, given the logits [T, 2] of its windows; see [`Agreement`].
pub(super) fn add_agreement(
    scores: &mut Scores,
    set: &TokenSet,
    windows: &[(&Window, &[f32])],
    longest: usize,
    threshold: Option<f64>,
) {
    windows.iter().for_each(|(_, logits)| scores.check_finite(logits));
    let i = windows[0].0.record;
    let record = set.record(i);
    let found = decode(windows, longest, 1).answer(threshold);
    let agreement = Agreement::of(predicted(&record, found), truth(set, i));
    for (name, value) in agreement.values() {
        scores.mean(name, value, 1.0);
    }
}

/// The predicted answer to a record, with its text.
pub(super) fn predicted<'a>(record: &RecordTokens<'a>, tokens: Option<[usize; 2]>) -> Answer<'a> {
    tokens.map(|tokens| (tokens, record.text_of_tokens(tokens).1))
}

/// The true answer to record `i`.
pub(super) fn truth(set: &TokenSet, i: usize) -> Answer<'_> {
    let (record, characters) = (set.record(i), set.answer(i)?);
    Some((record.tokens_of(characters)?, record.text_of_characters(characters)))
}
