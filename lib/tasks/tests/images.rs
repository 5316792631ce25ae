//! Images in sequences of tokens against transformers: logits, loss and all gradients; generation; batches with and without images.

mod golden_config;
mod image_golden;
#[allow(dead_code, reason = "texts have encoders of their own")]
mod text_golden;

use golden_config::read;
use image_golden::{CASES, Model, Sequence, json_of};
use learn::forward::Forward;
use learn::generate::{Generation, Prompt, Sampling, generate};
use learn::params::Builder;
use learn::task::Batch;
use tasks::language::vision::Images;
use tasks::language::{Generator, Language, SftModel};
#[cfg(feature = "emu")]
use tensor::Tensor;
use tensor::ops::narrow::Narrow;
use tensor::{Device, Dtype, Tape, Var};
use text_golden::Golden;

fn compare(golden: &Golden, case: &str, dtype: Dtype, device: Device, tolerance: f64) {
    let model = Model::of(golden, case, dtype, device);
    let batch = model.batch(&(0..model.sequences.len()).collect::<Vec<_>>());
    let batch = batch.to_device(device).unwrap();
    let width = golden.words(&format!("{case}/ids")).1[1];
    let run = |forward: &Forward| -> [Var; 2] {
        let logits = model.language.logits(forward, &batch).unwrap();
        // Batches are padded to a multiple of 8.
        let cut = Narrow { axis: 1, start: 0, length: width };
        let logits = forward.apply(cut, &[&logits]).unwrap();
        [logits, model.language.loss(forward, &batch).unwrap()]
    };
    golden.compare(case, &model.params, (dtype, device), tolerance, run);
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

#[cfg(feature = "emu")]
#[test]
fn kernels_compute_logits_loss_and_gradients_of_transformers() {
    let golden = Golden::open("vision_language.safetensors");
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    compare(&golden, "mixed", Dtype::F32, device, 1e-5);
}

/// In bf16 with f32 parameters: 2⁻⁸ of each rounded value, of which some are close together.
#[cfg(feature = "emu")]
#[test]
fn kernels_compute_in_bf16() {
    let golden = Golden::open("vision_language.safetensors");
    let device = "emu".parse::<tensor::DeviceChoice>().unwrap().open().unwrap().0;
    let model = Model::of(&golden, "mixed", Dtype::F32, device);
    let batch = model.batch(&[0, 1, 2]).to_device(device).unwrap();
    let tape = Tape::new();
    let forward = Forward::training(&tape, &model.params).computing_in(Dtype::Bf16).unwrap();
    let loss = model.language.loss(&forward, &batch).unwrap();
    let variables = forward.variables().to_vec();
    drop(forward);
    let expected = golden.read("mixed/loss").to_f64()[0];
    let found = loss.value().to_host().unwrap().to_f64()[0];
    assert!((found / expected - 1.0).abs() < 2e-2, "{found} {expected}");
    let one = Tensor::full(&[1], 1.0, loss.value().dtype()).to_device(device).unwrap();
    let mut gradients = tape.backward_from(&loss, one).unwrap();
    for ((name, _), variable) in model.params.trained.entries().iter().zip(&variables) {
        let found = gradients.take(variable).unwrap().to_host().unwrap().to_f64();
        let expected = golden.read(&format!("mixed/gradient/{name}")).to_f64();
        let square = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>();
        let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let size = square(&mut expected.iter().copied());
        assert!(error < 0.01 * size, "{name}: {}", (error / size).sqrt());
    }
}

/// Greedily and with a cache, together and alone, as by full passes. Prompts have several, one and no images.
#[test]
fn tokens_generated_with_a_cache_are_those_of_full_passes() {
    let golden = Golden::open("vision_language.safetensors");
    let model = Model::of(&golden, "mixed", Dtype::F32, Device::Cpu);
    let Model { language, params, sequences, .. } = &model;
    let config = read(&json_of("mixed")).unwrap();
    let images: Vec<Images> = sequences.iter().map(Sequence::images).collect();
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, params);
    let generation = Generation {
        sampling: Sampling::default(),
        max_new_tokens: 14,
        stop: vec![],
        max_repeat: 0,
    };
    let continued = |which: std::ops::Range<usize>| -> Vec<Vec<i32>> {
        let generator = Generator::new(&forward, language).with_images(&images[which.clone()]);
        let all = sequences[which].iter().zip(0..);
        let all: Vec<Prompt> = all.map(|(own, number)| Prompt { ids: &own.ids, number }).collect();
        let found = generate(&generator, &all, &generation).unwrap();
        found.into_iter().map(|own| own.ids).collect()
    };
    let together = continued(0..sequences.len());
    for (i, (sequence, found)) in sequences.iter().zip(&together).enumerate() {
        assert_eq!(&continued(i..i + 1)[0], found);
        assert!(!found.is_empty());
        let mut own = sequence.clone();
        for token in found {
            let batch = language.batch(&[own.labelled()], Dtype::F32).unwrap();
            let logits = language.logits(&forward, &batch).unwrap().value().to_f64();
            let vocabulary = config.decoder.vocab_size;
            let last = &logits[(own.ids.len() - 1) * vocabulary..][..vocabulary];
            let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
            assert_eq!(best as i32, *token, "prompt {i}, after {} tokens", own.ids.len());
            // An image token would need an image in a full pass.
            if *token == 40 {
                break;
            }
            own.ids.push(*token);
        }
    }
    // Images of other prompts.
    let generator = Generator::new(&forward, language).with_images(&images[1..]);
    let prompts: Vec<Prompt> =
        sequences[..2].iter().map(|own| Prompt { ids: &own.ids, number: 0 }).collect();
    let error = generate(&generator, &prompts, &generation).unwrap_err();
    assert_eq!(error.exit, unix::Exit::Data, "{error}");
}

