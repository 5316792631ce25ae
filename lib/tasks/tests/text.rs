//! Encoders and heads against transformers: states, logits and all gradients.

mod text_golden;

use learn::adapt::{Lora, merged};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::task::Batch;
use tasks::text::encoder::{Architecture, Encoder, EncoderConfig, Tokens};
use tasks::text::head::{Head, HeadActivation, HeadConfig, Pooling};
use tasks::text::{EncodedText, States, padded};
use tensor::{Device, Dtype, Tape, Var};
#[cfg(feature = "emu")]
use text_golden::LAYERS;
use text_golden::{Golden, VOCABULARY, encoder};

/// A model with the parameters of a case.
struct Model {
    config: EncoderConfig,
    encoder: Encoder,
    head: Head,
    params: ParamSet,
    batch: Batch,
}

impl Model {
    fn of(
        golden: &Golden,
        case: &str,
        kind: Architecture,
        head: &HeadConfig,
        lora: Option<&Lora>,
    ) -> Self {
        let config = encoder(kind);
        let mut b = Builder::new(1);
        let encoder = b.adapted(lora, |b| Encoder::new(b, &config, VOCABULARY));
        let head = Head::new(&mut b, &config, None, head, 3);
        b.check().unwrap();
        let params = golden.assigned(case, b.finish());
        let rows = golden.texts(case, "");
        let texts: Vec<EncodedText> =
            rows.iter().map(|(ids, types)| (&ids[..], &types[..])).collect();
        let padding =
            if matches!(kind, Architecture::Bert | Architecture::Distilbert) { 0 } else { 1 };
        let batch = padded(&texts, padding, config.first_position(padding as usize));
        Self { config, encoder, head, params, batch }
    }

    /// States and logits.
    fn run(&self, forward: &Forward) -> [Var; 2] {
        let tokens = Tokens::of(&self.batch, forward, "").unwrap();
        let input = |name| self.batch.input(forward, name).unwrap();
        let states = States {
            states: self.encoder.forward(forward, &tokens).unwrap(),
            mean: input("mean"),
            hidden: input("hidden"),
            lengths: tokens.lengths,
        };
        let logits = self.head.forward(forward, &states).unwrap();
        [states.states, logits]
    }
}

/// Name, architecture, head and adapter of each case.
fn cases() -> Vec<(&'static str, Architecture, HeadConfig, Option<Lora>)> {
    let of = |pooling, hidden_dims: &[usize], activation| HeadConfig {
        pooling,
        hidden_dims: hidden_dims.to_vec(),
        activation,
        ..HeadConfig::default()
    };
    let (cls, gelu) = (Pooling::Cls, HeadActivation::Gelu);
    let plain = || of(cls, &[], gelu);
    let targets = ["query", "value", "intermediate.dense"].map(String::from).to_vec();
    let targets = targets.into();
    let lora = Lora { r: 3, alpha: 5.0, rslora: false, dropout: 0.1, targets, pooler: true };
    vec![
        ("bert", Architecture::Bert, plain(), None),
        ("roberta", Architecture::Roberta, plain(), None),
        ("bert_mean", Architecture::Bert, of(Pooling::Mean, &[10], HeadActivation::Relu), None),
        (
            "roberta_max",
            Architecture::Roberta,
            of(Pooling::Max, &[9, 5], HeadActivation::Silu),
            None,
        ),
        ("bert_cls", Architecture::Bert, of(cls, &[7], gelu), None),
        ("bert_attention", Architecture::Bert, of(Pooling::Attention, &[6], gelu), None),
        ("xlm", Architecture::XlmRoberta, plain(), None),
        ("distilbert", Architecture::Distilbert, plain(), None),
        ("bert_lora", Architecture::Bert, plain(), Some(lora)),
    ]
}

