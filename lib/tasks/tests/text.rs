//! Encoders and heads against transformers: states, logits and all gradients.

use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use std::fs::{self, File};
use tasks::text::encoder::{Encoder, EncoderConfig, Kind, Tokens};
use tasks::text::head::{Head, HeadActivation, HeadConfig, Pooling};
use tasks::text::padded;
use tensor::safetensors::Header;
use tensor::{Dtype, Tape, Tensor};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/text.safetensors");
const VOCABULARY: usize = 61;

fn encoder(model_type: Kind) -> EncoderConfig {
    let is_bert = model_type == Kind::Bert;
    EncoderConfig {
        model_type,
        hidden_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 40,
        max_position_embeddings: 19,
        type_vocab_size: if is_bert { 2 } else { 1 },
        layer_norm_eps: if is_bert { 1e-12 } else { 1e-5 },
        ..EncoderConfig::default()
    }
}

/// Values of transformers in f64 (tests/golden/text.py), which the file holds rounded to f32.
#[test]
fn states_logits_and_gradients_are_those_of_transformers() {
    let golden = Header::read(&File::open(FILE).unwrap()).unwrap();
    let bytes = fs::read(FILE).unwrap();
    let words = |name: &str| {
        let entry = golden.get(name).unwrap_or_else(|| panic!("no {name}"));
        let words = bytes[entry.start as usize..entry.end as usize].as_chunks::<4>().0;
        (words.to_vec(), entry.shape.clone())
    };
    let read = |name: &str| {
        let (words, shape) = words(name);
        let values: Vec<f32> = words.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Tensor::from_slice(&values, &shape).to_dtype(Dtype::F64)
    };
    let integers =
        |name: &str| -> Vec<i32> { words(name).0.iter().map(|b| i32::from_le_bytes(*b)).collect() };
    let of = |pooling, hidden_dims: &[usize], activation| HeadConfig {
        pooling,
        hidden_dims: hidden_dims.to_vec(),
        activation,
        dropout: 0.1,
    };
    let (cls, gelu) = (Pooling::Cls, HeadActivation::Gelu);
    let cases = [
        ("bert", Kind::Bert, of(cls, &[], gelu)),
        ("roberta", Kind::Roberta, of(cls, &[], gelu)),
        ("bert_mean", Kind::Bert, of(Pooling::Mean, &[10], HeadActivation::Relu)),
        ("roberta_max", Kind::Roberta, of(Pooling::Max, &[9, 5], HeadActivation::Silu)),
        ("bert_attention", Kind::Bert, of(Pooling::Attention, &[6], gelu)),
        ("bert_cls", Kind::Bert, of(cls, &[7], gelu)),
    ];
    for (case, kind, head) in cases {
        let key = |name: &str| format!("{case}/{name}");
        let config = encoder(kind);
        let mut b = Builder::new(1);
        let model = Encoder::new(&mut b, &config, VOCABULARY);
        let head = Head::new(&mut b, &config, &head, 3);
        b.check().unwrap();
        let mut params = ParamSet::from(b.finish().trained.to_dtype(Dtype::F64));
        let names: Vec<String> =
            params.trained.entries().iter().map(|(name, _)| name.clone()).collect();
        for (name, value) in names.iter().zip(params.trained.tensors_mut()) {
            let given = read(&key(&format!("value/{name}")));
            assert_eq!(value.shape(), given.shape(), "{case}: {name}");
            *value = given;
        }
        let values = key("value/");
        let count = golden.entries.iter().filter(|entry| entry.name.starts_with(&values)).count();
        assert_eq!(count, names.len(), "{case}: parameters");

        // Without the padding of the file; `padded` adds its own, up to a multiple of 8.
        let lengths = integers(&key("lengths"));
        let shape = words(&key("ids")).1;
        let rows = |name: &str| -> Vec<Vec<i32>> {
            let all = integers(&key(name));
            let rows = all.chunks(shape[1]).zip(&lengths);
            rows.map(|(row, length)| row[..*length as usize].to_vec()).collect()
        };
        let ids = rows("ids");
        let segments = |row: &Vec<i32>| row.iter().map(|segment| *segment as u8).collect();
        let types: Vec<Vec<u8>> = rows("types").iter().map(segments).collect();
        let texts: Vec<(&[i32], &[u8])> =
            ids.iter().zip(&types).map(|(ids, types)| (&ids[..], &types[..])).collect();
        let padding = if kind == Kind::Bert { 0 } else { 1 };
        let batch = padded(&texts, padding, config.first_position(padding as usize));
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params);
        let input = |name: &str| batch.input(&forward, name).unwrap();
        let tokens = Tokens::of(&batch, &forward).unwrap();
        let states = model.forward(&forward, &tokens).unwrap();
        let [weights, hidden] = ["mean", "hidden"].map(input);
        let logits = head.forward(&forward, &states, [&weights, &hidden, &tokens.lengths]).unwrap();
        let variables = forward.variables().to_vec();
        drop(forward);
        let mut gradients = tape.backward_from(&logits, read(&key("dlogits"))).unwrap();

        let near = |what: &str, found: &[f64], expected: &[f64]| {
            let scale = expected.iter().fold(1e-3, |most: f64, value| most.max(value.abs()));
            assert_eq!(found.len(), expected.len(), "{case}: {what}");
            for (found, expected) in found.iter().zip(expected) {
                // The file's values are rounded to f32, 6e-8 of the largest.
                assert!(
                    (found - expected).abs() < 2e-7 * scale,
                    "{case}: {what}: {found} {expected}"
                );
            }
        };
        let expected = read(&key("states"));
        let (width, padded_to) = (config.hidden_size, states.shape()[1]);
        for (row, length) in lengths.iter().enumerate() {
            let values = *length as usize * width;
            let found = &states.value().read::<f64>()[row * padded_to * width..][..values];
            let wanted = &expected.read::<f64>()[row * shape[1] * width..][..values];
            near("states", found, wanted);
        }
        near("logits", logits.value().read::<f64>(), read(&key("logits")).read::<f64>());
        for (name, variable) in names.iter().zip(&variables) {
            let expected = read(&key(&format!("gradient/{name}")));
            let zeros = vec![0.0; expected.len()];
            let found = gradients.take(variable);
            let found = found.as_ref().map_or(&zeros[..], |found| found.read::<f64>());
            near(name, found, expected.read::<f64>());
        }
    }
}
