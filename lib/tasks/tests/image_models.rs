//! Models of images and text: configurations, parameters, adapters, and folders of transformers.

mod golden_config;
#[allow(dead_code, reason = "shared with other tests")]
mod image_golden;
#[allow(dead_code, reason = "shared with other tests")]
mod text_golden;

use golden_config::read;
use image_golden::{CASES, Model, json_of, sequences};
use learn::adapt::{Lora, Targets};
use learn::forward::Forward;
use learn::init::InitFrom;
use learn::params::{Builder, ParamSet, Storage, Value};
use serde_json::{Value as Json, json};
use std::fs;
use std::path::Path;
use tasks::exchange::{Pretrained, configuration};
use tasks::language::vision::{ADAPTED, Grid, Images, VisionConfig};
use tasks::language::{Architecture, DecoderConfig, Labelled, Language, RopeParameters, SftModel};
use tensor::trace::TracedOp;
use tensor::{Device, Dtype, Tape, Tensor};
use text_golden::Golden;

#[test]
fn configurations_that_are_not_supported_are_refused() {
    for (pointer, value, text) in [
        ("/model_type", json!("qwen2_vl"), "model_type \"qwen2_vl\" is not supported"),
        (
            "/vision_config/model_type",
            json!("vit"),
            "vision_config.model_type: only qwen3_vl_vision",
        ),
        (
            "/image_token_id",
            json!(44),
            "vision.image_token_id: must be less than vocab_size of the decoder, 44",
        ),
        ("/vision_config/depth", Json::Null, "vision_config.depth is missing"),
        (
            "/vision_config/out_hidden_size",
            json!(24),
            "vision.out_hidden_size: must be hidden_size of the decoder, 20, not 24",
        ),
        ("/vision_config/num_position_embeddings", json!(24), "must be a square number"),
        ("/vision_config/deepstack_visual_indexes", json!([1, 0]), "must be ascending"),
        ("/vision_config/deepstack_visual_indexes", json!([3]), "must be ascending"),
        ("/vision_config/num_heads", json!(5), "vision.num_heads: must divide hidden_size, 24"),
        ("/vision_config/hidden_act", json!("relu"), "only \"gelu_pytorch_tanh\" is supported"),
        ("/vision_config/window_size", json!(8), "the key is not known"),
        ("/text_config/rope_parameters/mrope_section", json!([3, 3, 1]), "whose sum is 6"),
        ("/text_config/rope_parameters/mrope_interleaved", json!(false), "only true is supported"),
        ("/text_config/rope_parameters", Json::Null, "text_config.rope_parameters is missing"),
    ] {
        let mut config = json_of("mixed");
        match pointer.rsplit_once('/') {
            Some((parent, key)) => config.pointer_mut(parent).unwrap()[key] = value,
            None => unreachable!(),
        }
        let error = read(&config).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Data, "{pointer}");
        assert!(error.to_string().contains(text), "{pointer}: {error}");
    }
    let mut config = read(&json_of("mixed")).unwrap();
    config.decoder.model_type = Architecture::Llama;
    let keys: Vec<String> = config.violations().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["decoder.model_type"]);
}

fn lora(r: usize, targets: &str) -> Lora {
    let targets = Targets::Pattern(targets.into());
    Lora { r, alpha: r as f64, rslora: false, dropout: 0.0, targets, pooler: false }
}

/// The layers that LoRA adapts, and the number of its parameters.
fn adapted(config: &SftModel, targets: &str) -> (Vec<String>, usize) {
    let config = SftModel { lora: Some(lora(16, targets)), ..config.clone() };
    let all = Builder::shapes(|b| Language::new(b, &config, 0));
    let own = || all.iter().filter(|(name, _)| name.contains(".lora_"));
    let trained = own().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let layers = own().filter_map(|(name, _)| name.strip_suffix(".lora_A.weight"));
    (layers.map(String::from).collect(), trained)
}

fn decoder_of_2_b() -> DecoderConfig {
    DecoderConfig {
        hidden_size: 2048,
        intermediate_size: 6144,
        rope_parameters: RopeParameters::Default { rope_theta: 5e6 },
        ..DecoderConfig::default()
    }
}

