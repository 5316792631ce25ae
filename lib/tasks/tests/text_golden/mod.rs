//! Files of values of transformers, and the models that they were computed with.

use learn::forward::Forward;
use learn::params::ParamSet;
use std::fs::{self, File};
use tasks::text::encoder::{Architecture, EncoderConfig};
use tensor::safetensors::{Entry, Header};
use tensor::{Device, Dtype, Tape, Tensor, Var};

pub const VOCABULARY: usize = 61;
#[allow(dead_code, reason = "used with the emulator")]
pub const LAYERS: usize = 2;

pub fn encoder(model_type: Architecture) -> EncoderConfig {
    let is_roberta = matches!(model_type, Architecture::Roberta | Architecture::XlmRoberta);
    EncoderConfig {
        model_type,
        hidden_size: 24,
        num_hidden_layers: LAYERS,
        num_attention_heads: 3,
        intermediate_size: 40,
        max_position_embeddings: 19,
        type_vocab_size: if is_roberta { 1 } else { 2 },
        layer_norm_eps: if is_roberta { 1e-5 } else { 1e-12 },
        ..EncoderConfig::default()
    }
}

/// The file of goldens.
pub struct Golden {
    pub header: Header,
    bytes: Vec<u8>,
}

impl Golden {
    /// A file of tests/golden.
    pub fn open(name: &str) -> Self {
        let path = format!("{}/../../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        let header = Header::read(&File::open(&path).unwrap()).unwrap();
        Self { header, bytes: fs::read(&path).unwrap() }
    }

    /// The same parameters with the values of a case, `CASE/value/PARAMETER`, all of which must be used.
    pub fn assigned(&self, case: &str, params: ParamSet) -> ParamSet {
        let values = format!("{case}/value/");
        let is_value = |entry: &&Entry| entry.name.starts_with(&values);
        let count = self.header.entries.iter().filter(is_value).count();
        let [mut trained, mut frozen] =
            [params.trained, params.frozen].map(|params| params.to_dtype(Dtype::F64));
        assert_eq!(count, trained.entries().len() + frozen.entries().len(), "{case}: parameters");
        for params in [&mut trained, &mut frozen] {
            let all = params.entries().iter();
            let given = all.map(|(name, _)| self.read(&format!("{values}{name}")));
            let given: Vec<Tensor> = given.collect();
            for (value, given) in params.tensors_mut().zip(given) {
                assert_eq!(value.shape(), given.shape(), "{case}");
                *value = given;
            }
        }
        ParamSet { trained, frozen }
    }

    /// Ids and segments of texts, `CASE/PREFIXids` and so on, without the padding of the file.
    pub fn texts(&self, case: &str, prefix: &str) -> Vec<(Vec<i32>, Vec<u8>)> {
        let key = |name: &str| format!("{case}/{prefix}{name}");
        let width = self.words(&key("ids")).1[1];
        let [ids, types, lengths] =
            ["ids", "types", "lengths"].map(|name| self.integers(&key(name)));
        let rows = ids.chunks(width).zip(types.chunks(width)).zip(lengths);
        let row = |((ids, types), length): ((&[i32], &[i32]), i32)| {
            let own = ..length as usize;
            (ids[own].to_vec(), types[own].iter().map(|segment| *segment as u8).collect())
        };
        rows.map(row).collect()
    }

    /// Checks values of a case, which the file holds rounded to f32: 6e-8 of the largest.
    pub fn near(&self, case: &str, what: &str, found: &[f64], expected: &[f64]) {
        let scale = expected.iter().fold(1e-3, |most: f64, value| most.max(value.abs()));
        assert_eq!(found.len(), expected.len(), "{case}: {what}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 2e-7 * scale, "{case}: {what}: {found} {expected}");
        }
    }

    /// Compares logits, loss and every gradient of a decoder with those of a case, relative to the largest value. `run` computes
    /// the logits [B, T, V] of all tokens and the loss [1].
    #[allow(dead_code, reason = "for decoders")]
    pub fn compare(
        &self,
        case: &str,
        params: &ParamSet,
        (dtype, device): (Dtype, Device),
        tolerance: f64,
        run: impl Fn(&Forward) -> [Var; 2],
    ) {
        let tape = Tape::new();
        let forward = Forward::training(&tape, params);
        let [logits, loss] = run(&forward);
        let variables = forward.variables().to_vec();
        drop(forward);
        let check = |what: &str, found: &[f64], key: &str| {
            let expected = self.read(&format!("{case}/{key}")).to_f64();
            assert_eq!(found.len(), expected.len(), "{case}: {what}");
            assert!(found.iter().all(|x| x.is_finite()), "{case}: {what}");
            let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let error = errors.fold(0.0, f64::max) / largest;
            assert!(error <= tolerance, "{case} in {dtype} on {device}: {what}: {error}");
        };
        check("logits", &self.visible(case, &logits), "logits");
        check("loss", &loss.value().to_host().unwrap().to_f64(), "loss");
        let one = Tensor::full(&[1], 1.0, dtype).to_device(device).unwrap();
        let mut gradients = tape.backward_from(&loss, one).unwrap();
        for ((name, _), variable) in params.trained.entries().iter().zip(&variables) {
            let found = gradients.take(variable).unwrap().to_host().unwrap();
            check(name, &found.to_f64(), &format!("gradient/{name}"));
        }
    }

    /// Logits with zeros at padding, as the file has them.
    fn visible(&self, case: &str, logits: &Var) -> Vec<f64> {
        let logits = logits.value().to_host().unwrap();
        let (tokens, classes) = (logits.shape()[1], logits.shape()[2]);
        let lengths = self.integers(&format!("{case}/lengths"));
        let is_visible = |i: usize| i / classes % tokens < lengths[i / (tokens * classes)] as usize;
        let values = logits.to_f64().into_iter().enumerate();
        values.map(|(i, x)| if is_visible(i) { x } else { 0.0 }).collect()
    }

    pub fn words(&self, name: &str) -> (Vec<[u8; 4]>, Vec<usize>) {
        let entry = self.header.get(name).unwrap_or_else(|| panic!("no {name}"));
        let words = self.bytes[entry.start as usize..entry.end as usize].as_chunks::<4>().0;
        (words.to_vec(), entry.shape.clone())
    }

    pub fn read(&self, name: &str) -> Tensor {
        let (words, shape) = self.words(name);
        let values: Vec<f32> = words.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Tensor::from_slice(&values, &shape).to_dtype(Dtype::F64)
    }

    pub fn integers(&self, name: &str) -> Vec<i32> {
        self.words(name).0.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }
}
