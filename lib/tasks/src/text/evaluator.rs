//! Evaluates text models: their classes, their answers, or both.
//!
//! Items are the records of the scored split, then those of the validation split, on which thresholds and the
//! temperature are fitted.

use super::class_scores::{self, PartScores};
use super::sets::{TextData, open_sets};
use super::span;
use super::task::DefineText;
use super::trained::{TextOutput, TrainedText};
use crate::evaluation::ScoreRequest;
use data::inputs::InputFile;
use data::split::SplitName;
use data::text::TokenSet;
use learn::evaluate::{
    Block, Evaluation, Evaluator, ItemLoss, Losses, Model, Results, Shown, subject,
};
use learn::score::Bits;
use report::document::Document;
use report::evaluation::{Metric, Scores, Subject};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;
use unix::{Error, Result, warn};

/// Records per block.
const BLOCK: u64 = 256;

/// A model and the data that it is scored on.
struct TextEvaluator {
    model: TrainedText,
    folder: PathBuf,
    /// The split to score, the training and the validation split.
    sets: [TokenSet; 3],
    /// The group of each record of the scored split, if records have groups.
    groups: Option<Vec<usize>>,
    /// Whether a record may have no answer.
    may_lack_answer: bool,
    /// The fitted no-answer threshold, see [`span::fitted_threshold`].
    threshold: OnceLock<Option<f64>>,
}

/// Opens the evaluation of a model of this kind.
///
/// Errors: 2 when the data are not tokens; 65 when their tokenizer or labels differ from those of the model; 66; 78.
pub(super) fn open<M: DefineText>(request: &ScoreRequest) -> Result<Box<dyn Evaluation>> {
    if !TokenSet::is_at(request.data) {
        return Err(Error::usage(format!(
            "--data {}: the model is a text model; name a folder written by ds-prep tokenize",
            request.data.display()
        )));
    }
    request.opener.require_known(request.parts, &[])?;
    let sets = open_sets(request.data, request.split)?;
    let (info, folder) = (sets[0].info(), request.data.to_path_buf());
    let model = TrainedText::restore::<M>(request.parts, request.opener, info, request.data)?;
    let data: TextData = request.parts.section("data")?;
    let scores_validation = request.split == SplitName::Validation;
    if scores_validation || data.train_on != Default::default() {
        warn!(
            "thresholds and the temperature are fitted on the validation split, which is {}: metrics that depend on them are \
             too optimistic",
            if scores_validation { "scored here" } else { "part of the training data" }
        );
    }
    let (groups, threshold) = (class_scores::groups(&sets[0]), OnceLock::new());
    let may_lack_answer = info.answers && span::needs_threshold(&sets[1], &sets[2]);
    Ok(Box::new(TextEvaluator { model, folder, groups, may_lack_answer, threshold, sets }))
}

impl TextEvaluator {
    /// The set that contains an item, and the index of its record in it.
    fn locate(&self, item: u64) -> (&TokenSet, usize) {
        let [set, _, validation] = &self.sets;
        match (item as usize).checked_sub(set.len()) {
            None => (set, item as usize),
            Some(i) => (validation, i),
        }
    }

    /// The outputs for the scored split and for the validation split.
    fn by_split<'f>(&self, found: &'f [TextOutput]) -> [&'f [TextOutput]; 2] {
        let (own, known) = found.split_at(self.sets[0].len());
        // If the validation split is scored, its outputs serve both purposes.
        [own, if known.is_empty() { own } else { known }]
    }

    fn threshold(&self, found: &[TextOutput]) -> Option<f64> {
        let [_, train, validation] = &self.sets;
        let known = self.by_split(found)[1];
        *self.threshold.get_or_init(|| span::fitted_threshold(train, (validation, known)))
    }

    /// Whether the model predicts classes, and whether it predicts answers.
    fn predicts(&self) -> [bool; 2] {
        [self.model.has_classes(), self.model.finds_answers()]
    }

    /// The line of predictions.jsonl for a record of the scored split.
    fn row(&self, found: &[TextOutput], i: usize) -> Map<String, Value> {
        let (set, [classes, answers]) = (&self.sets[0], self.predicts());
        let mut row = Map::new();
        if classes {
            row.extend(class_scores::row(set, i, &found[i].classes));
        }
        if answers {
            row.extend(span::row(set, i, &found[i].answer, self.threshold(found)));
        }
        row
    }

    /// The loss of a record: the log loss of its class; 1 - F1 of its answer; or, with both, the mean of their 0/1
    /// errors.
    fn loss_of(&self, i: usize, found: &TextOutput) -> ItemLoss {
        let set = &self.sets[0];
        let answer = || {
            let threshold = self.may_lack_answer.then_some(0.0);
            (span::agreement(set, i, found.answer.answer(threshold)), found.answer.margin())
        };
        let class = || class_scores::loss(set, i, &found.classes);
        let (value, confidence) = match self.predicts() {
            [true, true] => {
                let ((_, is_right, confidence), (agreement, _)) = (class(), answer());
                let wrong = [is_right, agreement.exact()].map(|right| f64::from(u8::from(!right)));
                ((wrong[0] + wrong[1]) / 2.0, confidence)
            }
            [_, true] => {
                let (agreement, margin) = answer();
                (1.0 - agreement.f1, margin)
            }
            _ => (class().0, 0.0),
        };
        ItemLoss { value: Bits(value), confidence: Bits(confidence) }
    }

    /// Warns if texts of the scored split resemble those of another one.
    fn warn_of_leaks(&self, details: &Map<String, Value>) {
        let leaked = details.get("leaks").and_then(|leaks| leaks["leaked"].as_u64()).unwrap_or(0);
        if leaked > 0 {
            warn!(
                "{leaked} of {} texts of the {} split resemble texts of other splits; details.leaks in metrics.json has the \
                 metrics without them",
                self.sets[0].len(),
                self.sets[0].name()
            );
        }
    }
}

