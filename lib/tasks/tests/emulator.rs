//! Whole models on a device that runs kernels, compared with the CPU: losses, gradients of all parameters, and updates.
//! On the emulator, or with LONGHAUL_TEST_DEVICE=cuda on a GPU.
//!
//! Sizes are tiny and odd, so that every tile, vector and warp is partially filled somewhere.
#![cfg(feature = "emu")]

use dist::Solo;
use learn::config::Config;
use learn::forward::Forward;
use learn::params::{Builder, ParamSet};
use learn::train::Learner;
use tasks::common::models::backbone::{Attention, BackboneConfig};
use tasks::common::models::{
    Autoencoder, ConvActivation, ConvNorm, ConvUnet, Fno, Mlp, PdetStack, PdetUnet, Resnet,
    Upsample,
};
use tasks::diffusion::Preconditioning;
use tasks::pde::models::denoiser::{Conditioning, Denoiser};
use tasks::pde::models::{Codec, CodecModel, ConditionPath, Critic, Network, NetworkModel};
use tasks::pde::models::{NetworkShape, Operator, OperatorModel, operator::Output};
use tensor::check::{difference, draw};
use tensor::op::Draw;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::squared_error::SquaredError;
use tensor::updates::sum;
use tensor::{Device, DeviceChoice, Dtype, Tape, Tensor, Var};

const DIM: usize = 3;
const TOKENS: usize = 9;
const BATCH: usize = 3;
const FEATURES: usize = 2;
/// Grid points per patch.
const PATCH: usize = 5;

fn device() -> Device {
    let name = std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "emu".into());
    let wanted: DeviceChoice = name.parse().unwrap();
    wanted.open().unwrap().0
}

enum Model {
    Codec(Codec),
    /// With its number of tokens.
    Operator(Operator, usize),
    Denoiser(Denoiser),
    Critic(Critic),
    /// With its number of tokens.
    Network(Network, usize),
}

impl Model {
    /// Mean squared distance between the model's output for a fixed input and a fixed target.
    fn loss(&self, forward: &Forward) -> Var {
        let value = |shape: &[usize], seed| {
            forward.constant(&draw(shape, &Draw::Normal, seed, 0).to_dtype(Dtype::F32)).unwrap()
        };
        let (made, target) = match self {
            Model::Codec(codec) => {
                let u = value(&[BATCH, TOKENS * PATCH], 1);
                let z = codec.encode(forward, &u).unwrap();
                (codec.decode(forward, &z).unwrap(), u)
            }
            Model::Operator(operator, tokens) => {
                let z = value(&[BATCH, *tokens, DIM], 1);
                let next = operator.forward(forward, &z, &value(&[BATCH, FEATURES], 2)).unwrap();
                (next, value(&[BATCH, *tokens, DIM], 3))
            }
            Model::Network(network, tokens) => {
                let (x, features) =
                    (value(&[BATCH, *tokens, DIM], 1), value(&[BATCH, FEATURES], 2));
                let [x, features] = [x, features].map(|v| forward.to_compute_dtype(&v).unwrap());
                let made = network.forward(forward, &x, &features).unwrap();
                (forward.to_param_dtype(&made).unwrap(), value(&[BATCH, *tokens, DIM], 3))
            }
            Model::Denoiser(denoiser) => {
                let [x, next, z, target] =
                    [1, 2, 3, 4].map(|seed| value(&[BATCH, TOKENS, DIM], seed));
                let features = &value(&[BATCH, FEATURES], 5);
                let given = Conditioning { states: [&next, &z], features };
                let c = Preconditioning::Edm { sigma_data: 1.0 }.at(0.7);
                (denoiser.denoise(forward, &x, &given, &c).unwrap(), target)
            }
            Model::Critic(critic) => {
                let [z, candidate] = [1, 2].map(|seed| value(&[BATCH, TOKENS, DIM], seed));
                let told = [value(&[BATCH, FEATURES], 5), value(&[BATCH, 1, 1], 6)];
                let told = [&told[0], &told[1]];
                let found = critic.forward(forward, [&z, &candidate], told).unwrap();
                (found.reshape(&[BATCH, 1]), value(&[BATCH, 1], 3))
            }
        };
        let (width, elements) = (made.value().width(), made.value().len());
        let weights = forward.full(&[made.shape()[0]], 1.0).unwrap();
        // A power of two is exact; with this one, gradients are clipped in every model.
        let scale = if matches!(self, Model::Network(..)) { 32.0 } else { 1.0 };
        let channels = forward.full(&[width], scale * width as f64 / elements as f64).unwrap();
        forward.apply(SquaredError, &[&made, &target, &weights, &channels]).unwrap()
    }
}