/// Values of transformers and PEFT in f64 (tests/golden/text.py), which the file holds rounded to f32.
#[test]
fn states_logits_and_gradients_are_those_of_transformers() {
    let golden = Golden::open("text.safetensors");
    for (case, kind, head, lora) in cases() {
        let key = |name: &str| format!("{case}/{name}");
        let model = Model::of(&golden, case, kind, &head, lora.as_ref());
        let tape = Tape::new();
        let forward = Forward::training(&tape, &model.params);
        let [states, logits] = model.run(&forward);
        let variables = forward.variables().to_vec();
        drop(forward);
        let mut gradients = tape.backward_from(&logits, golden.read(&key("dlogits"))).unwrap();

        let near = |what: &str, found: &[f64], expected: &[f64]| {
            golden.near(case, what, found, expected);
        };
        let expected = golden.read(&key("states"));
        let (width, padded_to) = (model.config.hidden_size, states.shape()[1]);
        let (lengths, longest) = (golden.integers(&key("lengths")), expected.shape()[1]);
        for (row, length) in lengths.iter().enumerate() {
            let values = *length as usize * width;
            let found = &states.value().read::<f64>()[row * padded_to * width..][..values];
            let wanted = &expected.read::<f64>()[row * longest * width..][..values];
            near("states", found, wanted);
        }
        near("logits", logits.value().read::<f64>(), golden.read(&key("logits")).read::<f64>());
        for ((name, _), variable) in model.params.trained.entries().iter().zip(&variables) {
            let expected = golden.read(&key(&format!("gradient/{name}")));
            let zeros = vec![0.0; expected.len()];
            let found = gradients.take(variable);
            let found = found.as_ref().map_or(&zeros[..], |found| found.read::<f64>());
            near(name, found, expected.read::<f64>());
        }
    }
}

/// Name, largest error of a logit and largest logit of each case whose head has no hidden layers, computed in `dtype`.
fn errors_in(dtype: Dtype, device: Device) -> Vec<(&'static str, f64, f64)> {
    let golden = Golden::open("text.safetensors");
    let plain = cases().into_iter().filter(|(_, _, head, _)| head.hidden_dims.is_empty());
    let error =
        |(case, kind, head, lora): (&'static str, Architecture, HeadConfig, Option<Lora>)| {
            let mut model = Model::of(&golden, case, kind, &head, lora.as_ref());
            let [trained, frozen] =
                [&model.params.trained, &model.params.frozen].map(|p| p.to_dtype(Dtype::F32));
            let params = ParamSet { trained, frozen }.to_device(device).unwrap();
            model.batch = model.batch.to_device(device).unwrap();
            let tape = Tape::without_gradients();
            let forward = Forward::evaluation(&tape, &params).computing_in(dtype).unwrap();
            let [_, logits] = model.run(&forward);
            let expected = golden.read(&format!("{case}/logits")).to_f64();
            let found = logits.value().to_host().unwrap().to_f64();
            let errors = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let scale = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
            (case, errors.fold(0.0, f64::max), scale)
        };
    plain.map(error).collect()
}

#[test]
fn logits_in_f32_are_within_1e_5_of_those_in_f64() {
    for (case, error, _) in errors_in(Dtype::F32, Device::Cpu) {
        assert!(error < 1e-5, "{case}: {error:e}");
    }
}

/// In bf16 each of the `ROUNDINGS` tensors between the embeddings and the logits is rounded with a relative error of at
/// most u = 2⁻⁸. A normalisation after every residual connection keeps the relative error of a state from growing faster
/// than the sum of these, so that the error of a logit is at most about `ROUNDINGS` u of the largest logit; transformers
/// in bf16 reaches 0.2 of that.
#[cfg(feature = "emu")]
#[test]
fn logits_in_bf16_are_within_the_sum_of_all_rounding_errors() {
    // Three sums and a normalisation of embeddings; per layer three projections, attention, its projection, two sums, two
    // normalisations and two projections of the feed-forward network; the two layers of the head.
    const ROUNDINGS: f64 = (4 + 11 * LAYERS + 2) as f64;
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    for (case, error, scale) in errors_in(Dtype::Bf16, device) {
        let bound = ROUNDINGS * Dtype::Bf16.roundoff() * scale;
        assert!(error < bound, "{case}: {error:e}, bound {bound:e}");
        // The computation is in bf16 indeed.
        assert!(error > 1e-4 * scale, "{case}: {error:e}");
    }
}