impl Evaluator for TextEvaluator {
    type Part = Vec<TextOutput>;
    type Sums = Vec<TextOutput>;

    fn subject(&self) -> Subject {
        let set = &self.sets[0];
        let metric = match self.predicts() {
            [true, true] => "joint_score",
            [true, false] => "f1_macro",
            [false, _] => "exact_match",
        };
        let mut subject =
            subject((self.model.task(), metric), (&self.folder, set.hash()), set.name());
        subject.description = format!("{} texts of the {} split", set.len(), set.name());
        subject.protocol.insert("records".into(), set.len().into());
        subject.settings.insert("truncated".into(), set.truncated().into());
        // Thresholds and the temperature depend on it.
        subject.settings.insert("validation_hash".into(), self.sets[2].hash().into());
        subject
    }

    fn models(&self) -> Vec<Model> {
        vec![self.model.model(self.sets[1].hash())]
    }

    fn noun(&self) -> &'static str {
        "texts"
    }

    fn items(&self) -> u64 {
        let [set, _, validation] = &self.sets;
        let more = if set.name() == SplitName::Validation { 0 } else { validation.len() };
        (set.len() + more) as u64
    }

    fn scored(&self) -> u64 {
        self.sets[0].len() as u64
    }

    fn block_end(&self, first: u64) -> u64 {
        let end = first + BLOCK;
        if first < self.scored() { end.min(self.scored()) } else { end }
    }

    fn inputs(&self) -> Vec<InputFile> {
        self.sets.iter().flat_map(TokenSet::input_files).collect()
    }

    fn loss_name(&self) -> &'static str {
        match self.predicts() {
            [true, true] => "joint_error",
            [true, false] => "log_loss",
            [false, _] => "f1_error",
        }
    }

    fn cluster(&self, item: u64) -> u64 {
        self.groups.as_ref().map_or(item, |groups| groups[item as usize] as u64)
    }

    fn measure(&self, block: Range<u64>) -> Result<Block<Vec<TextOutput>>> {
        let (set, first) = self.locate(block.start);
        let own = first..first + (block.end - block.start) as usize;
        let records = own.clone().map(|i| set.checked(i)).collect::<Result<Vec<_>>>()?;
        let part = self.model.outputs(&records, first)?;
        let is_scored = block.start < self.scored();
        let scored = own.zip(&part).filter(|_| is_scored);
        let losses = scored.map(|(i, found)| self.loss_of(i, found)).collect();
        Ok(Block { part, losses })
    }

    fn add(&self, sums: &mut Vec<TextOutput>, part: Vec<TextOutput>) {
        sums.extend(part);
    }

    fn finish(&self, found: &Vec<TextOutput>, _: &Losses) -> Result<Results> {
        let [set, train, validation] = &self.sets;
        let (task, [own, known]) = (self.model.task(), self.by_split(found));
        let mut page = Document::new(format!("Mistakes on the {} split", set.name()));
        let mut all = PartScores::default();
        if self.predicts()[0] {
            let logits = [own, known].map(|found| {
                found.iter().flat_map(|own| own.classes.iter().copied()).collect::<Vec<f32>>()
            });
            all = class_scores::scores(task, [set, train, validation], &logits, &mut page)?;
        }
        if self.predicts()[1] {
            let prefix = if self.predicts()[0] { "answer_" } else { "" };
            let threshold = self.threshold(found);
            let sets = [set, train, validation];
            let answers = span::scores((task, prefix), sets, own, threshold, &mut page);
            all.merge(answers, !prefix.is_empty());
        }
        let PartScores { mut methods, rows, details, groups } = all;
        if let ([true, true], Some(metrics)) = (self.predicts(), methods.get_mut(task)) {
            let value = |name: &str| metrics.get(name).map_or(f64::NAN, |metric| metric.value);
            let f1 = [value("f1_binary"), value("f1_macro")].into_iter().find(|f1| !f1.is_nan());
            let joint = (f1.unwrap_or(f64::NAN) + value("answer_exact_match")) / 2.0;
            metrics.shift_insert(0, "joint_score".into(), Metric::score(joint));
        }
        self.warn_of_leaks(&details);
        let mut lines = Vec::new();
        for i in 0..set.len() {
            serde_json::to_writer(&mut lines, &self.row(found, i)).map_err(Error::bug)?;
            lines.push(b'\n');
        }
        Ok(Results {
            scores: Scores { samples: set.len() as u64, methods },
            groups,
            details,
            rows,
            files: vec![("predictions.jsonl".into(), lines)],
            page: Some(page),
            ..Results::default()
        })
    }

    fn show(&self, found: &Vec<TextOutput>, item: u64) -> Result<Shown> {
        let (set, i) = self.locate(item);
        let mut fields = self.row(found, i);
        if !fields.contains_key("context") || self.predicts()[0] {
            fields.insert("text".into(), set.all_texts(i).into());
        }
        Ok(Shown { fields, ..Shown::default() })
    }
}
