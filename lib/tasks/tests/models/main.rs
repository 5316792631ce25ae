//! Whole models: the parameter counts of the originals, gradients of all parameters, and the identity as the initial
//! state.

mod denoisers;
mod golden;
mod grid;
mod unet;
mod volumes;

use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use tasks::common::models::backbone::{Attention, BackboneConfig};
use tasks::common::models::{Fno, Mlp, PdetStack, PdetUnet};
use tasks::pde::models::ConditionPath;
use tasks::pde::models::operator::Output;
use tasks::pde::models::{Codec, CodecModel, Network, NetworkShape, Operator, OperatorModel};
use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::{Dtype, Tape, Tensor, Var, constant};
use test_support::seed;

fn unet(hidden: usize, group: usize, heads: usize) -> OperatorModel {
    OperatorModel {
        backbone: BackboneConfig::PdetUnet(PdetUnet {
            hidden,
            depths: vec![1, 1, 1],
            attention: Attention::ChannelSeparated { group, heads },
            kernel_size: 0,
            mlp_ratio: 2,
            positions: false,
        }),
        condition: ConditionPath::Additive,
        condition_width: 1,
        output: Output::LayerNorm,
    }
}

fn stack(kernel_size: usize, attention: Attention) -> OperatorModel {
    OperatorModel {
        backbone: BackboneConfig::PdetStack(PdetStack {
            hidden: 12,
            depth: 2,
            iterations: 1,
            attention,
            attention_every: 1,
            kernel_size,
            mlp_ratio: 2,
            branch_scale: 0.1,
            positions: false,
        }),
        condition: ConditionPath::Adaptive,
        condition_width: 5,
        output: Output::Scale,
    }
}

fn build(
    model: &OperatorModel,
    dim: usize,
    tokens: usize,
    features: usize,
) -> (Operator, ParamSet) {
    on_grid(model, dim, [1, tokens], features)
}

fn on_grid(
    model: &OperatorModel,
    dim: usize,
    grid: [usize; 2],
    features: usize,
) -> (Operator, ParamSet) {
    assert_eq!(model.violations(), []);
    let mut b = Builder::new(1);
    let operator = Operator::new(&mut b, model, dim, grid, Padding::Periodic, features);
    (operator, b.finish())
}

/// The parameter counts of the two published configurations of the U-shaped operator, which is conditioned only on Δt.
#[test]
fn the_published_models_have_their_parameter_counts() {
    assert_eq!(build(&unet(96, 12, 6), 16, 32, 1).1.count(), 232_152);
    assert_eq!(build(&unet(64, 8, 4), 32, 16, 1).1.count(), 108_880);
}

/// Randomizes all parameters, so that no gradient is zero because of a neutral initial value.
fn shaken(params: &ParamSet, seed: u64) -> ParamSet {
    let mut shaken = ParamSet::from(params.trained.to_dtype(Dtype::F64));
    for (i, t) in (0..).zip(shaken.trained.tensors_mut()) {
        let noise = draw(t.shape(), &Draw::Uniform(-0.3, 0.3), seed, i);
        tensor::updates::sum::add(t, &noise);
    }
    shaken
}

/// Compares the gradient of all parameters with central differences along a random direction, and checks that it
/// reaches each of them. The error is relative to the norm of the gradient, which is the standard deviation of such a
/// directional derivative; the derivative itself may be near zero by chance.
fn check(what: &str, params: &ParamSet, loss: impl Fn(&Forward) -> Var) {
    let seed = seed();
    let params = shaken(params, seed);
    let tape = Tape::new();
    let forward = Forward::training(&tape, &params);
    let value = loss(&forward);
    let variables = forward.variables().to_vec();
    drop(forward);
    let mut gradients = tape.backward(&value).unwrap();
    let (mut analytic, mut norm) = (0.0, 0.0);
    let mut direction = params.clone();
    for ((i, (name, _)), (v, d)) in (0..)
        .zip(params.trained.entries())
        .zip(variables.iter().zip(direction.trained.tensors_mut()))
    {
        let g = gradients.take(v).unwrap_or_else(|| panic!("{what}: no gradient for {name}"));
        assert!(g.to_f64().iter().any(|x| *x != 0.0), "{what}: zero gradient for {name}");
        *d = draw(d.shape(), &Draw::Normal, seed ^ 1, i);
        analytic += g.to_f64().iter().zip(d.to_f64()).map(|(g, d)| g * d).sum::<f64>();
        norm += g.to_f64().iter().map(|g| g * g).sum::<f64>();
    }
    let norm = norm.sqrt();
    let along = |step: f64| {
        let mut moved = params.clone();
        for (p, d) in moved.trained.tensors_mut().zip(direction.trained.tensors()) {
            let values: Vec<f64> =
                p.to_f64().iter().zip(d.to_f64()).map(|(p, d)| p + step * d).collect();
            *p = Tensor::from_slice(&values, d.shape());
        }
        let tape = Tape::without_gradients();
        loss(&Forward::evaluation(&tape, &moved)).value().item()
    };
    // Where a normalization meets nearly equal features, the loss has high curvature, which affects large steps; a
    // wrong gradient is wrong for every step.
    let error = [1e-4, 1e-5, 1e-6].map(|h| {
        let far = along(2.0 * h) - along(-2.0 * h);
        let numeric = (8.0 * (along(h) - along(-h)) - far) / (12.0 * h);
        (analytic - numeric).abs() / numeric.abs().max(norm).max(1e-3)
    });
    let least = error.into_iter().fold(f64::INFINITY, f64::min);
    assert!(least < 1e-6, "{what}: {error:?}, seed {seed}");
}

