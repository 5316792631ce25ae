//! Models of images and text against transformers: configurations, logits, loss and all gradients.

#[allow(dead_code, reason = "texts have encoders of their own")]
mod text_golden;

use learn::adapt::{Lora, Targets};
use learn::forward::Forward;
use learn::generate::{Generation, Prompt, Sampling, generate};
use learn::params::{Builder, ParamSet};
use serde_json::{Value as Json, json};
use std::fs;
use tasks::language::{DecoderConfig, RopeParameters};
use tasks::vision_language::{
    Grid, Images, Inputs, VisionConfig, VisionLanguage, VisionLanguageConfig,
};
use tensor::{Device, Dtype, Tape, Tensor, Var};
use text_golden::Golden;

const CASES: [&str; 2] = ["mixed", "untied"];

/// The config.json of a case.
fn json_of(case: &str) -> Json {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/vision_language.json");
    let all: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    all[case].clone()
}

/// What [`VisionLanguageConfig::read`] makes of this config.json.
fn read(config: &Json) -> unix::Result<VisionLanguageConfig> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    VisionLanguageConfig::read(folder.path())
}

/// The sequences of a case, each with its images.
fn sequences(golden: &Golden, case: &str, config: &VisionConfig) -> Vec<(Vec<i32>, Images)> {
    let of = |name: &str| golden.integers(&format!("{case}/{name}"));
    let width = golden.words(&format!("{case}/ids")).1[1];
    let patches = golden.read(&format!("{case}/patches")).to_f64();
    let mut patches = patches.into_iter().map(|x| x as f32);
    let grids = of("grids");
    let mut grids = grids
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[rows, columns]| Grid { rows: *rows as usize, columns: *columns as usize });
    let ids = of("ids");
    let rows = ids.chunks(width).zip(of("lengths")).zip(of("images"));
    let row = |((ids, length), images): ((&[i32], i32), i32)| {
        let grids: Vec<Grid> = grids.by_ref().take(images as usize).collect();
        let count: usize = grids.iter().map(|grid| grid.patches()).sum();
        let values = patches.by_ref().take(count * config.patch_values()).collect();
        (ids[..length as usize].to_vec(), Images { grids, values })
    };
    rows.map(row).collect()
}

/// A model with the parameters of a case, and its inputs, in `dtype` on `device`.
struct Model {
    model: VisionLanguage,
    params: ParamSet,
    inputs: Inputs,
    targets: Tensor,
}

impl Model {
    fn of(golden: &Golden, case: &str, dtype: Dtype, device: Device) -> Self {
        let config = read(&json_of(case)).unwrap();
        let mut b = Builder::new(1);
        let model = VisionLanguage::new(&mut b, &config);
        b.check().unwrap();
        let ParamSet { trained, frozen } = golden.assigned(case, b.finish());
        let params = ParamSet { trained: trained.to_dtype(dtype), frozen: frozen.to_dtype(dtype) };
        let params = params.to_device(device).unwrap();
        let sequences = sequences(golden, case, &config.vision);
        let all: Vec<(&[i32], &Images)> =
            sequences.iter().map(|(ids, images)| (&ids[..], images)).collect();
        let inputs = model.inputs(&all, 0, dtype).unwrap();
        let targets = format!("{case}/targets");
        let targets = Tensor::from_slice(&golden.integers(&targets), &golden.words(&targets).1);
        Self { model, params, inputs, targets }
    }

    /// Logits and loss.
    fn run(&self, forward: &Forward) -> [Var; 2] {
        let states = self.model.forward(forward, &self.inputs).unwrap();
        let targets = forward.data(&self.targets).unwrap();
        let decoder = &self.model.decoder;
        let loss = decoder.loss(forward, &states, &targets).unwrap();
        [decoder.logits(forward, &states).unwrap(), loss]
    }
}

fn compare(golden: &Golden, case: &str, dtype: Dtype, device: Device, tolerance: f64) {
    let model = Model::of(golden, case, dtype, device);
    golden.compare(case, &model.params, (dtype, device), tolerance, |forward| model.run(forward));
}

/// Values of transformers in f64 (tests/golden/vision_language.py), which the file holds rounded to f32.
#[test]
fn logits_loss_and_gradients_are_those_of_transformers() {
    let golden = Golden::open("vision_language.safetensors");
    for case in CASES {
        compare(&golden, case, Dtype::F64, Device::Cpu, 2e-7);
        compare(&golden, case, Dtype::F32, Device::Cpu, 1e-5);
    }
}

