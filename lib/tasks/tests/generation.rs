//! Generation with a cache of keys and values, compared with passes over whole sequences.

#[allow(dead_code, reason = "texts have encoders of their own")]
mod text_golden;

use learn::adapt::Lora;
use learn::forward::Forward;
use learn::generate::{Decoder as _, Finish, Generated, Generation, Prompt, Sampling, generate};
use learn::params::{Builder, ParamSet, Storage, Value};
use tasks::language::{
    Architecture, DecoderConfig, Generator, Labelled, Language, RopeParameters, SftModel,
};
use tensor::{Device, Dtype, Tape, Tensor};

const ARCHITECTURES: [Architecture; 3] =
    [Architecture::Qwen3, Architecture::Qwen2, Architecture::Llama];

/// A tiny decoder with odd sizes; large initial weights make its logits differ.
fn config(model_type: Architecture) -> DecoderConfig {
    DecoderConfig {
        model_type,
        vocab_size: 53,
        hidden_size: 24,
        intermediate_size: 37,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: Some(2),
        head_dim: Some(10),
        max_position_embeddings: 2100,
        rope_parameters: RopeParameters::Default { rope_theta: 1e4 },
        tie_word_embeddings: model_type != Architecture::Llama,
        initializer_range: 0.25,
        ..DecoderConfig::default()
    }
}

struct Model {
    config: DecoderConfig,
    language: Language,
    params: ParamSet,
}

impl Model {
    fn new(config: DecoderConfig) -> Self {
        Self::adapted(config, None)
    }

    fn adapted(config: DecoderConfig, lora: Option<Lora>) -> Self {
        let model = SftModel { decoder: config.clone(), lora, ..SftModel::default() };
        let mut b = Builder::new(3);
        let language = Language::new(&mut b, &model, 0);
        b.check().unwrap();
        Self { params: b.finish(), language, config }
    }

    fn to(self, dtype: Dtype, device: Device) -> Self {
        let ParamSet { trained, frozen } = self.params;
        let params = ParamSet { trained: trained.to_dtype(dtype), frozen: frozen.to_dtype(dtype) };
        Self { params: params.to_device(device).unwrap(), ..self }
    }

    fn generate(&self, prompts: &[Prompt], options: &Generation) -> Vec<Generated> {
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, &self.params);
        generate(&Generator::new(&forward, &self.language), prompts, options).unwrap()
    }

    /// Logits [T, V] of a pass over a whole sequence, and of its padding.
    fn logits(&self, ids: &[i32]) -> Vec<Vec<f64>> {
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, &self.params);
        let angles = if forward.dtype() == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let batch = self.language.batch(&[Labelled { ids, ..Labelled::default() }], angles);
        let batch = batch.unwrap().to_device(forward.device()).unwrap();
        let logits = self.language.logits(&forward, &batch).unwrap().value().to_host().unwrap();
        logits.to_f64().chunks(self.config.vocab_size).map(<[f64]>::to_vec).collect()
    }

    /// Checks that each token is the largest logit of a pass over all tokens, or within `slack` of it.
    fn check_greedy(&self, what: &str, prompt: &[i32], ids: &[i32], slack: f64) {
        let all = [prompt, ids].concat();
        let logits = self.logits(&all);
        for (i, id) in ids.iter().enumerate() {
            let own = &logits[prompt.len() + i - 1];
            let most = own.iter().copied().fold(f64::MIN, f64::max);
            let (found, place) = (own[*id as usize], prompt.len() + i);
            assert!(found >= most - slack, "{what}, token {i} at {place}: {found} {most}");
        }
    }
}

fn ids(len: usize, salt: usize) -> Vec<i32> {
    (0..len).map(|i| ((i * i * 31 + i * 7 + salt * 13) % 53) as i32).collect()
}

fn prompts(ids: &[Vec<i32>]) -> Vec<Prompt<'_>> {
    ids.iter().zip(40..).map(|(ids, number)| Prompt { ids, number }).collect()
}

fn greedy(max_new_tokens: usize) -> Generation {
    Generation { sampling: Sampling::default(), max_new_tokens, stop: Vec::new(), max_repeat: 0 }
}

fn sampled(max_new_tokens: usize) -> Generation {
    let sampling = Sampling { temperature: 1.0, top_k: 20, seed: 11, ..Sampling::default() };
    Generation { sampling, ..greedy(max_new_tokens) }
}

/// The sums of both ways differ by some f32 roundings of logits up to about 10: less than 1e-4.
const SLACK: f64 = 1e-4;

#[test]
fn cached_decoding_is_that_of_whole_passes() {
    let all: Vec<Vec<i32>> =
        [1, 2, 17, 130, 64, 257].iter().enumerate().map(|(i, len)| ids(*len, i)).collect();
    for kind in ARCHITECTURES {
        for dtype in [Dtype::F32, Dtype::F64] {
            let model = Model::new(config(kind)).to(dtype, Device::Cpu);
            let found = model.generate(&prompts(&all), &greedy(12));
            for (prompt, sample) in all.iter().zip(&found) {
                assert_eq!((sample.ids.len(), sample.finish), (12, Finish::Length));
                let what = format!("{kind:?} in {dtype}, {} tokens", prompt.len());
                model.check_greedy(&what, prompt, &sample.ids, SLACK);
            }
            // Not the same token again and again.
            assert!(found.iter().any(|sample| sample.ids[..4] != sample.ids[4..8]), "{kind:?}");
        }
    }
}

