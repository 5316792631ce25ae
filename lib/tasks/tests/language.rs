//! The task `sft`: its batches, and whether every decoder learns in every precision.

use learn::adapt::{ALL_LINEAR, Lora, Targets};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet, Storage, Value};
use tasks::language::{Architecture, DecoderConfig, Labelled, Language, RopeParameters, SftModel};
use tensor::{Device, Dtype, Tape, Tensor};

const VOCABULARY: usize = 37;

/// Sequences of odd lengths, and what a loss counts of them.
fn sequences() -> Vec<(Vec<i32>, Vec<u8>)> {
    [(5, 2), (11, 4), (3, 1)]
        .iter()
        .enumerate()
        .map(|(i, (length, prompt))| {
            let ids = (0..*length).map(|t| ((7 * i + 5 * t + t * t) % VOCABULARY) as i32).collect();
            (ids, (0..*length).map(|t| u8::from(t >= *prompt)).collect())
        })
        .collect()
}

fn labelled(all: &[(Vec<i32>, Vec<u8>)]) -> Vec<Labelled<'_>> {
    all.iter().map(|(ids, counted)| Labelled { ids, counted, ..Labelled::default() }).collect()
}

fn model_of(model_type: Architecture, lora: Option<Lora>) -> (Language, ParamSet) {
    let config = SftModel {
        decoder: DecoderConfig {
            model_type,
            vocab_size: VOCABULARY,
            hidden_size: 64,
            intermediate_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: Some(2),
            head_dim: Some(16),
            max_position_embeddings: 16,
            rope_parameters: RopeParameters::Default { rope_theta: 1e4 },
            tie_word_embeddings: model_type == Architecture::Qwen3,
            initializer_range: 0.3,
            ..DecoderConfig::default()
        },
        lora,
        ..SftModel::default()
    };
    let mut b = Builder::new(3);
    let model = Language::new(&mut b, &config, 0);
    b.check().unwrap();
    (model, b.finish())
}

/// Adam (Kingma and Ba 2015) on one batch, in `dtype` with f32 parameters; returns the mean loss of a label at last.
fn learned(
    model: &Language,
    mut params: ParamSet,
    dtype: Dtype,
    device: Device,
    updates: i32,
) -> f64 {
    let sequences = sequences();
    let batch = model.batch(&labelled(&sequences), Dtype::F32).unwrap().to_device(device).unwrap();
    let count = batch.weight().to_host().unwrap().to_f64()[0];
    params = params.to_device(device).unwrap();
    let sizes: Vec<usize> = params.trained.tensors().map(Tensor::len).collect();
    let mut moments: Vec<[Vec<f64>; 2]> =
        sizes.iter().map(|n| [vec![0.0; *n], vec![0.0; *n]]).collect();
    let mut last = f64::INFINITY;
    for update in 1..=updates {
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params).computing_in(dtype).unwrap();
        let loss = model.loss(&forward, &batch).unwrap();
        let variables = forward.variables().to_vec();
        drop(forward);
        last = loss.value().to_host().unwrap().to_f64()[0] / count;
        let one = Tensor::full(&[1], 1.0 / count, Dtype::F32).to_device(device).unwrap();
        let mut gradients = tape.backward_from(&loss, one).unwrap();
        let [a, b] = [0.9_f64, 0.99].map(|beta| 1.0 - beta.powi(update));
        let all = params.trained.tensors_mut().zip(&variables).zip(&mut moments);
        for ((value, variable), [m, v]) in all {
            let gradient = gradients.take(variable).unwrap().to_host().unwrap().to_f64();
            let mut new = value.to_host().unwrap().to_f64();
            for (i, g) in gradient.iter().enumerate() {
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.99 * v[i] + 0.01 * g * g;
                new[i] -= 1e-2 * (m[i] / a) / ((v[i] / b).sqrt() + 1e-8);
            }
            let new = Tensor::from_slice(&new, value.shape()).to_dtype(Dtype::F32);
            *value = new.to_device(device).unwrap();
        }
    }
    last
}

const ARCHITECTURES: [Architecture; 3] =
    [Architecture::Qwen3, Architecture::Qwen2, Architecture::Llama];

