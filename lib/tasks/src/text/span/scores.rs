//! Scores answers and compares them with baselines.

use super::baselines::{FirstOccurrence, whole_context};
use super::decode::{Decoded, fit_threshold};
use super::metrics::{Agreement, means};
use super::{predicted, truth};
use crate::text::class_scores::{PartScores, groups};
use crate::text::metrics::Resampling;
use crate::text::trained::TextOutput;
use data::text::{RecordTokens, TokenSet};
use report::axis::short;
use report::document::{Cell, Document, Table};
use serde_json::{Map, Value, json};

/// Number of equally large groups into which contexts are divided by length.
const LENGTH_GROUPS: usize = 5;

/// Whether records may have no answer, so that a no-answer threshold is required.
pub(in crate::text) fn needs_threshold(train: &TokenSet, validation: &TokenSet) -> bool {
    let has_no_answer = |set: &TokenSet| (0..set.len()).any(|i| set.answer(i).is_none());
    has_no_answer(train) || has_no_answer(validation)
}

/// How well the answer to record `i` agrees with the true one.
pub(in crate::text) fn agreement(
    set: &TokenSet,
    i: usize,
    answer: Option<[usize; 2]>,
) -> Agreement {
    Agreement::of(predicted(&set.record(i), answer), truth(set, i))
}

/// The no-answer threshold, fitted to the outputs for the validation split; None: an answer is always predicted.
pub(in crate::text) fn fitted_threshold(
    train: &TokenSet,
    (validation, known): (&TokenSet, &[TextOutput]),
) -> Option<f64> {
    if !needs_threshold(train, validation) {
        return None;
    }
    let outcome = |(i, own): (usize, &TextOutput)| {
        let is_right = |tokens| agreement(validation, i, tokens).exact();
        (own.answer.margin(), is_right(own.answer.answer(None)), is_right(None))
    };
    fit_threshold(&known.iter().enumerate().map(outcome).collect::<Vec<_>>())
}

/// Scores the answers to the first set; baselines are fitted to the second one, the training split. The names of the
/// metrics begin with `prefix`. Adds sections to `page`.
pub(in crate::text) fn scores(
    (method, prefix): (&'static str, &str),
    [set, train, validation]: [&TokenSet; 3],
    found: &[TextOutput],
    threshold: Option<f64>,
    page: &mut Document,
) -> PartScores {
    let agree = |of: &dyn Fn(usize) -> Option<[usize; 2]>| -> Vec<Agreement> {
        (0..set.len()).map(|i| agreement(set, i, of(i))).collect()
    };
    let first = FirstOccurrence::fit(train);
    let mut methods = vec![
        (method, agree(&|i| found[i].answer.answer(threshold))),
        ("first occurrence", agree(&|i| first.answer(set, i))),
        ("whole context", agree(&|i| whole_context(set, i))),
    ];
    if needs_threshold(train, validation) {
        methods.push(("no answer", agree(&|_| None)));
    }
    let groups = groups(set);
    let resampling = groups.as_deref().map_or(Resampling::Samples, Resampling::Groups);
    let mut all = PartScores::default();
    for (name, agreements) in &methods {
        let metrics = means(agreements, resampling);
        let mut row = json!({"model": name});
        for metric in &metrics.0 {
            row[metric.name] = json!(metric.value);
        }
        all.rows.push(row);
        all.methods.insert((*name).into(), metrics.scored(prefix));
    }
    all.rows.rotate_left(1);
    let answers = (0..set.len()).filter(|i| set.answer(*i).is_some()).count();
    all.details = Map::from_iter([
        ("no_answer_threshold".to_string(), json!(threshold)),
        ("with_answer".into(), answers.into()),
    ]);
    add_mistakes(page, set, &methods[0].1);
    all
}

/// Record `i` of a set: its id, its question as `text`, true and predicted answer with its characters, and the best
/// candidates.
pub(in crate::text) fn row(
    set: &TokenSet,
    i: usize,
    decoded: &Decoded,
    threshold: Option<f64>,
) -> Map<String, Value> {
    let mut row = Map::from_iter([
        ("record".to_string(), json!(i)),
        ("id".into(), json!(set.id(i))),
        ("text".into(), json!(set.texts(i)[0])),
        ("answer".into(), json!(truth(set, i).map(|(_, text)| text))),
        ("exact_match".into(), agreement(set, i, decoded.answer(threshold)).exact().into()),
    ]);
    row.extend(answer_fields(&set.record(i), decoded, threshold));
    row
}

/// Adds the sections on wrong answers, by length of the context.
fn add_mistakes(page: &mut Document, set: &TokenSet, own: &[Agreement]) {
    let right = |of: &mut dyn Iterator<Item = usize>| of.filter(|i| own[*i].exact()).count();
    let exact = right(&mut (0..set.len()));
    page.paragraph(format!(
        "{} of {} answers differ from the true ones. Exact match {}.",
        set.len() - exact,
        set.len(),
        short(exact as f64 / set.len() as f64)
    ));
    page.heading("Answers by length");
    page.paragraph("Contexts of similar length, in tokens.");
    let length = |i: usize| set.context_tokens(i).len();
    let mut order: Vec<usize> = (0..set.len()).collect();
    order.sort_by_key(|i| length(*i));
    let mut table = Table::new(["tokens", "windows", "contexts", "exact match", "F1"]);
    for part in order.chunks(set.len().div_ceil(LENGTH_GROUPS).max(1)) {
        let n = part.len() as f64;
        let windows: usize = part.iter().map(|i| set.windows(*i).len()).sum();
        table.row([
            Cell::text(format!("{}–{}", length(part[0]), length(part[part.len() - 1]))),
            Cell::number(windows.to_string()),
            Cell::number(part.len().to_string()),
            Cell::number(short(right(&mut part.iter().copied()) as f64 / n)),
            Cell::number(short(part.iter().map(|i| own[*i].f1).sum::<f64>() / n)),
        ]);
    }
    page.table(table);
}

/// The predicted answer to a record with its character range, null if there is none; the no-answer score; and the best
/// candidates.
pub fn answer_fields(
    record: &RecordTokens,
    decoded: &Decoded,
    threshold: Option<f64>,
) -> Map<String, Value> {
    let of = |tokens: [usize; 2]| record.text_of_tokens(tokens);
    let answer = decoded.answer(threshold).map(of);
    let candidates = decoded.candidates.iter().map(|candidate| {
        let ([start, end], text) = of(candidate.tokens);
        json!({"text": text, "start_index": start, "end_index": end, "score": candidate.score})
    });
    Map::from_iter([
        ("context".to_string(), json!(record.context)),
        ("predicted_span".into(), json!(answer.map(|(_, text)| text))),
        ("start_index".into(), json!(answer.map(|(at, _)| at[0]))),
        ("end_index".into(), json!(answer.map(|(at, _)| at[1]))),
        ("no_answer_score".into(), json!(decoded.no_answer)),
        ("candidates".into(), candidates.collect::<Vec<_>>().into()),
    ])
}