fn distance(forward: &Forward, a: &Var, b: &Tensor) -> Var {
    let width = a.value().width();
    let samples = a.shape()[0];
    let weights = constant(Tensor::full(&[samples], 1.0, Dtype::F64));
    let channels = constant(Tensor::full(&[width], 1.0, Dtype::F64));
    forward.apply(SquaredError, &[a, &constant(b.clone()), &weights, &channels]).unwrap()
}

#[test]
fn gradients_of_whole_models_are_right_and_reach_every_parameter() {
    let (dim, tokens, batch) = (3, 9, 2);
    let attention = |qk_norm| Attention::MultiHead { heads: 3, qk_norm };
    let mut small_unet = unet(12, 6, 3);
    if let BackboneConfig::PdetUnet(backbone) = &mut small_unet.backbone {
        backbone.kernel_size = 3;
    }
    let conditioned_unet = OperatorModel {
        condition: ConditionPath::Adaptive,
        output: Output::Scale,
        ..small_unet.clone()
    };
    let fno = OperatorModel {
        backbone: BackboneConfig::Fno(Fno { hidden: 5, depth: 2, modes: 6, positions: true }),
        ..stack(0, Attention::None)
    };
    let iterated = |condition| {
        let mut model = OperatorModel { condition, ..stack(3, Attention::None) };
        let BackboneConfig::PdetStack(backbone) = &mut model.backbone else { panic!() };
        (backbone.depth, backbone.iterations) = (1, 3);
        model
    };
    for (what, model) in [
        ("fno", fno),
        ("stack, iterated", iterated(ConditionPath::Adaptive)),
        ("stack, iterated, added", iterated(ConditionPath::Additive)),
        ("stack, convolution", stack(5, Attention::None)),
        ("stack, attention", stack(0, attention(true))),
        ("stack, both", stack(3, attention(false))),
        ("unet, added", small_unet),
        ("unet, adaptive", conditioned_unet),
    ] {
        let (operator, params) = build(&model, dim, tokens, 2);
        let z = draw(&[batch, tokens, dim], &Draw::Normal, 1, 0);
        let features = draw(&[batch, 2], &Draw::Normal, 2, 0);
        let target = draw(&[batch, tokens, dim], &Draw::Normal, 3, 0);
        check(what, &params, |forward| {
            let features = constant(features.clone());
            let first = operator.forward(forward, &constant(z.clone()), &features).unwrap();
            let second = operator.forward(forward, &first, &features).unwrap();
            distance(forward, &second, &target)
        });
    }
    let model = CodecModel {
        patch: 4,
        latent: 2,
        hidden: 6,
        encoder_depth: 1,
        decoder_depth: 2,
        kernel_size: 3,
        mlp_ratio: 2,
        padding_mode: Default::default(),
    };
    let mut b = Builder::new(1);
    let codec = Codec::new(&mut b, &model, &model.patches(&[20], 1).unwrap());
    let u = draw(&[3, 20], &Draw::Normal, 4, 0);
    check("codec", &b.finish(), |forward| {
        let z = codec.encode(forward, &constant(u.clone())).unwrap();
        distance(forward, &codec.decode(forward, &z).unwrap(), &u)
    });
}