/// A batch is the sum of its sequences, with and without images; without any, no gradient reaches the tower. Recomputed blocks
/// give the same bits.
#[test]
fn batches_may_have_images_or_none() {
    let golden = Golden::open("vision_language.safetensors");
    let model = Model::of(&golden, "mixed", Dtype::F64, Device::Cpu);
    let names: Vec<&str> = model.params.trained.entries().iter().map(|(n, _)| &n[..]).collect();
    let of_images = |batch: &Batch| batch.names().filter(|name| name.contains("patch")).count();
    let together = model.gradients(&[0, 1, 2], 1.0);
    let mut sum = (0.0, vec![Vec::new(); names.len()]);
    for i in 0..3 {
        let has_images = !model.sequences[i].grids.is_empty();
        let batch = model.batch(&[i]);
        assert_eq!((of_images(&batch), batch.variant()), if has_images { (5, 1) } else { (0, 0) });
        let (loss, gradients) = model.gradients(&[i], 1.0);
        sum.0 += loss;
        for ((name, sum), own) in names.iter().zip(&mut sum.1).zip(gradients) {
            let is_of_tower = name.starts_with("model.visual.");
            assert_eq!(own.is_some(), has_images || !is_of_tower, "{name}");
            for (at, own) in own.into_iter().flatten().enumerate() {
                if at >= sum.len() {
                    sum.push(0.0);
                }
                sum[at] += own;
            }
        }
    }
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * (1.0 + a.abs());
    assert!(near(together.0, sum.0), "{} {}", together.0, sum.0);
    for ((name, sum), own) in names.iter().zip(&sum.1).zip(together.1.iter().flatten()) {
        assert_eq!(sum.len(), own.len(), "{name}");
        assert!(sum.iter().zip(own).all(|(a, b)| near(*a, *b)), "{name}");
    }
    assert!(model.gradients(&[0, 1, 2], 0.0) == together);
}

/// Image tokens without their images, and images without their tokens, are wrong inputs.
#[test]
fn image_tokens_must_be_those_of_the_images() {
    let golden = Golden::open("vision_language.safetensors");
    let model = Model::of(&golden, "mixed", Dtype::F32, Device::Cpu);
    let good = &model.sequences[0];
    let with = |change: &dyn Fn(&mut Sequence)| {
        let mut own = good.clone();
        change(&mut own);
        own
    };
    for (own, text) in [
        (with(&|own| (own.grids, own.values) = (vec![], vec![])), "there are 0 images"),
        (with(&|own| own.ids.truncate(5)), "but there are 2 image tokens from token 3 on"),
        (with(&|own| own.ids = vec![1]), "there are 1 images, but the tokens of 0"),
        (with(&|own| _ = own.values.pop()), "are 1152, but there are 1151"),
        (with(&|own| own.values.push(0.0)), "are 1152, but there are 1153"),
        (with(&|own| own.grids[0].rows = 5), "not squares of 2 x 2"),
        (with(&|own| own.grids[0].rows = 0), "not squares of 2 x 2"),
        (with(&|own| own.grids[0].rows = usize::MAX - 1), "but there are 6 image tokens"),
    ] {
        let error = model.language.batch(&[good.labelled(), own.labelled()], Dtype::F32).map(drop);
        let error = error.unwrap_err();
        assert_eq!(error.exit, unix::Exit::Data);
        assert!(error.to_string().contains("sequence 1 of a batch"), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let config = SftModel { vision: None, ..read(&json_of("mixed")).unwrap() };
    let text_only = Language::new(&mut Builder::new(1), &config, 0);
    let error = text_only.batch(&[good.labelled()], Dtype::F32).map(drop).unwrap_err();
    assert_eq!(error.exit, unix::Exit::Data);
    assert!(error.to_string().contains("model.vision is null"), "{error}");
}
