//! Scores of generated answers beside the true ones: exact match, character error rate and word error rate.

use super::normalise::Normalisation;
use learn::evaluate::{Stratum, bootstrap, interval};
use learn::score::edit_distance;
use report::evaluation::{Metric, MetricsByName};
use serde_json::{Map, Value, json};
use std::hash::Hash;

/// Edits that turn an answer into the true one, and the length of the true one, both in characters or in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Errors {
    edits: u64,
    length: u64,
}

impl Errors {
    fn of<T: Eq + Hash>(answer: &[T], expected: &[T]) -> Self {
        Self { edits: edit_distance(answer, expected), length: expected.len() as u64 }
    }

    fn of_chars(answer: &str, expected: &str) -> Self {
        let [answer, expected] = [answer, expected].map(|own| own.chars().collect::<Vec<_>>());
        Self::of(&answer, &expected)
    }

    /// The rate of one sample. Without a true answer it is 0 if there is no answer, else 1.
    fn rate(self) -> f64 {
        match self.length {
            0 => self.edits.min(1) as f64,
            length => self.edits as f64 / length as f64,
        }
    }

    fn sums(self) -> [f64; 2] {
        [self.edits as f64, self.length as f64]
    }
}

/// The scores of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerScore {
    is_exact: bool,
    chars: Errors,
    words: Errors,
    /// Characters of the values in rows of tables, if the true answer has some.
    values: Option<Errors>,
}

impl AnswerScore {
    /// Compares an answer with the true one.
    pub fn of(answer: &str, expected: &str, normalisation: &Normalisation) -> Self {
        let value_errors = |own: String| {
            let found = normalisation.values(answer).unwrap_or_default();
            Errors::of_chars(&found, &own)
        };
        let values = normalisation.values(expected).map(value_errors);
        let [answer, expected] = [answer, expected].map(|own| normalisation.text(own));
        let [words, expected_words] =
            [&answer, &expected].map(|own| own.split_whitespace().collect::<Vec<_>>());
        Self {
            is_exact: answer == expected,
            chars: Errors::of_chars(&answer, &expected),
            words: Errors::of(&words, &expected_words),
            values,
        }
    }

    /// The fields of the answer in predictions.jsonl.
    pub fn fields(&self) -> Map<String, Value> {
        Map::from_iter([
            ("exact_match".to_string(), json!(self.is_exact)),
            ("cer".into(), json!(self.chars.rate())),
            ("wer".into(), json!(self.words.rate())),
        ])
    }
}

/// The metrics of answers. A missing one is wrong, and has no error rates.
///
/// `cer`, `wer` and `value_cer` are the edits of all answers divided by the length of all true answers, `cer_mean` is the
/// mean of the rates of the samples. `value_cer` is there if a true answer has values, and is that of these samples.
pub fn answer_metrics(scores: &[Option<AnswerScore>]) -> MetricsByName {
    let exact = |own: &Option<AnswerScore>| own.is_some_and(|own| own.is_exact);
    let exact: Vec<[f64; 2]> =
        scores.iter().map(|own| [f64::from(u8::from(exact(own))), 1.0]).collect();
    let (share, bounds) = weighted_mean(&exact);
    let error = |of: &dyn Fn(&AnswerScore) -> Option<[f64; 2]>| {
        let (rate, bounds) =
            weighted_mean(&scores.iter().flatten().filter_map(of).collect::<Vec<_>>());
        Metric::error(rate).with_interval(Some(bounds))
    };
    let mut metrics = MetricsByName::from([
        ("exact_match".to_string(), Metric::score(share).with_interval(Some(bounds))),
        ("cer".into(), error(&|own| Some(own.chars.sums()))),
        ("cer_mean".into(), error(&|own| Some([own.chars.rate(), 1.0]))),
        ("wer".into(), error(&|own| Some(own.words.sums()))),
    ]);
    if scores.iter().flatten().any(|own| own.values.is_some()) {
        metrics.insert("value_cer".into(), error(&|own| own.values.map(Errors::sums)));
    }
    metrics
}

