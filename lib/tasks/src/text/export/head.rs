//! The heads of the tasks as transformers has them.

use crate::text::classify::{Classifier, ClassifyModel, ClassifyTask};
use crate::text::encoder::Kind;
use crate::text::head::Pooling;
use crate::text::span::{SpanFinder, SpanModel, SpanTask};
use data::text::TokenInfo;
use learn::params::Builder;
use learn::task::Define;
use learn::trained::Parts;
use serde_json::{Map, Value, json};
use unix::Result;

/// A task whose models can be exported.
pub(super) struct Source {
    /// Its name.
    pub task: &'static str,
    /// Registers the parameters of the model of a checkpoint, for tokens of this kind.
    pub build: fn(&mut Builder, &Parts, &TokenInfo) -> Result<()>,
    /// The head of the model of a checkpoint.
    pub head: fn(&Parts, &TokenInfo) -> Result<Head>,
}

/// A head.
pub(super) enum Head {
    /// Transformers has it.
    Known(Known),
    /// Transformers does not have it, with the reason.
    Unknown(String),
}

/// A head of transformers.
pub(super) struct Known {
    /// The name of its models, without that of the encoder.
    pub architecture: &'static str,
    /// The name of its task in PEFT.
    pub peft_task: &'static str,
    /// Its keys in config.json.
    pub keys: Map<String, Value>,
}

/// All of them.
pub(super) static SOURCES: [Source; 2] = [
    Source { task: ClassifyTask::SPEC.name, build: build_classifier, head: of_classifier },
    Source { task: SpanTask::SPEC.name, build: build_span_finder, head: of_span_finder },
];

fn build_span_finder(b: &mut Builder, parts: &Parts, info: &TokenInfo) -> Result<()> {
    SpanFinder::new(b, &parts.section::<SpanModel>("model")?, info);
    b.check()
}

fn of_span_finder(parts: &Parts, _: &TokenInfo) -> Result<Head> {
    let SpanModel { encoder, head, .. } = parts.section("model")?;
    if !head.hidden_dims.is_empty() {
        let problem = "transformers has only heads of spans without model.head.hidden_dims";
        return Ok(Head::Unknown(problem.into()));
    }
    // Only DistilBERT has dropout there.
    let dropout = ("qa_dropout".to_string(), json!(head.dropout));
    Ok(Head::Known(Known {
        architecture: "ForQuestionAnswering",
        peft_task: "QUESTION_ANS",
        keys: [dropout].into_iter().filter(|_| encoder.model_type == Kind::Distilbert).collect(),
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
            "transformers has only heads with model.head.pooling cls and no hidden_dims".into(),
        ));
    }
    let dropout = match encoder.model_type {
        Kind::Distilbert => "seq_classif_dropout",
        Kind::Bert | Kind::Roberta | Kind::XlmRoberta => "classifier_dropout",
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
    Ok(Head::Known(Known {
        architecture: "ForSequenceClassification",
        peft_task: "SEQ_CLS",
        keys: keys.map(|(key, value)| (key.to_string(), value)).into_iter().collect(),
    }))
}
