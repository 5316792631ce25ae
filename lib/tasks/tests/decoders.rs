//! Decoders against transformers: configurations, angles, logits, loss and all gradients.

mod golden_config;
#[allow(dead_code, reason = "texts have encoders of their own")]
mod text_golden;

use golden_config::json_in;
use learn::adapt::Lora;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet, Storage, Value};
use serde_json::{Value as Json, json};
use tasks::language::{Architecture, Decoder, DecoderConfig, Rope, RopeParameters, Sequences};
use tensor::{Device, Dtype, Tape, Tensor, Var};
use text_golden::Golden;

const CASES: [&str; 4] = ["qwen3", "qwen2", "llama", "qwen3_yarn"];

/// The config.json of a case, or the parameters of a rope type.
fn json_of(case: &str) -> Json {
    json_in("decoders.json", case)
}

/// The decoder of this config.json.
fn read(config: &Json) -> unix::Result<DecoderConfig> {
    Ok(golden_config::read(config)?.decoder)
}

/// A decoder with the parameters of a case.
struct Model {
    decoder: Decoder,
    params: ParamSet,
    /// Ids, lengths and targets.
    integers: [Tensor; 3],
    angles: Tensor,
}

impl Model {
    fn of(golden: &Golden, case: &str) -> Self {
        let config = read(&json_of(case)).unwrap();
        let mut b = Builder::new(1);
        let decoder = Decoder::new(&mut b, &config);
        b.check().unwrap();
        let integers = ["ids", "lengths", "targets"].map(|name| {
            let key = format!("{case}/{name}");
            Tensor::from_slice(&golden.integers(&key), &golden.words(&key).1)
        });
        let tokens = integers[0].shape()[1];
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let rope = Rope::new(&config.rope_parameters, config.head_size());
        let angles = rope.table(&positions, Dtype::F64);
        Self { decoder, params: golden.assigned(case, b.finish()), integers, angles }
    }

    /// The same in `dtype` on `device`.
    fn to(self, dtype: Dtype, device: Device) -> Self {
        let ParamSet { trained, frozen } = self.params;
        let params = ParamSet { trained: trained.to_dtype(dtype), frozen: frozen.to_dtype(dtype) };
        let params = params.to_device(device).unwrap();
        let angles = self.angles.to_dtype(dtype);
        Self { params, angles, ..self }
    }

    /// Logits and loss.
    fn run(&self, forward: &Forward) -> [Var; 2] {
        let [ids, lengths, targets] = self.integers.each_ref().map(|x| forward.data(x).unwrap());
        let angles = forward.data(&self.angles).unwrap();
        let states = self.decoder.forward(forward, &Sequences { ids, angles, lengths }).unwrap();
        let loss = self.decoder.loss(forward, &states, &targets).unwrap();
        [self.decoder.logits(forward, &states).unwrap(), loss]
    }
}

/// Compares logits, loss and every gradient in `dtype`.
fn compare(golden: &Golden, case: &str, dtype: Dtype, device: Device, tolerance: f64) {
    let model = Model::of(golden, case).to(dtype, device);
    golden.compare(case, &model.params, (dtype, device), tolerance, |forward| model.run(forward));
}

/// Values of transformers in f64 (tests/golden/decoders.py), which the file holds rounded to f32.
#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    let golden = Golden::open("decoders.safetensors");
    for case in CASES {
        compare(&golden, case, Dtype::F64, Device::Cpu, 2e-7);
        compare(&golden, case, Dtype::F32, Device::Cpu, 1e-5);
    }
}

#[cfg(feature = "emu")]
#[test]
fn kernels_compute_logits_loss_and_gradients_of_transformers() {
    let golden = Golden::open("decoders.safetensors");
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    for case in ["qwen3", "llama"] {
        compare(&golden, case, Dtype::F32, device, 1e-5);
    }
}

#[test]
fn every_parameter_and_case_of_the_file_is_compared() {
    let golden = Golden::open("decoders.safetensors");
    let known = |name: &str| {
        let case = name.split('/').next().unwrap();
        CASES.contains(&case) || json_of(case)["rope_type"].is_string()
    };
    assert!(golden.header.entries.iter().all(|entry| known(&entry.name)));
    // Golden::assigned compares the numbers of parameters, and here their names.
    for case in CASES {
        for (name, _) in Model::of(&golden, case).params.trained.entries() {
            assert!(golden.header.get(&format!("{case}/value/{name}")).is_some(), "{case}: {name}");
        }
    }
}