/// If the blocks ignore how far they are, two iterations of one block are two blocks with the same weights.
#[test]
fn iterations_share_their_weights() {
    let mut model = stack(3, Attention::None);
    let (deep, deep_params) = build(&model, 3, 9, 2);
    let BackboneConfig::PdetStack(backbone) = &mut model.backbone else { panic!() };
    (backbone.depth, backbone.iterations) = (1, 2);
    let (iterated, mut params) = build(&model, 3, 9, 2);
    params = ParamSet::from(shaken(&params, seed()).trained.to_dtype(Dtype::F32));
    let names: Vec<String> =
        params.trained.entries().iter().map(|(name, _)| name.clone()).collect();
    let of_name = |params: &ParamSet, name: &str| {
        let at = names.iter().position(|own| own == name).unwrap_or_else(|| panic!("no {name}"));
        params.trained.tensors().nth(at).unwrap().clone()
    };
    let next = |operator: &Operator, params: &ParamSet| {
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, params);
        let z = draw(&[2, 9, 3], &Draw::Normal, seed(), 0).to_dtype(Dtype::F32);
        let features = draw(&[2, 2], &Draw::Normal, seed(), 1).to_dtype(Dtype::F32);
        let next = operator.forward(&forward, &constant(z), &constant(features)).unwrap();
        next.value().read::<f32>().to_vec()
    };
    let mut same = deep_params.clone();
    for ((name, _), tensor) in deep_params.trained.entries().iter().zip(same.trained.tensors_mut())
    {
        *tensor = of_name(&params, &name.replace("blocks.1", "blocks.0"));
    }
    let told = next(&iterated, &params);
    for (name, tensor) in names.iter().zip(params.trained.tensors_mut()) {
        if name.contains("progress") {
            *tensor = Tensor::zeros(tensor.shape(), Dtype::F32);
        }
    }
    assert_eq!(next(&iterated, &params), next(&deep, &same));
    assert_ne!(next(&iterated, &params), told);
}

#[test]
fn a_new_operator_changes_nothing_whatever_the_condition() {
    let (operator, params) =
        build(&stack(5, Attention::MultiHead { heads: 3, qk_norm: true }), 3, 7, 2);
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &params);
    let z = draw(&[2, 7, 3], &Draw::Normal, seed(), 0).to_dtype(Dtype::F32);
    let features = draw(&[2, 2], &Draw::Normal, seed(), 1).to_dtype(Dtype::F32);
    let next = operator.forward(&forward, &constant(z.clone()), &constant(features)).unwrap();
    assert_eq!(next.value().read::<f32>(), z.read::<f32>());
}

/// With patches of one point and a feature per channel, a codec without blocks keeps every bit, and so its gradient is
/// zero.
#[test]
fn a_codec_without_blocks_on_single_points_is_the_identity() {
    let model = CodecModel {
        patch: 1,
        latent: 3,
        hidden: 0,
        encoder_depth: 0,
        decoder_depth: 0,
        kernel_size: 3,
        mlp_ratio: 2,
        padding_mode: Default::default(),
    };
    assert_eq!(model.violations(), []);
    let deeper = CodecModel { decoder_depth: 2, ..model.clone() };
    assert_eq!(deeper.violations()[0].0, "decoder_depth");
    let patches = model.patches(&[5, 7], 3).unwrap();
    let mut b = Builder::new(seed());
    let codec = Codec::new(&mut b, &model, &patches);
    let params = b.finish();
    let names = params.trained.entries().iter().map(|(name, _)| name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["encoder.direct.weight", "decoder.direct.weight"]);
    let tape = Tape::new();
    let forward = Forward::training(&tape, &params);
    let u = draw(&[2, patches.field_len()], &Draw::Normal, seed(), 0).to_dtype(Dtype::F32);
    let z = codec.encode(&forward, &constant(u.clone())).unwrap();
    assert_eq!(z.shape(), [2, 35, 3]);
    assert_eq!(z.value().read::<f32>(), u.read::<f32>());
    let found = codec.decode(&forward, &z).unwrap();
    assert_eq!(found.value().read::<f32>(), u.read::<f32>());
    let ones = |n: usize| constant(Tensor::full(&[n], 1.0, Dtype::F32));
    let (samples, points) = (ones(2), ones(patches.field_len()));
    let error = [&found, &constant(u), &samples, &points];
    let error = forward.apply(SquaredError, &error).unwrap();
    let variables = forward.variables().to_vec();
    drop(forward);
    let mut gradients = tape.backward(&error).unwrap();
    for variable in &variables {
        let gradient = gradients.take(variable).unwrap();
        assert!(gradient.to_f64().iter().all(|g| *g == 0.0), "{gradient:?}");
    }
}

/// Shifting a periodic field by one patch shifts the tokens by one, bit for bit.
#[test]
fn the_codec_is_shift_equivariant() {
    let model = CodecModel {
        patch: 4,
        latent: 3,
        hidden: 8,
        encoder_depth: 2,
        decoder_depth: 1,
        kernel_size: 5,
        mlp_ratio: 2,
        padding_mode: Default::default(),
    };
    let mut b = Builder::new(seed());
    let codec = Codec::new(&mut b, &model, &model.patches(&[28], 1).unwrap());
    let params = b.finish();
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, &params);
    let u = draw(&[1, 28], &Draw::Normal, seed(), 0).to_dtype(Dtype::F32);
    let mut moved = u.clone();
    moved.write::<f32>().rotate_left(4);
    let encode = |u: Tensor| codec.encode(&forward, &constant(u)).unwrap().value().clone();
    let mut z = encode(u);
    z.write::<f32>().rotate_left(3);
    assert_eq!(z.read::<f32>(), encode(moved).read::<f32>());
}
