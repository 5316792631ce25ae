//! The network of task `cycle-vae` as the one that it is built after: tests/golden/mmdit.py of the root computed values
//! and gradients, with parameters as in its checkpoints.

use learn::foreign::{self, Layout, Named, WeightFile};
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::task::Batch;
use std::collections::BTreeSet;
use std::path::Path;
use tasks::multimodal::model::{Inputs, Network, Sizes};
use tasks::multimodal::original::ORIGINAL;
use tasks::multimodal::{
    ConnectionKind, CycleVaeConfig, CycleVaeModel, HyperConnections, TimeEmbedding,
};
use tensor::ops::concat::Concat;
use tensor::{Dtype, Tape, Tensor};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mmdit.safetensors");

const EXAMPLE: &str = include_str!("../src/multimodal/cycle-vae.yaml");

/// The model of the file.
fn model(hyper_connections: Option<HyperConnections>) -> CycleVaeModel {
    CycleVaeModel {
        hidden: 6,
        heads: 2,
        head_size: Some(4),
        condition: Some(4),
        qk_norm: false,
        pooled_latent: false,
        tied: false,
        time_embedding: TimeEmbedding::Sinusoidal,
        hyper_connections,
        max_length: Some(7),
        ..CycleVaeModel::default()
    }
}

/// No token is the mask, whose logit the file has, too.
const SIZES: Sizes = Sizes { vocabulary: 11, mask: 11, length: 5, vector: 3 };

fn build(config: &CycleVaeModel, sizes: Sizes) -> (Network, ParamSet) {
    let mut b = Builder::new(1);
    let network = Network::new(&mut b, config, sizes);
    b.check().unwrap();
    (network, b.finish())
}

/// The tensors of a case.
struct Golden<'a>(&'a WeightFile, &'a str);

impl<'a> Golden<'a> {
    fn read(&self, name: &str, dtype: Dtype) -> Tensor {
        let name = format!("{}/{name}", self.1);
        let entry = self.0.tensors().iter().find(|entry| entry.name == name);
        self.0.read(entry.unwrap_or_else(|| panic!("no {name}")), dtype).unwrap()
    }

    /// Names and shapes of the parameters.
    fn parameters(&self) -> Vec<Named<'a>> {
        let prefix = format!("{}/value/", self.1);
        let entries = self.0.tensors().iter();
        let parameter =
            |own: &'a foreign::TensorEntry| Some((own.name.strip_prefix(&prefix)?, &own.shape[..]));
        entries.filter_map(parameter).collect()
    }

    /// Values or gradients of a parameter.
    fn assembled(&self, kind: &str, layout: &Layout, i: usize) -> Vec<f64> {
        let values = |piece: &foreign::Piece| {
            let found = piece.values(&self.read(&format!("{kind}/{}", piece.tensor), Dtype::F64));
            // Gradients do not depend on the origin.
            let offset = if kind == "gradient" { piece.offset } else { 0.0 };
            found.into_iter().map(move |value| value - offset)
        };
        layout[i].iter().flat_map(values).collect()
    }

    /// Compares values with those of the file. In f64 they agree except for the rounding of the file to f32, and gradients
    /// that vanish. In f32, a rounding of 6e-8 grows through two blocks; those of tensors with small gradients have the
    /// size of the largest terms of their sums.
    fn near(&self, what: &str, found: &[f64], expected: &[f64], dtype: Dtype) {
        let (tolerance, least) = if dtype == Dtype::F64 { (1e-5, 1e-6) } else { (1e-5, 1e-1) };
        assert_eq!(found.len(), expected.len(), "{}: {what}", self.1);
        let scale = expected.iter().fold(least, |most: f64, value| most.max(value.abs()));
        let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(
            error <= tolerance * scale,
            "{}, {dtype:?}: {what}: {error:e} of {scale:e}",
            self.1
        );
    }
}

fn names(params: &ParamSet) -> Vec<Named<'_>> {
    let entries = params.trained.entries().iter();
    entries.map(|(name, tensor)| (&**name, tensor.shape())).collect()
}