fn operator(
    backbone: BackboneConfig,
    condition: ConditionPath,
    output: Output,
) -> (Model, ParamSet) {
    operator_on([1, TOKENS], backbone, condition, output)
}

fn operator_on(
    grid: [usize; 2],
    backbone: BackboneConfig,
    condition: ConditionPath,
    output: Output,
) -> (Model, ParamSet) {
    let model = OperatorModel { backbone, condition, condition_width: 5, output };
    assert_eq!(model.violations(), []);
    let mut b = Builder::new(1);
    let operator = Operator::new(&mut b, &model, DIM, grid, Padding::Periodic, FEATURES);
    b.check().unwrap();
    (Model::Operator(operator, grid[0] * grid[1]), b.finish())
}

fn stack(attention: Attention, kernel_size: usize) -> BackboneConfig {
    let (hidden, branch_scale) = (15, 0.5);
    let (depth, attention_every, mlp_ratio) = (2, 1, 2);
    BackboneConfig::PdetStack(PdetStack {
        hidden,
        depth,
        iterations: 1,
        attention,
        attention_every,
        kernel_size,
        mlp_ratio,
        branch_scale,
        positions: false,
    })
}

fn unet(kernel_size: usize) -> BackboneConfig {
    let attention = Attention::ChannelSeparated { group: 9, heads: 3 };
    // Models with filters get the positions of the tokens.
    let (depths, positions) = (vec![1, 1], kernel_size > 0);
    BackboneConfig::PdetUnet(PdetUnet {
        hidden: 18,
        depths,
        attention,
        kernel_size,
        mlp_ratio: 1,
        positions,
    })
}

/// One level on an even grid, whose coarsest grid leaves a few numbers to normalize over.
fn conv_unet(norm: ConvNorm, upsample: Upsample) -> BackboneConfig {
    let (hidden, levels, groups) = (3, 1, 2);
    let (kernel_size, activation, dropout) = (3, ConvActivation::Silu, 0.0);
    BackboneConfig::Unet(ConvUnet {
        hidden,
        levels,
        kernel_size,
        norm,
        groups,
        activation,
        upsample,
        dropout,
    })
}

/// On a grid of three axes, conditioned.
fn network_on(grid: [usize; 3], backbone: BackboneConfig) -> (Model, ParamSet) {
    let (input, output, padding, condition) = (DIM, DIM, Padding::Periodic, FEATURES);
    let shape = NetworkShape { input, output, grid, padding, condition };
    let mut b = Builder::new(1);
    let network = Network::new(&mut b, &backbone, (ConditionPath::Adaptive, 5), &shape);
    b.check().unwrap();
    (Model::Network(network, grid.iter().product()), b.finish())
}

fn resnet(hidden: usize, norm: ConvNorm) -> BackboneConfig {
    let (blocks, kernel_size, groups, dropout) = (2, 3, 2, 0.0);
    let activation = ConvActivation::Gelu;
    BackboneConfig::Resnet(Resnet {
        hidden,
        blocks,
        kernel_size,
        norm,
        groups,
        activation,
        dropout,
    })
}

fn autoencoder(layers: &[usize]) -> BackboneConfig {
    let (act_fn, final_act_fn) = (ConvActivation::Tanh, ConvActivation::Sigmoid);
    BackboneConfig::Autoencoder(Autoencoder {
        layers: layers.to_vec(),
        latent_dim: 6,
        act_fn,
        final_act_fn,
    })
}

fn fno() -> BackboneConfig {
    BackboneConfig::Fno(Fno { hidden: 10, depth: 2, modes: 5, positions: false })
}

fn mlp() -> BackboneConfig {
    BackboneConfig::Mlp(Mlp { hidden: 13, depth: 2 })
}

fn denoiser(backbone: BackboneConfig, condition: ConditionPath) -> (Model, ParamSet) {
    let model = NetworkModel { backbone, condition, condition_width: 5 };
    let mut b = Builder::new(1);
    let grid = [1, TOKENS];
    let denoiser = Denoiser::new(&mut b, &model, DIM, grid, Padding::Periodic, FEATURES);
    (Model::Denoiser(denoiser), b.finish())
}

fn critic() -> (Model, ParamSet) {
    let (backbone, condition) = (stack(Attention::None, 5), ConditionPath::Adaptive);
    let model = NetworkModel { backbone, condition, condition_width: 5 };
    let mut b = Builder::new(1);
    let critic = Critic::new(&mut b, &model, DIM, [1, TOKENS], Padding::Periodic, FEATURES);
    (Model::Critic(critic), b.finish())
}

