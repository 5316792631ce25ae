//! Maps the heads of the tasks to those of transformers.

use crate::text::classify::{Classifier, ClassifyModel, ClassifyTask};
use crate::text::encoder::Architecture;
use crate::text::head::Pooling;
use crate::text::span::{SpanFinder, SpanModel, SpanTask};
use data::text::TokenInfo;
use learn::params::Builder;
use learn::task::Define;
use learn::trained::Parts;
use serde_json::{Map, Value, json};
use unix::Result;

/// A task whose models can be exported.
pub(super) struct ExportableTask {
    /// Its name.
    pub task: &'static str,
    /// Registers the parameters of the model of a checkpoint, for the tokenizer and labels described by the last
    /// argument.
    pub build: fn(&mut Builder, &Parts, &TokenInfo) -> Result<()>,
    /// The head of the model of a checkpoint.
    pub head: fn(&Parts, &TokenInfo) -> Result<Head>,
}

/// A head.
pub(super) enum Head {
    /// transformers has such a head.
    TransformersHead(TransformersHead),
    /// transformers has no such head, for this reason.
    Unknown(String),
}

/// A head of transformers.
pub(super) struct TransformersHead {
    /// The suffix of its architecture, e.g. `ForSequenceClassification`.
    pub architecture: &'static str,
    /// The name of its task in PEFT.
    pub peft_task: &'static str,
    /// Its keys in config.json.
    pub keys: Map<String, Value>,
}

/// All tasks whose models can be exported.
pub(super) static EXPORTABLE_TASKS: [ExportableTask; 2] = [
    ExportableTask { task: ClassifyTask::SPEC.name, build: build_classifier, head: of_classifier },
    ExportableTask { task: SpanTask::SPEC.name, build: build_span_finder, head: of_span_finder },
];

fn build_span_finder(b: &mut Builder, parts: &Parts, info: &TokenInfo) -> Result<()> {
    SpanFinder::new(b, &parts.section::<SpanModel>("model")?, info);
    b.check()
}

fn of_span_finder(parts: &Parts, _: &TokenInfo) -> Result<Head> {
    let SpanModel { encoder, head, .. } = parts.section("model")?;
    if !head.hidden_dims.is_empty() {
        let problem = "span heads in transformers have no hidden layers, but model.head.hidden_dims is not empty";
        return Ok(Head::Unknown(problem.into()));
    }
    // Only DistilBERT has dropout there.
    let dropout = ("qa_dropout".to_string(), json!(head.dropout));
    Ok(Head::TransformersHead(TransformersHead {
        architecture: "ForQuestionAnswering",
        peft_task: "QUESTION_ANS",
        keys: [dropout]
            .into_iter()
            .filter(|_| encoder.model_type == Architecture::Distilbert)
            .collect(),
    }))
}

fn build_classifier(b: &mut Builder, parts: &Parts, info: &TokenInfo) -> Result<()> {
    Classifier::new(b, &parts.section::<ClassifyModel>("model")?, info);
    b.check()
}

fn of_classifier(parts: &Parts, info: &TokenInfo) -> Result<Head> {
    let ClassifyModel { encoder, head, .. } = parts.section("model")?;
    if head.pooling != Pooling::Cls || !head.hidden_dims.is_empty() {
        return Ok(Head::Unknown(
            "classification heads in transformers have model.head.pooling cls and no model.head.hidden_dims".into(),
        ));
    }
    let dropout = match encoder.model_type {
        Architecture::Distilbert => "seq_classif_dropout",
        Architecture::Bert | Architecture::Roberta | Architecture::XlmRoberta => {
            "classifier_dropout"
        }
    };
    let labels = || info.labels.iter().enumerate();
    let to_label: Map<String, Value> =
        labels().map(|(class, label)| (class.to_string(), json!(label))).collect();
    let to_class: Map<String, Value> =
        labels().map(|(class, label)| (label.clone(), json!(class))).collect();
    let problem = match info.multi_label {
        true => "multi_label_classification",
        false => "single_label_classification",
    };
    let keys = [
        (dropout, json!(head.dropout)),
        ("id2label", to_label.into()),
        ("label2id", to_class.into()),
        ("problem_type", json!(problem)),
    ];
    Ok(Head::TransformersHead(TransformersHead {
        architecture: "ForSequenceClassification",
        peft_task: "SEQ_CLS",
        keys: keys.map(|(key, value)| (key.to_string(), value)).into_iter().collect(),
    }))
}