#[test]
fn angles_of_each_rope_type_are_those_of_transformers() {
    let golden = Golden::open("decoders.safetensors");
    for case in ["default", "linear", "llama3", "yarn", "yarn_whole", "yarn_scaled", "yarn_factor"]
    {
        let case = format!("rope_{case}");
        let parameters: RopeParameters = serde_json::from_value(json_of(&case)).unwrap();
        let positions = golden.integers(&format!("{case}/positions"));
        let table = Rope::new(&parameters, 64).table(&positions, Dtype::F64);
        golden.near(
            &case,
            "table",
            &table.to_f64(),
            &golden.read(&format!("{case}/table")).to_f64(),
        );
    }
}

/// With LoRA on frozen weights in bf16 or 4 bits, the loss is that of the model with the same weights in f32: an adapter
/// initially changes nothing. As in transformers, embeddings and head are not quantised.
#[test]
fn adapted_decoders_compute_with_stored_weights() {
    let golden = Golden::open("decoders.safetensors");
    for (case, storage) in CASES.iter().flat_map(|c| [(c, Storage::Bf16), (c, Storage::Nf4)]) {
        let config = read(&json_of(case)).unwrap();
        let targets = vec!["q_proj".to_string(), "down_proj".into()].into();
        let lora = Lora { r: 3, alpha: 5.0, rslora: false, dropout: 0.0, targets, pooler: false };
        let mut b = Builder::new(1);
        let decoder = b.adapted(Some(&lora), |b| Decoder::new(b, &config));
        b.check().unwrap();
        let mut params = b.finish();
        let layers = config.num_hidden_layers;
        assert_eq!(params.trained.entries().len(), 2 * 2 * layers);
        let names: Vec<String> = params.frozen.entries().iter().map(|(n, _)| n.clone()).collect();
        for (i, name) in names.iter().enumerate() {
            let value = golden.read(&format!("{case}/value/{name}")).to_dtype(Dtype::F32);
            let form = if name.contains("_proj.weight") { storage } else { Storage::Bf16 };
            let value = match value.shape().len() {
                2 => Value::Dense(value).stored_as(form).unwrap(),
                _ => Value::Dense(value),
            };
            params.frozen.set(i, value);
        }
        let is_codes = |(name, tensor): &&(String, Tensor)| {
            name.ends_with(".weight") && tensor.dtype() == Dtype::U8
        };
        let quantised = params.frozen.entries().iter().filter(is_codes).count();
        assert_eq!(quantised, if storage == Storage::Nf4 { 7 * layers } else { 0 }, "{case}");

        let mut dense = Model::of(&golden, case).to(Dtype::F32, Device::Cpu);
        dense.params.trained.assign(&params.frozen.dense()).unwrap();
        let (angles, integers) = (dense.angles.clone(), dense.integers.clone());
        let adapted = Model { decoder, params, angles, integers };
        let [(expected, _), (found, gradients)] = [&dense, &adapted].map(|model| {
            let tape = Tape::new();
            let forward = Forward::training(&tape, &model.params);
            let [_, loss] = model.run(&forward);
            let variables = forward.variables().to_vec();
            drop(forward);
            let value = loss.value().to_f64()[0];
            let mut gradients = tape.backward(&loss).unwrap();
            let gradients = variables.iter().map(|v| gradients.take(v).unwrap().to_f64());
            (value, gradients.collect::<Vec<_>>())
        });
        assert!((found / expected - 1.0).abs() < 1e-5, "{case}: {found} {expected}");
        // B is zero, and so is the gradient of A.
        let names = adapted.params.trained.entries().iter().map(|(name, _)| name);
        for (name, gradient) in names.zip(&gradients) {
            let is_b = name.contains("lora_B");
            assert_eq!(gradient.iter().any(|x| *x != 0.0), is_b, "{case}: {name}");
        }
    }
}

/// The keys of transformers 4 and 5 give the same configuration.
#[test]
fn configurations_of_old_and_new_versions_are_read() {
    for (case, kind) in CASES.iter().zip(["qwen3", "qwen2", "llama", "qwen3"]) {
        let new = json_of(case);
        let config = read(&new).unwrap();
        assert_eq!(serde_json::to_value(config.model_type).unwrap(), kind);
        assert!(config.violations().is_empty());
        let mut old = new.clone();
        let keys = old.as_object_mut().unwrap();
        let mut rope = keys.remove("rope_parameters").unwrap();
        let rope = rope.as_object_mut().unwrap();
        keys.insert("rope_theta".into(), rope.remove("rope_theta").unwrap());
        let rope_type = rope.remove("rope_type").unwrap();
        if rope_type == "default" {
            keys.insert("rope_scaling".into(), Json::Null);
        } else {
            rope.insert("type".into(), rope_type);
            keys.insert("rope_scaling".into(), Json::Object(rope.clone()));
        }
        keys.insert("torch_dtype".into(), "bfloat16".into());
        assert_eq!(read(&old).unwrap(), config, "{case}");
    }
    // Sizes that follow from others.
    let mut llama = json_of("llama");
    for key in ["head_dim", "num_key_value_heads", "tie_word_embeddings"] {
        llama.as_object_mut().unwrap().remove(key);
    }
    let config = read(&llama).unwrap();
    assert_eq!((config.head_size(), config.kv_heads()), (10, 2));
    assert_eq!(config.model_type, Architecture::Llama);
    assert!(!config.tie_word_embeddings && DecoderConfig::default().violations().is_empty());
}

