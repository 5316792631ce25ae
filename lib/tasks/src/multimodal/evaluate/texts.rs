//! The quality of texts: slots of the synthetic language, and agreement with the text of the same record.

use super::vectors::mean_score;
use crate::multimodal::metrics::{Bleu, Smoothing, TokenAgreement};
use crate::multimodal::trained::TrainedPair;
use data::text::TokenSet;
use data::text::sentences::{Language, Meaning, SLOTS};
use indexmap::IndexMap;
use report::axis::short;
use report::evaluation::{Metric, MetricsByName};
use serde_json::{Map, Value};
use unix::Result;

/// Compares sampled texts with those of the same records.
pub struct TextQuality<'a> {
    model: &'a TrainedPair,
    /// Tokens of the true texts without special ones.
    references: Vec<Vec<i32>>,
    /// The language of the texts and the meaning of each, if it is a synthetic one.
    meanings: Option<(Language, Vec<Meaning>)>,
}

/// Returns the meaning that a sentence expresses, if it expresses one completely.
pub fn meaning(language: Language, text: &str) -> Option<Meaning> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let slots = language.parse(&words);
    slots.iter().all(Option::is_some).then(|| slots.map(Option::unwrap_or_default))
}

impl<'a> TextQuality<'a> {
    /// Compares with the texts of these records.
    pub fn new(model: &'a TrainedPair, set: &TokenSet, records: &[usize]) -> Result<Self> {
        let references: Vec<Vec<i32>> = records.iter().map(|i| model.words(set.ids(*i))).collect();
        let texts = references.iter().map(|ids| model.text(ids)).collect::<Result<Vec<_>>>()?;
        let meanings = model.info.language.and_then(|language| {
            let all: Option<Vec<_>> = texts.iter().map(|text| meaning(language, text)).collect();
            Some((language, all?))
        });
        Ok(Self { model, references, meanings })
    }

    /// The metrics of texts [records], as token ids with special ones; names end in `suffix`.
    ///
    /// - Of a synthetic language: `slots`, the share of correct slots; `all_slots`, of texts with all of them;
    ///   `grammatical`, of texts that belong to the language.
    /// - `bleu`; `exact`; `token_f1`, of the tokens as multisets; `tokens`, the share of equal positions.
    pub fn metrics(&self, texts: &[Vec<i32>], suffix: &str) -> Result<MetricsByName> {
        let mut all = MetricsByName::new();
        let texts: Vec<Vec<i32>> = texts.iter().map(|ids| self.model.words(ids)).collect();
        if let Some((language, meanings)) = &self.meanings {
            let mut columns: [Vec<f64>; 3] = Default::default();
            for (ids, truth) in texts.iter().zip(meanings) {
                let text = self.model.text(ids)?;
                let words: Vec<&str> = text.split_whitespace().collect();
                let found = language.parse(&words);
                let right = found.iter().zip(truth).filter(|(a, b)| **a == Some(**b)).count();
                let flag = |is: bool| f64::from(u8::from(is));
                let values = [
                    right as f64 / SLOTS as f64,
                    flag(right == SLOTS),
                    flag(language.is_grammatical(&words)),
                ];
                columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
            }
            for (name, column) in ["slots", "all_slots", "grammatical"].iter().zip(columns) {
                all.insert(format!("{name}{suffix}"), mean_score(&column));
            }
        }
        let mut bleu = Bleu::default();
        let mut columns: [Vec<f64>; 3] = Default::default();
        for (text, reference) in texts.iter().zip(&self.references) {
            bleu.add(text, reference);
            let own = TokenAgreement::of(text, reference);
            let values = [f64::from(u8::from(own.exact)), own.f1, own.equal_share()];
            columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
        all.insert(format!("bleu{suffix}"), Metric::score(bleu.score(Smoothing::Exp)));
        for (name, column) in ["exact", "token_f1", "tokens"].iter().zip(columns) {
            all.insert(format!("{name}{suffix}"), mean_score(&column));
        }
        Ok(all)
    }

    /// The shares of correct slots and of texts with all of them, for predicted meanings; None for other languages.
    pub fn of_meanings(&self, found: &[Meaning], suffix: &str) -> Option<MetricsByName> {
        let (_, meanings) = self.meanings.as_ref()?;
        let right: Vec<usize> = found
            .iter()
            .zip(meanings)
            .map(|(a, b)| a.iter().zip(b).filter(|(a, b)| a == b).count())
            .collect();
        let slots: Vec<f64> = right.iter().map(|n| *n as f64 / SLOTS as f64).collect();
        let whole: Vec<f64> = right.iter().map(|n| f64::from(u8::from(*n == SLOTS))).collect();
        Some(MetricsByName::from_iter([
            (format!("slots{suffix}"), mean_score(&slots)),
            (format!("all_slots{suffix}"), mean_score(&whole)),
        ]))
    }

    /// The language of the texts, if it is a synthetic one.
    pub fn language(&self) -> Option<Language> {
        self.meanings.as_ref().map(|(language, _)| *language)
    }
}

/// The rows of the printed table, one for each method, with texts of `steps` steps.
pub fn rows(methods: &IndexMap<String, MetricsByName>, steps: usize) -> Vec<Value> {
    let columns = [
        ("nelbo".to_string(), "nelbo"),
        (format!("slots_{steps}"), "slots"),
        (format!("all_slots_{steps}"), "all_slots"),
        (format!("grammatical_{steps}"), "grammatical"),
        (format!("bleu_{steps}"), "bleu"),
        ("cosine".into(), "cosine"),
        ("recall_1".into(), "recall_1"),
        ("group_recall_1".into(), "group_recall_1"),
        ("choice_swap".into(), "swap"),
        ("similarity_spearman".into(), "similarity"),
    ];
    let is_used = |name: &str| methods.values().any(|own| own.contains_key(name));
    let columns: Vec<_> = columns.into_iter().filter(|(name, _)| is_used(name)).collect();
    // The model is last, as in the tables of other tasks.
    let row = |(method, metrics): (&String, &MetricsByName)| {
        let mut row = Map::from_iter([("method".to_string(), Value::from(method.as_str()))]);
        for (name, title) in &columns {
            let value = metrics.get(name).map_or(String::new(), |metric| short(metric.value));
            row.insert((*title).into(), value.into());
        }
        Value::from(row)
    };
    methods.iter().skip(1).chain(methods.iter().take(1)).map(row).collect()
}