#[test]
fn a_merged_adapter_gives_the_same_logits() {
    let golden = Golden::open("text.safetensors");
    let (case, kind, head, lora) = cases().pop().unwrap();
    let lora = lora.unwrap();
    let adapted = Model::of(&golden, case, kind, &head, Some(&lora));
    let all = [&adapted.params.trained, &adapted.params.frozen].map(|params| params.entries());
    let values = merged(&all.concat(), lora.scale()).unwrap();
    let mut b = Builder::new(1);
    let (encoder, head) = (
        Encoder::new(&mut b, &adapted.config, VOCABULARY),
        Head::new(&mut b, &adapted.config, None, &head, 3),
    );
    let mut params = ParamSet::from(b.finish().trained.to_dtype(Dtype::F64));
    params.trained.assign(&values).unwrap();
    let merged = Model {
        config: adapted.config.clone(),
        encoder,
        head,
        params,
        batch: adapted.batch.clone(),
    };
    let logits = |model: &Model| {
        let tape = Tape::without_gradients();
        model.run(&Forward::evaluation(&tape, &model.params))[1].value().to_f64()
    };
    for (a, b) in logits(&adapted).iter().zip(logits(&merged)) {
        assert!((a - b).abs() < 1e-12 * a.abs().max(1.0), "{a} {b}");
    }
}

#[test]
fn only_the_adapter_and_the_head_are_trained() {
    let golden = Golden::open("text.safetensors");
    let (case, kind, head, lora) = cases().pop().unwrap();
    let model = Model::of(&golden, case, kind, &head, lora.as_ref());
    let is_part = |name: &str| {
        ["lora_A", "lora_B", "pooler", "classifier"].iter().any(|part| name.contains(part))
    };
    assert!(model.params.trained.entries().iter().all(|(name, _)| is_part(name)));
    assert!(!model.params.frozen.entries().iter().any(|(name, _)| is_part(name)));
    // As many as PEFT trains of BERT for texts with r = 3, where `dense` also names the pooler.
    let count = |targets: &[&str], pooler: bool| {
        let targets: Vec<String> = targets.iter().map(|target| (*target).to_string()).collect();
        let targets = targets.into();
        let lora = Lora { r: 3, alpha: 5.0, rslora: false, dropout: 0.1, targets, pooler };
        let mut b = Builder::new(1);
        b.adapted(Some(&lora), |b| Encoder::new(b, &model.config, VOCABULARY));
        Head::new(&mut b, &model.config, Some(&lora), &head, 3);
        b.check().unwrap();
        b.finish().trained.count()
    };
    let (h, i, l) =
        (model.config.hidden_size, model.config.intermediate_size, model.config.num_hidden_layers);
    let classifier = 3 * h + 3;
    assert_eq!(count(&["query", "value"], false), l * 2 * 3 * 2 * h + classifier);
    assert_eq!(count(&["query", "value"], true), l * 2 * 3 * 2 * h + h * h + h + classifier);
    let of_layer = 4 * 3 * 2 * h + 2 * 3 * (h + i);
    for pooler in [false, true] {
        let all = count(&["query", "key", "value", "dense"], pooler);
        assert_eq!(all, l * of_layer + 3 * 2 * h + classifier);
    }
    let mut b = Builder::new(1);
    let targets = vec!["query".to_string(), "q_proj".into()].into();
    let missing = Lora { targets, ..lora.unwrap() };
    b.adapted(Some(&missing), |b| Encoder::new(b, &model.config, VOCABULARY));
    assert!(b.check().unwrap_err().to_string().contains("q_proj"));
}
