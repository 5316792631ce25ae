//! Models of answers and joint models against transformers: logits, loss and all gradients; and SQuAD's evaluation.

mod text_golden;

use data::text::{SpecialTokens, TokenInfo};
use learn::forward::Forward;
use learn::params::Builder;
use learn::task::Batch;
use serde_json::Value;
use std::fs;
use tasks::text::encoder::Architecture;
use tasks::text::span::{Agreement, SpanHeadConfig, SpanModel, span_loss};
use tasks::text::{EncodedText, Joint, JointModel, SpanFinder, TextModel, with_texts};
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Tape, Tensor};
use text_golden::{Golden, VOCABULARY, encoder};

fn info(padding: i32) -> TokenInfo {
    let special = SpecialTokens {
        padding,
        cls: None,
        sep: None,
        mask: None,
        unk: None,
        bos: None,
        eos: None,
    };
    TokenInfo {
        chat: None,
        labels: ["a", "b", "c"].map(String::from).to_vec(),
        multi_label: false,
        pairs: false,
        answers: true,
        vocabulary: VOCABULARY,
        special,
        max_length: 16,
        stride: 0,
        tokenizer_hash: String::new(),
        vector: 0,
        vectors_only: false,
        language: None,
        embedding: None,
    }
}

/// Values of transformers in f64 (tests/golden/text_spans.py), which the file holds rounded to f32.
#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    let golden = Golden::open("text_spans.safetensors");
    let cases = [
        ("bert", Architecture::Bert, None),
        ("roberta", Architecture::Roberta, None),
        ("distilbert", Architecture::Distilbert, None),
        ("joint_bert", Architecture::Bert, Some(false)),
        ("joint_roberta", Architecture::Roberta, Some(false)),
        ("joint_share", Architecture::Bert, Some(true)),
    ];
    for (case, kind, joint) in cases {
        let key = |name: &str| format!("{case}/{name}");
        let config = encoder(kind);
        let padding = if kind == Architecture::Roberta { 1 } else { 0 };
        let mut b = Builder::new(1);
        let (encoder, span) = (config.clone(), SpanHeadConfig::default());
        let model: Box<dyn TextModel> = match joint {
            None => {
                let config = SpanModel { encoder, head: span, lora: None };
                Box::new(SpanFinder::new(&mut b, &config, &info(padding)))
            }
            Some(share) => {
                let config = JointModel { encoder, share, span, ..JointModel::default() };
                Box::new(Joint::new(&mut b, &config, &info(padding)))
            }
        };
        b.check().unwrap();
        let params = golden.assigned(case, b.finish());
        let first = config.first_position(padding as usize);
        let mut batch = Batch::new(5.0);
        for prefix in ["", "text_"].into_iter().take(if joint.is_some() { 2 } else { 1 }) {
            let rows = golden.texts(case, prefix);
            let texts: Vec<EncodedText> =
                rows.iter().map(|(ids, types)| (&ids[..], &types[..])).collect();
            batch = with_texts(batch, prefix, &texts, padding, first);
        }
        let places = golden.integers(&key("places"));
        let batch = batch
            .with("places", Tensor::from_slice(&places, &[places.len()]))
            .with("halves", Tensor::from_slice(&vec![0.5_f32; places.len()], &[places.len()]));
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params);
        let found = model.forward(&forward, &batch).unwrap();
        let logits = found.answers().unwrap();
        let mut loss = span_loss(&forward, &batch, logits).unwrap();

        if let Some(classes) = &found.classes {
            golden.near(
                case,
                "classes",
                classes.value().read::<f64>(),
                golden.read(&key("class_logits")).read::<f64>(),
            );
            let truth = golden.integers(&key("classes"));
            let truth = forward.constant(&Tensor::from_slice(&truth, &[truth.len()])).unwrap();
            let term = forward.apply(CrossEntropy::default(), &[classes, &truth]).unwrap();
            loss = forward.apply(WeightedSum(vec![1.0, 2.0]), &[&loss, &term]).unwrap();
        }
        let expected = golden.read(&key("logits"));
        let [longest, padded_to] = [expected.shape()[1], logits.shape()[1]];
        for (row, (ids, _)) in golden.texts(case, "").iter().enumerate() {
            let found = &logits.value().read::<f64>()[row * padded_to * 2..][..2 * ids.len()];
            let wanted = &expected.read::<f64>()[row * longest * 2..][..2 * ids.len()];
            golden.near(case, "logits", found, wanted);
        }
        let value = golden.read(&key("loss"));
        golden.near(case, "loss", loss.value().read::<f64>(), value.read::<f64>());
        let variables = forward.variables().to_vec();
        drop(forward);
        let mut gradients = tape.backward(&loss).unwrap();
        for ((name, _), variable) in params.trained.entries().iter().zip(&variables) {
            let expected = golden.read(&key(&format!("gradient/{name}")));
            let zeros = vec![0.0; expected.len()];
            let found = gradients.take(variable);
            let found = found.as_ref().map_or(&zeros[..], |found| found.read::<f64>());
            golden.near(case, name, found, expected.read::<f64>());
        }
    }
}

/// Exact match and F1 of the official script for pairs of answers with articles, punctuation and letters beyond ASCII.
#[test]
fn texts_are_compared_as_squad_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/text_spans.json");
    let pairs: Vec<(String, String, bool, f64)> = serde_json::from_value(
        serde_json::from_str::<Value>(&fs::read_to_string(path).unwrap()).unwrap(),
    )
    .unwrap();
    assert!(pairs.len() > 700);
    for (predicted, truth, exact, f1) in pairs {
        let found = Agreement::of(Some(([0, 0], &predicted)), Some(([0, 0], &truth)));
        assert_eq!(found.text, exact, "{predicted:?} {truth:?}");
        assert!(
            (found.text_f1 - f1).abs() < 1e-15,
            "{predicted:?} {truth:?}: {} {f1}",
            found.text_f1
        );
    }
}