/// The published sizes of Qwen3-VL-2B: 2,127,532,032 parameters in 625 tensors, of which 406,957,056 are those of the tower. Its
/// LoRA adapts 292 layers: those of attention and feed-forward networks, not the mergers.
#[test]
fn the_default_model_has_the_parameters_of_the_file_of_the_2_b_model() {
    let decoder = decoder_of_2_b();
    let config = SftModel { decoder, vision: Some(VisionConfig::default()), ..SftModel::default() };
    assert!(config.violations().is_empty());
    let all = Builder::shapes(|b| Language::new(b, &config, 0));
    let count = |of: &str| -> usize {
        let own = all.iter().filter(|(name, _)| name.starts_with(of));
        own.map(|(_, shape)| shape.iter().product::<usize>()).sum()
    };
    assert_eq!((all.len(), count("")), (625, 2_127_532_032));
    assert_eq!(count("model.visual."), 406_957_056);
    let (layers, trained) = adapted(&config, ADAPTED);
    assert_eq!((layers.len(), trained), (292, 23_724_032));
    // The parts of the model, and the kinds of layers, as longhaul-config(5) gives them.
    for (targets, count) in [
        (r".*\.blocks\..*", 24 * 4),
        (r".*\.layers\..*", 28 * 7),
        (r".*\.(self_)?attn\..*", 24 * 2 + 28 * 4),
        (r".*\.mlp\..*", 24 * 2 + 28 * 3),
        (r".*\.layers\.\d+\.mlp\..*", 28 * 3),
    ] {
        let (own, _) = adapted(&config, targets);
        assert_eq!(own.len(), count, "{targets}");
        assert!(own.iter().all(|layer| layers.contains(layer)), "{targets}");
    }
}

#[test]
fn adapters_are_those_of_tower_and_decoder() {
    let config = read(&json_of("untied")).unwrap();
    let expected = [
        "model.visual.blocks.0.attn.qkv",
        "model.visual.blocks.0.attn.proj",
        "model.visual.blocks.0.mlp.linear_fc1",
        "model.visual.blocks.0.mlp.linear_fc2",
        "model.language_model.layers.0.self_attn.q_proj",
        "model.language_model.layers.0.self_attn.k_proj",
        "model.language_model.layers.0.self_attn.v_proj",
        "model.language_model.layers.0.self_attn.o_proj",
        "model.language_model.layers.0.mlp.gate_proj",
        "model.language_model.layers.0.mlp.up_proj",
        "model.language_model.layers.0.mlp.down_proj",
    ];
    assert_eq!(adapted(&config, ADAPTED).0, expected);
    // As PEFT does, all layers are also those of the mergers.
    let (all, _) = adapted(&config, "all-linear");
    assert_eq!(all.len(), expected.len() + 2);
    assert!(all.contains(&"model.visual.merger.linear_fc2".to_string()));
    // Text has no attention of a tower.
    let config = SftModel { lora: Some(lora(2, r".*\.visual\..*")), ..config };
    let mut b = Builder::new(1);
    Language::new(&mut b, &SftModel { vision: None, ..config }, 0);
    let error = b.check().unwrap_err();
    assert!(error.to_string().contains("matches no linear layer"), "{error}");
}