fn check(golden: &Golden, config: &CycleVaeModel, dtype: Dtype) {
    let (network, mut params) = build(config, SIZES);
    let given = golden.parameters();
    let layout = (ORIGINAL.layout)(&given, &names(&params)).unwrap();
    let used: BTreeSet<&str> = layout.iter().flatten().map(|piece| &*piece.tensor).collect();
    assert_eq!(used, given.iter().map(|(name, _)| *name).collect(), "{}", golden.1);
    for (i, own) in params.trained.tensors_mut().enumerate() {
        let values = golden.assembled("value", &layout, i);
        *own = Tensor::from_slice(&values, own.shape()).to_dtype(Dtype::F32);
    }

    let params = ParamSet::from(params.trained.to_dtype(dtype));
    let read = |name: &str| golden.read(name, Dtype::F64).to_f64();
    let near = |what: &str, found: &[f64], expected: &[f64]| {
        golden.near(what, found, expected, dtype);
    };
    let [text_t, latent_t] = ["text_t", "latent_t"].map(read);
    let times: Vec<[f64; 2]> = text_t.into_iter().zip(latent_t).map(|(a, b)| [a, b]).collect();
    let ids = golden.read("tokens", Dtype::I32);
    let vectors = golden.read("latents", Dtype::F32);
    let batch = Batch::new(1.0);
    let batch = network.add_inputs(batch, "", ids.read(), vectors.read(), &times);
    let tape = Tape::new();
    let forward = Forward::training(&tape, &params);
    let mut inputs = Inputs::of(&forward, &batch, "").unwrap();
    inputs.latents = tape.leaf(inputs.latents.value().clone());
    inputs.times = tape.leaf(inputs.times.value().clone());
    let [text, latent] = network.forward(&forward, &inputs).unwrap();
    let logits = network.logits(&forward, &text).unwrap();
    let latents = network.latents(&forward, &latent).unwrap();
    near("logits", &logits.value().to_f64(), &read("logits"));
    near("latent", &latents.value().to_f64(), &read("latent"));

    let outputs = [&logits, &latents].map(|x| x.reshape(&[1, x.value().len()]));
    let output = forward.apply(Concat { axis: 1 }, &outputs.each_ref()).unwrap();
    let seed = [read("dlogits"), read("dlatent")].concat();
    let seed = Tensor::from_slice(&seed, output.shape()).to_dtype(dtype);
    let variables = forward.variables().to_vec();
    drop(forward);
    let mut gradients = tape.backward_from(&output, seed).unwrap();
    let mut gradient = |x| gradients.take(x).unwrap().to_f64();
    near("dlatents", &gradient(&inputs.latents), &read("dlatents"));
    // d cos(ωt)/dt = -ω·sin(ωt), d sin(ωt)/dt = ω·cos(ωt).
    let (of_features, features) = (gradient(&inputs.times), inputs.times.value().to_f64());
    let pairs = features.chunks(256).zip(of_features.chunks(256));
    let of_times: Vec<f64> = pairs
        .map(|(features, gradient)| {
            let term = |k: usize| {
                let rate = 10000f64.powf(-(k as f64) / 128.0);
                rate * (gradient[128 + k] * features[k] - gradient[k] * features[128 + k])
            };
            (0..128).map(term).sum()
        })
        .collect();
    for (modality, name) in ["dtext_t", "dlatent_t"].into_iter().enumerate() {
        near(name, &[of_times[modality], of_times[2 + modality]], &read(name));
    }
    for (i, (variable, (name, _))) in variables.iter().zip(params.trained.entries()).enumerate() {
        let expected = golden.assembled("gradient", &layout, i);
        near(name, &gradient(variable), &expected);
    }
}

#[test]
fn values_and_gradients_are_those_of_the_original() {
    let file = foreign::open(Path::new(FILE)).unwrap();
    let mut cases = vec![("residual/1".to_string(), model(None))];
    for (name, kind) in [("plain", ConnectionKind::Plain), ("manifold", ConnectionKind::Manifold)] {
        for streams in [2, 4] {
            let config = model(Some(HyperConnections { streams, kind }));
            cases.push((format!("{name}/{streams}"), config));
        }
    }
    for (case, config) in &cases {
        for dtype in [Dtype::F64, Dtype::F32] {
            check(&Golden(&file, case), config, dtype);
        }
    }
}

/// The counts are those of the package, in the metadata of the golden file. The number of parameters is linear in the
/// number of blocks, so that two and one block give that of 24 without 4 GB of memory.
#[test]
fn the_large_model_has_as_many_parameters_as_the_original() {
    let count = |kind: ConnectionKind, depth: usize| {
        let config = CycleVaeModel {
            hidden: 1024,
            depth,
            heads: 8,
            head_size: Some(64),
            condition: None,
            max_length: Some(4096),
            ..model(Some(HyperConnections { streams: 2, kind }))
        };
        // With a file of initial values, none are drawn.
        let all: CycleVaeConfig =
            serde_yaml::from_str(&format!("{EXAMPLE}init: {{from: weights}}\n")).unwrap();
        let mut b = Builder::of(&all);
        let sizes = Sizes { vocabulary: 30522, mask: 103, length: 512, vector: 32 };
        Network::new(&mut b, &config, sizes);
        b.check().unwrap();
        b.finish().count()
    };
    for (kind, expected) in
        [(ConnectionKind::Manifold, 892_624_762), (ConnectionKind::Plain, 892_624_666)]
    {
        let [one, two] = [1, 2].map(|depth| count(kind, depth));
        assert_eq!(one + 23 * (two - one), expected, "{kind:?}");
    }
}