#[test]
fn configurations_that_are_not_supported_are_refused_by_key() {
    let bad = |case: &str, key: &str, value: Json| {
        let mut config = json_of(case);
        match (key.split_once('.'), value) {
            (Some((outer, inner)), value) => config[outer][inner] = value,
            (None, Json::Null) => drop(config.as_object_mut().unwrap().remove(key)),
            (None, value) => config[key] = value,
        }
        let error = read(&config).map(drop).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Data, "{key}");
        error.to_string()
    };
    let dynamic = json!({"type": "dynamic", "factor": 2.0});
    for (case, key, value, expected) in [
        (
            "qwen3",
            "model_type",
            json!("gpt2"),
            "\"gpt2\" is not supported; supported are qwen3, qwen2, llama and qwen3_vl",
        ),
        ("qwen3", "model_type", Json::Null, "model_type null"),
        ("qwen3", "head_dim", Json::Null, "head_dim is missing"),
        ("qwen3", "head_dim", json!(9), "head_dim: must be even, not 9"),
        ("qwen3", "head_dim", json!("ten"), "head_dim: invalid type"),
        ("qwen3", "vocab_size", json!(0), "vocab_size: must be from 1"),
        ("qwen3", "hidden_size", json!(-1), "hidden_size: invalid value"),
        (
            "qwen3",
            "num_key_value_heads",
            json!(4),
            "num_key_value_heads: must divide num_attention_heads, 6",
        ),
        ("qwen3", "num_key_value_heads", json!(0), "num_key_value_heads: must be from 1"),
        ("qwen3", "hidden_act", json!("gelu"), "hidden_act gelu: only \"silu\" is supported"),
        (
            "qwen3",
            "use_sliding_window",
            json!(true),
            "use_sliding_window true: it is not supported",
        ),
        ("qwen3", "layer_types", json!(["sliding_attention"]), "layer_types: only full_attention"),
        ("qwen3", "logit_scale", json!(2.0), "logit_scale 2.0: the key is not known"),
        ("qwen3", "mlp_bias", json!(true), "mlp_bias true: the key is not known"),
        ("qwen3", "attention_dropout", json!(1.5), "attention_dropout: must be"),
        ("qwen3", "rms_norm_eps", json!(0.0), "rms_norm_eps: must be a positive number"),
        (
            "qwen3",
            "quantization_config",
            json!({"quant_method": "gptq"}),
            "quantization_config: only",
        ),
        ("qwen3", "rope_parameters", Json::Null, "rope_theta is missing"),
        ("qwen3", "rope_scaling", dynamic, "rope_parameters and rope_scaling are both set"),
        (
            "qwen3",
            "rope_parameters.rope_type",
            json!("dynamic"),
            "rope_parameters.rope_type \"dynamic\" is not supported; supported are default, linear, llama3, yarn",
        ),
        (
            "qwen3",
            "rope_parameters.mrope_section",
            json!([1, 2, 2]),
            "rope_parameters: unknown field `mrope_section`",
        ),
        (
            "qwen3",
            "rope_parameters.partial_rotary_factor",
            json!(0.5),
            "rope_parameters.partial_rotary_factor 0.5",
        ),
        (
            "qwen3",
            "rope_parameters.rope_theta",
            json!(0.5),
            "rope_parameters.rope_theta: must be greater than 1",
        ),
        ("qwen2", "rope_parameters.factor", Json::Null, "rope_parameters: missing field `factor`"),
        (
            "llama",
            "rope_parameters.high_freq_factor",
            json!(0.5),
            "rope_parameters.high_freq_factor: must be greater than 0.5",
        ),
        (
            "qwen3_yarn",
            "rope_parameters.beta_fast",
            json!(1),
            "rope_parameters.beta_fast: must be greater than 1, not 1",
        ),
    ] {
        let message = bad(case, key, value);
        assert!(message.contains(expected), "{key}: {message}");
    }
}