/// Adam on a batch of text and one with images in turn, with LoRA on tower and decoder, both in 4 bits.
#[test]
fn adapters_on_4_bits_learn_from_text_and_images() {
    let golden = Golden::open("vision_language.safetensors");
    let base = read(&json_of("mixed")).unwrap();
    let sequences = sequences(&golden, "mixed", base.vision.as_ref().unwrap());
    // Rows of whole blocks of 64.
    let mut config = SftModel { lora: Some(lora(8, ADAPTED)), ..base };
    let vision = config.vision.as_mut().unwrap();
    (vision.hidden_size, vision.intermediate_size, vision.out_hidden_size) = (64, 64, 64);
    (config.decoder.hidden_size, config.decoder.intermediate_size) = (64, 64);
    (config.decoder.initializer_range, vision.initializer_range) = (0.2, 0.2);
    let mut b = Builder::new(5);
    let language = Language::new(&mut b, &config, 0);
    b.check().unwrap();
    let mut params = b.finish();
    let mut quantised = 0;
    for (i, (name, value)) in params.frozen.entries().to_vec().into_iter().enumerate() {
        let is_layer = [".attn.", ".self_attn.", ".mlp."].iter().any(|part| name.contains(part));
        if is_layer && value.shape().len() == 2 {
            params.frozen.set(i, Value::Dense(value).stored_as(Storage::Nf4).unwrap());
            quantised += 1;
        }
    }
    assert_eq!(quantised, 3 * 4 + 3 * 7);
    let of = |which: &[usize]| {
        let all: Vec<Labelled> = which.iter().map(|i| sequences[*i].labelled()).collect();
        language.batch(&all, Dtype::F32).unwrap()
    };
    let batches = [of(&[2]), of(&[0, 1])];
    let sizes: Vec<usize> = params.trained.tensors().map(Tensor::len).collect();
    let mut moments: Vec<[Vec<f64>; 2]> =
        sizes.iter().map(|n| [vec![0.0; *n], vec![0.0; *n]]).collect();
    let (mut first, mut last) = ([0.0; 2], [0.0; 2]);
    for update in 1..=60 {
        let (which, tape) = ((update - 1) % 2, Tape::new());
        let forward = Forward::training(&tape, &params);
        let loss = language.loss(&forward, &batches[which]).unwrap();
        let variables = forward.variables().to_vec();
        drop(forward);
        last[which] = loss.value().to_f64()[0];
        if update <= 2 {
            first[which] = last[which];
        }
        let mut gradients = tape.backward(&loss).unwrap();
        let correct = [0.9_f64, 0.99].map(|beta| 1.0 - beta.powi(update as i32));
        let all = params.trained.tensors_mut().zip(&variables).zip(&mut moments);
        for ((value, variable), [m, v]) in all {
            // As the engine does, parameters without a gradient have one of zeros.
            let gradient = gradients.take(variable).map(|own| own.to_f64());
            let gradient = gradient.unwrap_or_else(|| vec![0.0; value.len()]);
            let mut new = value.to_f64();
            for (i, g) in gradient.iter().enumerate() {
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.99 * v[i] + 0.01 * g * g;
                new[i] -= 1e-2 * (m[i] / correct[0]) / ((v[i] / correct[1]).sqrt() + 1e-8);
            }
            *value = Tensor::from_slice(&new, value.shape()).to_dtype(Dtype::F32);
        }
    }
    for (first, last) in first.iter().zip(last) {
        assert!(last < 0.3 * first, "{first} {last}");
    }
    let moved = |name: &str| {
        let own = params.trained.entries().iter().filter(|(own, _)| own.ends_with(name));
        own.filter(|(_, value)| value.to_f64().iter().any(|x| *x != 0.0)).count()
    };
    assert_eq!(moved(".lora_B.weight"), 3 * 4 + 3 * 7);
}

/// Attention stores no scores, in the tower as in the decoder: four times as many patches take four times as much memory in
/// every op.
#[test]
fn memory_grows_with_the_patches_of_an_image() {
    let config = read(&json_of("mixed")).unwrap();
    let vision = config.vision.as_ref().unwrap();
    let mut b = Builder::new(5);
    let language = Language::new(&mut b, &config, 0);
    b.check().unwrap();
    let params = b.finish();
    let bytes = |side: usize| {
        let grids = [Grid { rows: side, columns: side }];
        let values = vec![0.5; side * side * vision.patch_values()];
        let tokens = side * side / vision.spatial_merge_size.pow(2);
        let mut ids = vec![vision.image_token_id as i32; tokens];
        let mut counted = vec![0; tokens];
        ids.extend([1, 2]);
        counted.extend([1, 1]);
        let images = Images { grids: &grids, values: &values };
        let one = Labelled { ids: &ids, counted: &counted, images };
        let batch = language.batch(&[one], Dtype::F32).unwrap();
        let (_, ops) = tensor::trace::trace(|| {
            let tape = Tape::new();
            language.loss(&Forward::training(&tape, &params), &batch).unwrap();
        });
        let of = |op: &TracedOp| (op.name, op.read + op.written + op.passed + op.workspace);
        ops.iter().map(of).collect::<Vec<_>>()
    };
    let (few, many) = (bytes(16), bytes(32));
    assert_eq!(few.len(), many.len());
    assert!(few.iter().filter(|(name, _)| *name == "attention").count() > 2, "{few:?}");
    for ((name, few), (_, many)) in few.iter().zip(&many) {
        assert!(*many as f64 <= 4.01 * *few as f64, "{name}: {few} and {many} bytes");
    }
}