#[test]
fn two_thousand_tokens_are_cached() {
    let rope = RopeParameters::Llama3 {
        rope_theta: 1e4,
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 256,
    };
    let config = DecoderConfig { rope_parameters: rope, ..config(Architecture::Llama) };
    let (model, prompt) = (Model::new(config), ids(2000, 5));
    let found = model.generate(&prompts(&[prompt.clone(), vec![7]]), &greedy(40));
    model.check_greedy("long", &prompt, &found[0].ids, SLACK);
    model.check_greedy("short", &[7], &found[1].ids, SLACK);
}

/// Texts depend neither on the batch nor on what leaves it: stop tokens end samples at different times.
#[test]
fn batched_texts_are_those_of_single_prompts() {
    let all: Vec<Vec<i32>> = (0..7).map(|i| ids(1 + i * i * 3, i)).collect();
    for kind in ARCHITECTURES {
        let model = Model::new(config(kind));
        for mut options in [greedy(40), sampled(40)] {
            options.stop = vec![1, 5, 9, 30];
            let together = model.generate(&prompts(&all), &options);
            for (prompt, expected) in prompts(&all).into_iter().zip(&together) {
                let alone = model.generate(&[prompt], &options);
                assert_eq!(alone[..], *std::slice::from_ref(expected), "{kind:?}");
            }
            if options.sampling.temperature > 0.0 {
                let mut lengths: Vec<usize> = together.iter().map(|s| s.ids.len()).collect();
                lengths.sort_unstable();
                lengths.dedup();
                assert!(lengths.len() > 2, "{lengths:?}");
            }
        }
    }
}

#[test]
fn a_cache_keeps_the_sequences_that_were_asked_for() {
    let model = Model::new(config(Architecture::Qwen3));
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &model.params);
    let generator = Generator::new(&forward, &model.language);
    let all: Vec<Vec<i32>> = (0..4).map(|i| ids(3 + 5 * i, i)).collect();
    let all: Vec<&[i32]> = all.iter().map(Vec::as_slice).collect();
    let (mut cache, logits) = generator.prefill(&all, 30).unwrap();
    assert_eq!((logits.shape(), logits.dtype()), (&[4, 53][..], Dtype::F32));
    assert_eq!((cache.lengths(), cache.bytes()), (&[3, 8, 13, 18][..], 2 * 2 * 4 * 30 * 20 * 4));
    let expected = generator.step(&mut cache, &[1, 2, 3, 4]).unwrap().to_f64();
    let (mut cache, _) = generator.prefill(&all, 30).unwrap();
    generator.keep(&mut cache, &[3, 1]).unwrap();
    let found = generator.step(&mut cache, &[4, 2]).unwrap();
    assert_eq!(cache.lengths(), [19, 9]);
    assert_eq!(found.to_f64(), [&expected[3 * 53..], &expected[53..2 * 53]].concat());
    // What does not fit.
    assert!(generator.step(&mut cache, &[4]).is_err());
    assert!(generator.keep(&mut cache, &[2]).is_err());
    assert_eq!(generator.step(&mut cache, &[4, 53]).unwrap_err().exit, unix::Exit::Data);
    let (mut full, _) = generator.prefill(&[&[1, 2]], 2).unwrap();
    assert!(generator.step(&mut full, &[1]).is_err());
    let long = generator.prefill(&[&[1, 2]], 2101).map(drop).unwrap_err();
    assert!(long.to_string().contains("max_position_embeddings of the model is 2100"), "{long}");
    let foreign = generator.prefill(&[&[1, -1]], 9).map(drop).unwrap_err();
    assert!(foreign.to_string().contains("token -1 is not in the vocabulary"), "{foreign}");
}

/// With LoRA on frozen weights in bf16 and in 4 bits.
#[test]
fn adapted_decoders_generate_with_stored_weights() {
    for storage in [Storage::Bf16, Storage::Nf4] {
        let config = config(Architecture::Qwen3);
        let targets = vec!["q_proj".to_string(), "v_proj".into(), "down_proj".into()].into();
        let lora = Lora { r: 3, alpha: 5.0, rslora: false, dropout: 0.1, targets, pooler: false };
        let Model { config, language, mut params } = Model::adapted(config, Some(lora));
        // B is initially zero. All values are exact in bf16.
        for (i, tensor) in params.trained.tensors_mut().enumerate() {
            let shape = tensor.shape().to_vec();
            let values: Vec<f32> = (0..tensor.len())
                .map(|j| ((i * 31 + j * 17) % 23) as f32 / 64.0 - 0.1875)
                .collect();
            *tensor = Tensor::from_slice(&values, &shape);
        }
        let stored: Vec<(usize, Value)> = params
            .frozen
            .entries()
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| name.contains("_proj.weight"))
            .map(|(i, (_, value))| (i, Value::Dense(value.clone()).stored_as(storage).unwrap()))
            .collect();
        for (i, value) in stored {
            params.frozen.set(i, value);
        }
        let mut model = Model { config, language, params };
        let all = [ids(5, 1), ids(20, 2)];
        let found = model.generate(&prompts(&all), &greedy(10));
        for (prompt, sample) in all.iter().zip(&found) {
            model.check_greedy(&format!("{storage:?}"), prompt, &sample.ids, SLACK);
        }
        // LoRA stays in f32.
        model.params.compact(false);
        assert!(model.params.trained.tensors().all(|tensor| tensor.dtype() == Dtype::F32));
        assert_eq!(model.generate(&prompts(&all), &greedy(10)), found);
    }
}