/// Greedily and with a cache, together and alone, as by full passes. Prompts have several, one and no images.
#[test]
fn tokens_generated_with_a_cache_are_those_of_full_passes() {
    let golden = Golden::open("vision_language.safetensors");
    let Model { model, params, .. } = Model::of(&golden, "mixed", Dtype::F32, Device::Cpu);
    let config = read(&json_of("mixed")).unwrap();
    let (prompts, images): (Vec<_>, Vec<_>) =
        sequences(&golden, "mixed", &config.vision).into_iter().unzip();
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &params);
    let generation = Generation {
        sampling: Sampling::default(),
        max_new_tokens: 14,
        stop: vec![],
        max_repeat: 0,
    };
    let continued = |which: std::ops::Range<usize>| -> Vec<Vec<i32>> {
        let generator = model.generator(&forward, &images[which.clone()]);
        let all = prompts[which].iter().enumerate();
        let all: Vec<Prompt> =
            all.map(|(number, ids)| Prompt { ids, number: number as u64 }).collect();
        let found = generate(&generator, &all, &generation).unwrap();
        found.into_iter().map(|own| own.ids).collect()
    };
    let together = continued(0..prompts.len());
    for (i, (prompt, found)) in prompts.iter().zip(&together).enumerate() {
        assert_eq!(&continued(i..i + 1)[0], found);
        assert!(!found.is_empty());
        let mut ids = prompt.clone();
        for token in found {
            let inputs = model.inputs(&[(&ids, &images[i])], 0, Dtype::F32).unwrap();
            let states = model.forward(&forward, &inputs).unwrap();
            let logits = model.decoder.logits(&forward, &states).unwrap().value().to_f64();
            let last = &logits[logits.len() - config.decoder.vocab_size..];
            let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
            assert_eq!(best as i32, *token, "prompt {i}, after {} tokens", ids.len());
            // An image token would need an image in a full pass.
            if *token == config.image_token_id as i32 {
                break;
            }
            ids.push(*token);
        }
    }
}

#[cfg(feature = "emu")]
#[test]
fn kernels_compute_logits_loss_and_gradients_of_transformers() {
    let golden = Golden::open("vision_language.safetensors");
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    compare(&golden, "mixed", Dtype::F32, device, 1e-5);
}

/// The published sizes of Qwen3-VL-2B: 2,127,532,032 parameters in 625 tensors, of which 406,957,056 are those of the tower. Its
/// LoRA adapts 292 layers: those of attention and feed-forward networks, not the mergers.
#[test]
fn the_default_model_has_the_parameters_of_the_file_of_the_2_b_model() {
    let decoder = DecoderConfig {
        hidden_size: 2048,
        intermediate_size: 6144,
        rope_parameters: RopeParameters::Default { rope_theta: 5e6 },
        ..DecoderConfig::default()
    };
    let config = VisionLanguageConfig {
        decoder,
        vision: VisionConfig::default(),
        mrope_section: [24, 20, 20],
        image_token_id: 151_655,
    };
    assert!(config.violations().is_empty());
    let all = Builder::shapes(|b| VisionLanguage::new(b, &config));
    let count = |of: &str| -> usize {
        let own = all.iter().filter(|(name, _)| name.starts_with(of));
        own.map(|(_, shape)| shape.iter().product::<usize>()).sum()
    };
    assert_eq!((all.len(), count("")), (625, 2_127_532_032));
    assert_eq!(count("model.visual."), 406_957_056);
    let lora = Lora {
        r: 16,
        alpha: 16.0,
        rslora: false,
        dropout: 0.0,
        targets: Targets::Pattern(tasks::vision_language::ADAPTED.into()),
        pooler: false,
    };
    let adapted = Builder::shapes(|b| b.adapted(Some(&lora), |b| VisionLanguage::new(b, &config)));
    let own: Vec<_> = adapted.iter().filter(|(name, _)| name.contains(".lora_")).collect();
    let trained: usize = own.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    assert_eq!((own.len(), trained), (2 * 292, 23_724_032));
}

#[test]
fn configurations_that_are_not_supported_are_refused() {
    for (pointer, value, text) in [
        ("/model_type", json!("qwen2_vl"), "model_type \"qwen2_vl\" is not supported"),
        ("/image_token_id", json!(44), "image_token_id: must be less than vocab_size, 44"),
        ("/vision_config/depth", Json::Null, "vision_config.depth is missing"),
        (
            "/vision_config/out_hidden_size",
            json!(24),
            "vision.out_hidden_size: must be hidden_size",
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
}

/// Image tokens without their images are no inputs.
#[test]
fn image_tokens_must_be_those_of_the_images() {
    let golden = Golden::open("vision_language.safetensors");
    let config = read(&json_of("mixed")).unwrap();
    let mut b = Builder::new(1);
    let model = VisionLanguage::new(&mut b, &config);
    let sequences = sequences(&golden, "mixed", &config.vision);
    let (ids, images) = &sequences[0];
    let none = Images { grids: vec![], values: vec![] };
    let short = Images { values: images.values[1..].to_vec(), ..images.clone() };
    assert!(model.inputs(&[(ids, images)], 0, Dtype::F32).is_some());
    for (ids, images) in
        [(&ids[..], &none), (&ids[..5], images), (&ids[..], &short), (&[1], images)]
    {
        assert!(model.inputs(&[(ids, images)], 0, Dtype::F32).is_none());
    }
}