fn codec() -> (Model, ParamSet) {
    let model = CodecModel {
        patch: PATCH,
        latent: 2,
        hidden: 7,
        encoder_depth: 1,
        decoder_depth: 1,
        kernel_size: 3,
        mlp_ratio: 3,
        padding_mode: Default::default(),
    };
    let mut b = Builder::new(1);
    let patches = model.patches(&[TOKENS * PATCH], 1).unwrap();
    let codec = Codec::new(&mut b, &model, &patches);
    (Model::Codec(codec), b.finish())
}

/// Every kind of model, with its parameters moved away from their neutral initial values.
fn models() -> Vec<(&'static str, Model, ParamSet)> {
    use ConditionPath::{Adaptive, Additive, Concatenated};
    let convolutions = |grid, norm, upsample| {
        operator_on(grid, conv_unet(norm, upsample), Adaptive, Output::Scale)
    };
    let heads = |qk_norm| Attention::MultiHead { heads: 3, qk_norm };
    [
        ("codec", codec()),
        ("critic", critic()),
        ("denoiser, adaptive", denoiser(mlp(), Adaptive)),
        ("denoiser, concatenated", denoiser(mlp(), Concatenated)),
        ("convolutions", convolutions([1, 22], ConvNorm::Instance, Upsample::Transposed)),
        ("convolutions on a grid", convolutions([6, 4], ConvNorm::Group, Upsample::Interpolate)),
        (
            "convolutions in a volume",
            network_on([4, 6, 4], conv_unet(ConvNorm::Instance, Upsample::Transposed)),
        ),
        (
            "interpolation in a volume",
            network_on([4, 4, 6], conv_unet(ConvNorm::Group, Upsample::Interpolate)),
        ),
        ("resnet", network_on([1, 5, 7], resnet(10, ConvNorm::Group))),
        ("resnet in a volume", network_on([3, 4, 5], resnet(8, ConvNorm::Instance))),
        ("autoencoder", network_on([1, 1, 21], autoencoder(&[5, 9]))),
        ("autoencoder in a volume", network_on([7, 5, 3], autoencoder(&[9]))),
        ("fno, adaptive", operator(fno(), Adaptive, Output::Scale)),
        ("fno, added", operator(fno(), Additive, Output::Scale)),
        ("stack, convolution", operator(stack(Attention::None, 5), Adaptive, Output::Scale)),
        ("stack, qk_norm", operator(stack(heads(true), 0), Additive, Output::LayerNorm)),
        ("stack, both", operator(stack(heads(false), 3), Adaptive, Output::LayerNorm)),
        ("unet, added", operator(unet(0), Additive, Output::Scale)),
        ("unet, adaptive", operator(unet(3), Adaptive, Output::LayerNorm)),
    ]
    .into_iter()
    .map(|(name, (model, mut params))| {
        for (i, t) in (0..).zip(params.trained.tensors_mut()) {
            let noise = draw(t.shape(), &Draw::Uniform(-0.3, 0.3), 5, i).to_dtype(Dtype::F32);
            sum::add(t, &noise);
        }
        (name, model, params)
    })
    .collect()
}

/// The loss and the gradients of all parameters, on the host, computed in `dtype`.
fn gradients(model: &Model, params: &ParamSet, dtype: Dtype) -> (f64, Vec<Tensor>) {
    // A power of two is exact, and keeps small gradients in the range of f16.
    let scale: f64 = if dtype == Dtype::F16 { 1024.0 } else { 1.0 };
    let tape = Tape::new();
    let forward = Forward::training(&tape, params).computing_in(dtype).unwrap();
    let loss = model.loss(&forward);
    let variables = forward.variables().to_vec();
    let seed = Tensor::full(&[1], scale, forward.dtype()).to_device(forward.device()).unwrap();
    drop(forward);
    let mut found = tape.backward_scaled(&loss, &seed).unwrap();
    let gradient = |v: &Var| {
        let g = found.take(v).unwrap().to_host().unwrap().to_dtype(Dtype::F64);
        let plain: Vec<f64> = g.to_f64().iter().map(|x| x / scale).collect();
        Tensor::from_slice(&plain, g.shape())
    };
    let gradients = variables.iter().map(gradient).collect();
    (loss.value().to_host().unwrap().item(), gradients)
}

fn root_mean_square(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt()
}

/// Tolerance of a loss relative to the exact one, in units of the dtype's roundoff: it is a mean of squares, each with
/// the errors of a few roundings, which mostly cancel.
const LOSS_TOLERANCE: f64 = 8.0;