/// A folder with the model of a case, in which the matrices of layers of tower and decoder may be in 4 bits.
fn folder_of(golden: &Golden, case: &str, to: &Path) {
    let Model { params, .. } = Model::of(golden, case, Dtype::F32, Device::Cpu);
    learn::foreign::write(&to.join("model.safetensors"), params.trained.entries()).unwrap();
    fs::write(to.join("config.json"), json_of(case).to_string()).unwrap();
}

/// The model in a folder, as `ckpt config` configures it.
fn configured(folder: &Path) -> (SftModel, Language, ParamSet) {
    let request = Pretrained { folder: folder.into(), ..Pretrained::default() };
    let found = configuration(&request).unwrap();
    let config: SftModel = serde_json::from_value(found["model"].clone()).unwrap();
    let init: InitFrom = serde_json::from_value(found["init"].clone()).unwrap();
    let mut b = Builder::replaced(0, vec![]);
    let language = Language::new(&mut b, &config, 0);
    b.check().unwrap();
    let mut params = b.finish();
    init.apply(&mut params, false).unwrap();
    (config, language, params)
}

#[test]
fn folders_of_transformers_are_read() {
    let golden = Golden::open("vision_language.safetensors");
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        folder_of(&golden, case, folder.path());
        let model = Model::of(&golden, case, Dtype::F32, Device::Cpu);
        let (config, language, params) = configured(folder.path());
        assert_eq!(config, read(&json_of(case)).unwrap());
        let read = Model { language, params, ..model };
        let which: Vec<usize> = (0..read.sequences.len()).collect();
        let expected = Model::of(&golden, case, Dtype::F32, Device::Cpu).gradients(&which, 1.0);
        assert!(read.gradients(&which, 1.0) == expected, "{case}");
    }
}

/// The keys of transformers 4.57, with which the models were published: of the 2 B model.
#[test]
fn configurations_of_old_versions_are_read() {
    let config = json!({
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151_655,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151_643,
            "dtype": "bfloat16", "eos_token_id": 151_645, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
            "max_position_embeddings": 262_144, "model_type": "qwen3_vl_text",
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6, "rope_theta": 5_000_000, "tie_word_embeddings": true,
            "rope_scaling": {
                "mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"
            },
            "use_cache": true, "vocab_size": 151_936,
        },
        "tie_word_embeddings": true,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 151_656,
        "vision_config": {
            "deepstack_visual_indexes": [5, 11, 17], "depth": 24,
            "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024, "in_channels": 3,
            "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl",
            "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2048,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
        "vision_end_token_id": 151_653,
        "vision_start_token_id": 151_652,
    });
    let found = read(&config).unwrap();
    assert_eq!(found.vision, Some(VisionConfig::default()));
    let decoder = DecoderConfig { max_position_embeddings: 262_144, ..decoder_of_2_b() };
    assert_eq!(found.decoder, decoder);
}

/// What is missing or does not fit is named.
#[test]
fn folders_whose_files_do_not_fit_are_refused() {
    let golden = Golden::open("vision_language.safetensors");
    let folder = tempfile::tempdir().unwrap();
    folder_of(&golden, "mixed", folder.path());
    let refused = |request: &Pretrained| configuration(request).unwrap_err().to_string();
    let request = Pretrained { folder: folder.path().into(), ..Pretrained::default() };
    let mut config = json_of("mixed");
    config["vision_config"]["depth"] = json!(4);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let error = refused(&request);
    assert!(error.contains("missing: model.visual.blocks.3.attn.qkv.weight [72, 24]"), "{error}");
    config = json_of("mixed");
    config["tie_word_embeddings"] = json!(false);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert!(refused(&request).contains("missing: lm_head.weight [44, 20]; if the logits"));
}
