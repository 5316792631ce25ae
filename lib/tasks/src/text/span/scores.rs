//! The evaluation of answers.

use super::baselines::{FirstOccurrence, whole_context};
use super::decode::{Decoded, fit_threshold};
use super::metrics::{Agreement, means};
use super::{SpanTask, predicted, truth};
use crate::text::metrics::Resampling;
use crate::text::mistakes::beginning;
use crate::text::scores::groups;
use data::text::{RecordTokens, TokenSet};
use learn::task::Define;
use report::axis::short;
use report::document::{Cell, Document, Table};
use serde_json::{Map, Value, json};
use unix::{Error, Result};

/// Mistakes that are listed.
const LISTED: usize = 40;
/// Characters of a context that are shown.
const SHOWN: usize = 400;
/// Groups of contexts of similar length, of equal size.
const LENGTHS: usize = 5;

/// The answers of a model and of baselines to one split.
pub struct SpanScores<'a> {
    set: &'a TokenSet,
    decoded: Vec<Decoded>,
    /// The least margin over no answer with which an answer is predicted; None: there always is one.
    threshold: Option<f64>,
    /// Name and agreement of each method, the model first.
    methods: Vec<(&'static str, Vec<Agreement>)>,
}

impl<'a> SpanScores<'a> {
    /// Of what a model predicts for `set` and for `validation`, on which the threshold is fitted; baselines learn from `train`.
    pub fn of(
        (set, decoded): (&'a TokenSet, Vec<Decoded>),
        (validation, known): (&TokenSet, &[Decoded]),
        train: &TokenSet,
    ) -> Self {
        let has_no_answer = |set: &TokenSet| (0..set.len()).any(|i| set.answer(i).is_none());
        let needs_threshold = has_no_answer(train) || has_no_answer(validation);
        let outcomes: Option<Vec<_>> = needs_threshold.then(|| {
            let outcome = |(i, own): (usize, &Decoded)| {
                let (record, truth) = (validation.record(i), truth(validation, i));
                let is_right = |tokens| Agreement::of(predicted(&record, tokens), truth).exact();
                (own.margin(), is_right(own.answer(None)), is_right(None))
            };
            known.iter().enumerate().map(outcome).collect()
        });
        let threshold = outcomes.and_then(|outcomes| fit_threshold(&outcomes));
        let agree = |of: &dyn Fn(usize) -> Option<[usize; 2]>| -> Vec<Agreement> {
            let one = |i| Agreement::of(predicted(&set.record(i), of(i)), truth(set, i));
            (0..set.len()).map(one).collect()
        };
        let first = FirstOccurrence::fit(train);
        let mut methods = vec![
            (SpanTask::SPEC.name, agree(&|i| decoded[i].answer(threshold))),
            ("first occurrence", agree(&|i| first.answer(set, i))),
            ("whole context", agree(&|i| whole_context(set, i))),
        ];
        if needs_threshold {
            methods.push(("no answer", agree(&|_| None)));
        }
        Self { set, decoded, threshold, methods }
    }

    /// The share of records whose answer has the true tokens.
    pub fn exact_match(&self) -> f64 {
        let own = &self.methods[0].1;
        own.iter().filter(|agreement| agreement.exact()).count() as f64 / own.len() as f64
    }

    /// The rows of the table, and the content of evaluation_results.json: the metrics of the model, and under `baselines`
    /// those of the others.
    pub fn results(&self, protocol: &Value) -> Result<(Vec<Value>, Value)> {
        let (mut rows, mut baselines, mut all) = (Vec::new(), Map::new(), Map::new());
        all.insert("format".into(), "longhaul-spans".into());
        all.insert("version".into(), 1.into());
        all.insert("protocol".into(), protocol.clone());
        let groups = groups(self.set);
        let resampling = groups.as_deref().map_or(Resampling::Samples, Resampling::Groups);
        for (at, (name, agreements)) in self.methods.iter().enumerate() {
            let found = means(agreements, resampling);
            let metric = |name: &str| found.get(name);
            rows.push(json!({
                "model": name, "exact_match": metric("exact_match"), "f1": metric("f1"),
                "start_accuracy": metric("start_accuracy"), "end_accuracy": metric("end_accuracy"),
                "text_exact_match": metric("text_exact_match"), "text_f1": metric("text_f1"),
            }));
            match (at, serde_json::to_value(&found).map_err(Error::bug)?) {
                (0, Value::Object(own)) => all.extend(own),
                (_, value) => _ = baselines.insert((*name).into(), value),
            }
        }
        // The model comes last, as in the tables of other families.
        rows.rotate_left(1);
        all.insert("no_answer_threshold".into(), json!(self.threshold));
        let answers = (0..self.set.len()).filter(|i| self.set.answer(*i).is_some()).count();
        all.insert("with_answer".into(), answers.into());
        all.insert("total_samples".into(), self.set.len().into());
        all.insert("baselines".into(), baselines.into());
        Ok((rows, all.into()))
    }

    /// One record for each context: id, its question as `text`, true and predicted answer with its characters, and the best candidates.
    pub fn predictions(&self) -> impl Iterator<Item = Value> {
        (0..self.set.len()).map(|i| {
            let mut row = json!({
                "record": i, "id": self.set.id(i), "text": self.set.texts(i)[0],
                "answer": truth(self.set, i).map(|(_, text)| text),
                "exact_match": self.methods[0].1[i].exact(),
            });
            if let (Value::Object(row), Value::Object(own)) =
                (&mut row, described(&self.set.record(i), &self.decoded[i], self.threshold))
            {
                row.extend(own);
            }
            row
        })
    }

    /// The page that shows where the answers are wrong: by length, and the most confident mistakes.
    pub fn mistakes(&self) -> Document {
        let (set, own) = (self.set, &self.methods[0].1);
        let mut wrong: Vec<usize> = (0..set.len()).filter(|i| !own[*i].exact()).collect();
        let mut page = Document::new(format!("Mistakes on the {} split", set.name()));
        page.paragraph(format!(
            "{} of {} answers have other tokens than the true ones. Exact match {}.",
            wrong.len(),
            set.len(),
            short(self.exact_match())
        ));
        page.heading("By length");
        page.paragraph("Contexts of similar length, in tokens.");
        let length = |i: usize| set.context_tokens(i).len();
        let mut order: Vec<usize> = (0..set.len()).collect();
        order.sort_by_key(|i| length(*i));
        let mut table = Table::new(["tokens", "windows", "contexts", "exact match", "F1"]);
        for part in order.chunks(set.len().div_ceil(LENGTHS).max(1)) {
            let n = part.len() as f64;
            let windows: usize = part.iter().map(|i| set.windows(*i).len()).sum();
            let exact = part.iter().filter(|i| own[**i].exact()).count() as f64;
            table.row([
                Cell::text(format!("{}–{}", length(part[0]), length(part[part.len() - 1]))),
                Cell::number(windows.to_string()),
                Cell::number(part.len().to_string()),
                Cell::number(short(exact / n)),
                Cell::number(short(part.iter().map(|i| own[*i].f1).sum::<f64>() / n)),
            ]);
        }
        page.table(table);
        page.heading("Most confident mistakes");
        page.paragraph(
            "The margin is by how much the score of the answer exceeds that of no answer.",
        );
        let margin = |i: usize| self.decoded[i].margin();
        wrong.sort_by(|a, b| margin(*b).total_cmp(&margin(*a)));
        let mut table = Table::new([
            "record",
            "id",
            "question",
            "answer",
            "predicted",
            "margin",
            "F1",
            "context",
        ]);
        for i in wrong.into_iter().take(LISTED) {
            let found = predicted(&set.record(i), self.decoded[i].answer(self.threshold));
            let shown = beginning(set.context(i).unwrap_or_default(), SHOWN);
            let text = |answer: Option<([usize; 2], &str)>| {
                Cell::text(answer.map_or("(none)", |(_, text)| text))
            };
            table.row([
                Cell::number(i.to_string()),
                Cell::text(set.id(i).unwrap_or("")),
                Cell::text(set.texts(i)[0].unwrap_or("")),
                text(truth(set, i)),
                text(found),
                Cell::number(short(margin(i))),
                Cell::number(short(own[i].f1)),
                Cell::text(shown),
            ]);
        }
        page.table(table);
        page
    }
}

/// The predicted answer to a record with its characters, whether there is one, and the best candidates.
pub fn described(record: &RecordTokens, decoded: &Decoded, threshold: Option<f64>) -> Value {
    let of = |tokens: [usize; 2]| record.text_of_tokens(tokens);
    let answer = decoded.answer(threshold).map(of);
    let candidates = decoded.candidates.iter().map(|candidate| {
        let ([start, end], text) = of(candidate.tokens);
        json!({"text": text, "start_index": start, "end_index": end, "score": candidate.score})
    });
    json!({
        "context": record.context, "predicted_span": answer.map(|(_, text)| text),
        "start_index": answer.map(|(at, _)| at[0]), "end_index": answer.map(|(at, _)| at[1]),
        "no_answer_score": decoded.no_answer, "candidates": candidates.collect::<Vec<_>>(),
    })
}