/// The same for the gradient of a parameter, by its root mean square. About 60 ops lie on its path, forward and
/// backward, each of which rounds its result once: √60 roundoffs if errors are neither amplified nor damped. A
/// normalization over a few nearly equal features amplifies them, here by up to four, as much as on the CPU in f32. One
/// wrong element in ten is 80 roundoffs in the coarsest dtype.
const GRADIENT_TOLERANCE: f64 = 64.0;

#[test]
fn losses_and_gradients_agree_with_the_cpu() {
    let mut wrong = Vec::new();
    for (what, model, params) in models() {
        let (loss, exact) =
            gradients(&model, &ParamSet::from(params.trained.to_dtype(Dtype::F64)), Dtype::F64);
        let exact: Vec<Vec<f64>> = exact.iter().map(Tensor::to_f64).collect();
        let sizes: Vec<f64> = exact.iter().map(|g| root_mean_square(g)).collect();
        // A gradient that is a small difference of large terms is only as accurate as the terms.
        let least = root_mean_square(&sizes) / 10.0;
        let on_device = [Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| (device(), dtype));
        for (device, dtype) in [(Device::Cpu, Dtype::F32)].into_iter().chain(on_device) {
            let (ours, found) = gradients(&model, &params.to_device(device).unwrap(), dtype);
            let mut worst = (0.0, "");
            let mut judge = |name, error: f64, tolerance| {
                let error = error / dtype.roundoff();
                if error.is_nan() || error >= tolerance {
                    wrong.push(format!("{what} on {device} in {dtype}: {name}: {error:.1}"));
                }
                error
            };
            judge("loss", (ours - loss).abs() / loss, LOSS_TOLERANCE);
            for (i, (name, _)) in params.trained.entries().iter().enumerate() {
                let apart: Vec<f64> =
                    found[i].to_f64().iter().zip(&exact[i]).map(|(a, b)| a - b).collect();
                let error = root_mean_square(&apart) / sizes[i].max(least);
                let error = judge(name, error, GRADIENT_TOLERANCE);
                worst = if error > worst.0 { (error, name) } else { worst };
            }
            println!("{what} on {device} in {dtype}: {:.1} roundoffs, {}", worst.0, worst.1);
        }
    }
    assert!(wrong.is_empty(), "in roundoffs:\n{}", wrong.join("\n"));
}

/// Two updates with clipping and a moving average, from the same gradients on the device and on the CPU.
#[test]
fn updates_agree_with_the_cpu() {
    let adamw = serde_json::json!({"kind": "adamw"});
    let sgd = serde_json::json!({"kind": "sgd", "momentum": 0.9});
    let muon = serde_json::json!({"kind": "muon"});
    // A few f32 roundings of values up to five times the root mean square. Muon multiplies those in directions that have
    // no gradient by up to 3.4⁵, and its step by the learning rate.
    for (method, roundings) in [(adamw, 24.0), (muon, 24.0 * 480.0 * 0.1), (sgd, 24.0)] {
        let config = serde_json::json!({
            "data": null, "model": null, "loss": null,
            "training": {"updates": 2, "batch_size": 1, "clip_grad_norm": 0.01, "ema": 0.9},
            "optimizer": {"method": method, "learning_rate": 0.1, "weight_decay": 0.1},
        });
        let config: Config<(), (), ()> = serde_json::from_value(config).unwrap();
        for (what, model, params) in models() {
            let (loss, gradients) = gradients(&model, &params, Dtype::F32);
            let after = |device: Device| {
                let to = |t: &Tensor| t.to_dtype(Dtype::F32).to_device(device).unwrap();
                let gradients: Vec<Tensor> = gradients.iter().map(to).collect();
                let params = params.to_device(device).unwrap();
                let mut learner = Learner::new(params, &config, &Solo).unwrap();
                let losses = [vec![loss as f32, 2.0]
                    .into_iter()
                    .map(|x| Tensor::scalar(x).to_device(device).unwrap())
                    .collect()];
                for update in 0..2 {
                    let given = learner.update(update, &losses, &gradients, &[], &Solo);
                    let step = given.unwrap().wait().unwrap();
                    assert!(step.gradient_norm > 0.01, "{what}: {step:?} is not clipped");
                    assert!(step.applied && step.steps == update + 1, "{what}: {step:?}");
                }
                learner.files(&Solo).unwrap().unwrap()
            };
            for ((file, ours), (_, cpu)) in after(device()).iter().zip(after(Device::Cpu)) {
                for ((name, ours), (_, cpu)) in ours.iter().zip(&cpu) {
                    let error = difference(ours, cpu);
                    let tolerance = roundings * Dtype::F32.roundoff();
                    assert!(error < tolerance, "{what}: {name} of {file}: {error:e}");
                }
            }
        }
    }
}