/// A decoder with LoRA, whose linear weights are stored in the given form.
fn adapted(model_type: Architecture, storage: Option<Storage>) -> (Language, ParamSet) {
    let targets = Targets::Pattern(ALL_LINEAR.into());
    let lora = Lora { r: 8, alpha: 16.0, rslora: false, dropout: 0.0, targets, pooler: false };
    let (model, mut params) = model_of(model_type, Some(lora));
    let frozen = params.frozen.entries().to_vec();
    for (i, (name, value)) in frozen.into_iter().enumerate() {
        let form = storage.filter(|_| name.contains("_proj.weight"));
        let value = Value::Dense(value);
        let stored = form.map_or(value.clone(), |form| value.stored_as(form).unwrap());
        params.frozen.set(i, stored);
    }
    (model, params)
}

#[test]
fn every_decoder_learns_one_batch_whole_and_with_adapters_on_stored_weights() {
    for model_type in ARCHITECTURES {
        let (model, params) = model_of(model_type, None);
        let loss = learned(&model, params, Dtype::F32, Device::Cpu, 80);
        assert!(loss < 1e-3, "{model_type:?}: {loss}");
        for storage in [None, Some(Storage::Bf16), Some(Storage::Nf4)] {
            let (model, params) = adapted(model_type, storage);
            let loss = learned(&model, params, Dtype::F32, Device::Cpu, 150);
            assert!(loss < 1e-3, "{model_type:?} with LoRA on {storage:?}: {loss}");
        }
    }
}

/// On the kernels of a GPU, in bf16 with f32 parameters; under `make torture` every decoder, also with adapters on 4 bits,
/// which takes more than a minute.
#[cfg(feature = "emu")]
#[test]
fn every_decoder_learns_one_batch_in_bf16_whole_and_with_adapters_on_4_bits() {
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    let torture = test_support::torture();
    for model_type in if torture { &ARCHITECTURES[..] } else { &ARCHITECTURES[..1] } {
        let (model, params) = model_of(*model_type, None);
        let loss = learned(&model, params, Dtype::Bf16, device, if torture { 80 } else { 60 });
        assert!(loss < 1e-3, "{model_type:?}: {loss}");
        if !torture {
            continue;
        }
        let (model, params) = adapted(*model_type, Some(Storage::Nf4));
        let loss = learned(&model, params, Dtype::Bf16, device, 150);
        assert!(loss < 1e-3, "{model_type:?} with LoRA in 4 bits: {loss}");
    }
}

/// The loss of a batch is the sum over its sequences, whatever they are padded to.
#[test]
fn the_loss_of_a_batch_is_the_sum_over_its_sequences() {
    let (model, params) = model_of(Architecture::Qwen2, None);
    let all = sequences();
    let labelled = labelled(&all);
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &params);
    let together = model
        .loss(&forward, &model.batch(&labelled, Dtype::F32).unwrap())
        .unwrap()
        .value()
        .to_f64()[0];
    let losses = model.losses(&forward, &labelled).unwrap();
    // The sums of 16 losses of about 4 in f32.
    assert!((together / losses.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{together} {losses:?}");
    for (own, loss) in labelled.iter().zip(&losses) {
        let alone = model.losses(&forward, &[*own]).unwrap();
        assert!((alone[0] / loss - 1.0).abs() < 1e-6, "{alone:?} {loss}");
    }
    let batch = model.batch(&labelled, Dtype::F32).unwrap();
    let tensor = |name: &str| batch.input(&forward, name).unwrap().value().read::<i32>().to_vec();
    // Sequences are padded to 16 tokens. Of the first, of 5 tokens, the last three are labels; the states before them
    // predict them.
    assert_eq!(tensor("rows")[..3], [1, 2, 3]);
    assert_eq!(tensor("targets")[..3], all[0].0[2..]);
    assert_eq!(tensor("rows")[3..10], [19, 20, 21, 22, 23, 24, 25]);
    assert_eq!(tensor("rows")[10..12], [32, 33]);
    assert_eq!(tensor("targets")[12..], [-100; 4]);
    assert_eq!(tensor("lengths"), [5, 11, 3]);
    assert_eq!(batch.weight().to_f64(), [12.0]);
}