/// Matrices that are exact in bf16 are stored in it, another one and vectors are not, and no bit of a result changes.
#[test]
fn compact_parameters_give_the_same_bits() {
    for kind in ARCHITECTURES {
        let mut model = Model::new(config(kind));
        let (mut matrices, other) = (0, "model.layers.1.mlp.up_proj.weight");
        let names: Vec<String> =
            model.params.trained.entries().iter().map(|(name, _)| name.clone()).collect();
        for (name, tensor) in names.iter().zip(model.params.trained.tensors_mut()) {
            if tensor.shape().len() == 2 && name != other {
                *tensor = tensor.to_dtype(Dtype::Bf16).to_dtype(Dtype::F32);
                matrices += 1;
            }
        }
        let all = [ids(1, 1), ids(17, 2), ids(130, 3), ids(300, 4)];
        let run = |model: &Model| {
            let generated = [greedy(9), sampled(9)].map(|how| model.generate(&prompts(&all), &how));
            (generated, model.logits(&all[3]))
        };
        let expected = run(&model);
        let bytes = model.params.trained.bytes();
        model.params.compact(false);
        let dtypes = model.params.trained.tensors().map(Tensor::dtype);
        assert_eq!(dtypes.filter(|dtype| *dtype == Dtype::Bf16).count(), matrices, "{kind:?}");
        assert!(matrices >= 14 && model.params.trained.bytes() < bytes * 2 / 3);
        assert!(run(&model) == expected, "{kind:?}");
    }
}

/// Where products round, the weights of linear layers are stored in bf16, rounded; the embedding, which is also read by row,
/// and vectors stay in f32.
#[test]
fn weights_of_linear_layers_are_rounded_where_products_round() {
    let mut model = Model::new(config(Architecture::Qwen3));
    let before = model.params.trained.clone();
    model.params.compact(true);
    for ((name, old), new) in before.entries().iter().zip(model.params.trained.tensors()) {
        let is_linear = old.shape().len() == 2 && !name.contains("embed_tokens");
        let expected = if is_linear { old.to_dtype(Dtype::Bf16) } else { old.clone() };
        assert_eq!(new.dtype(), expected.dtype(), "{name}");
        assert_eq!(new.as_bytes(), expected.as_bytes(), "{name}");
    }
    assert!(model.params.trained.bytes() < before.bytes() * 2 / 3);
}

#[test]
fn parameters_that_are_not_finite_are_an_error() {
    let mut model = Model::new(config(Architecture::Qwen2));
    let norm = model.params.trained.entries().iter().position(|(n, _)| n == "model.norm.weight");
    let tensor = model.params.trained.tensors_mut().nth(norm.unwrap()).unwrap();
    tensor.write::<f32>()[3] = f32::NAN;
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &model.params);
    let generator = Generator::new(&forward, &model.language);
    for options in [greedy(3), sampled(3)] {
        let error = generate(&generator, &prompts(&[vec![1, 2]]), &options).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Failure);
        assert!(error.to_string().contains("prompt 40 are not finite"), "{error}");
    }
}

/// The kernels choose the tokens of the CPU, in f32; in bf16 those of passes over all tokens in bf16, up to roundings of
/// states: 2⁻⁸ of logits up to about 10, several times.
#[cfg(feature = "emu")]
#[test]
fn kernels_generate_as_the_cpu() {
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    let small = || DecoderConfig { num_hidden_layers: 1, ..config(Architecture::Qwen3) };
    let all = [ids(3, 1), ids(9, 2), ids(1, 3)];
    let mut options = greedy(4);
    let expected = Model::new(small()).generate(&prompts(&all), &options);
    let model = Model::new(small()).to(Dtype::F32, device);
    assert_eq!(model.generate(&prompts(&all), &options), expected);
    // A sample leaves the batch.
    options.stop = vec![expected[0].ids[1], expected[1].ids[1]];
    let expected = Model::new(small()).generate(&prompts(&all), &options);
    assert_eq!(model.generate(&prompts(&all), &options), expected);
    let half = Model::new(small()).to(Dtype::Bf16, device);
    let found = half.generate(&prompts(&all[..2]), &greedy(3));
    for (prompt, sample) in all.iter().zip(&found) {
        half.check_greedy("bf16", prompt, &sample.ids, 0.3);
    }
}