/// The mean of `values`, each a sum and a weight, with its interval by bootstrap over samples.
pub fn weighted_mean(values: &[[f64; 2]]) -> (f64, [f64; 2]) {
    let of = |which: &mut dyn Iterator<Item = usize>| {
        let [sum, weight] =
            which.fold([0.0, 0.0], |[sum, weight], i| [sum + values[i][0], weight + values[i][1]]);
        sum / weight
    };
    let stratum = Stratum { number: 0, clusters: values.len() };
    let resampled = bootstrap(&[stratum], |draws| of(&mut draws[0].iter().copied()));
    (of(&mut (0..values.len())), interval(resampled.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::super::normalise::NormaliseStep;
    use super::*;

    fn score(answer: &str, expected: &str, steps: &[NormaliseStep]) -> AnswerScore {
        AnswerScore::of(answer, expected, &Normalisation::new(steps))
    }

    #[test]
    fn rates_are_those_of_closed_forms() {
        let rates = |answer: &str, expected: &str, steps: &[NormaliseStep]| {
            let own = score(answer, expected, steps);
            (own.chars.rate(), own.words.rate())
        };
        assert_eq!(rates("hallo", "hello", &[]), (0.2, 1.0));
        assert_eq!(rates("hello big world", "hello world", &[]), (4.0 / 11.0, 0.5));
        assert_eq!(rates("the sat", "the cat sat", &[]).1, 1.0 / 3.0);
        assert_eq!(rates("", "", &[]), (0.0, 0.0));
        assert_eq!(rates("two words", "", &[]), (1.0, 1.0));
        assert_eq!(rates("", "abc", &[]), (1.0, 1.0));
        // jiwer splits words at spaces only, so that this word error rate is 2.
        assert_eq!(rates("a\nb", "a b", &[]), (1.0 / 3.0, 0.0));
        assert_eq!(rates(" a b\n", "a b", &[]), (0.0, 0.0));
        // One character in two forms: a replacement and an insertion.
        assert_eq!(rates("e\u{301}", "\u{e9}", &[]).0, 2.0);
        assert_eq!(rates("e\u{301}", "\u{e9}", &[NormaliseStep::Nfc]), (0.0, 0.0));
        assert_eq!(rates("a \n b", "a b", &[NormaliseStep::Spaces]), (0.0, 0.0));
        let markdown = [NormaliseStep::Markdown];
        assert_eq!(rates("# **a** b", "a b", &markdown), (0.0, 0.0));
        let own = score("|A|*1*|", "|A|1|\n|---|---|", &markdown);
        assert!(own.is_exact && own.values == Some(Errors { edits: 0, length: 1 }));
        assert!(!score("# a", "a", &[]).is_exact && score(" a", "a\n", &[]).is_exact);
    }

    #[test]
    fn metrics_weigh_samples_by_length_but_for_the_mean() {
        let of = |answer: &str, expected: &str| Some(score(answer, expected, &[]));
        let found = answer_metrics(&[of("a", "b"), of("cdef ghi", "cdef ghi"), None]);
        let value = |name: &str| found[name].value;
        assert_eq!(found.keys().collect::<Vec<_>>(), ["exact_match", "cer", "cer_mean", "wer"]);
        assert_eq!((value("exact_match"), value("cer")), (1.0 / 3.0, 1.0 / 9.0));
        assert_eq!((value("cer_mean"), value("wer")), (0.5, 1.0 / 3.0));
        assert!(found.values().all(|own| own.interval.is_some()));

        // The label and the text around tables do not count, and a missing row is a deletion.
        let reference = "Log\n|WELL|Ada 1|\n|RUN|2|";
        let found = answer_metrics(&[
            of("|WEL|Ada 7|\n|RUN|2|", reference),
            of("|WELL|Ada 1|", reference),
            of("no table", reference),
            of("|A|anything|", "no table"),
        ]);
        // Of 7 characters each, a replacement, the last two, and all.
        assert_eq!(found["value_cer"].value, 10.0 / 21.0);
    }
}
