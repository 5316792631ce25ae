//! Convolutional backbones against PyTorch: outputs and all gradients.

use super::unet::plain;
use super::*;
use std::fs::{self, File};
use tasks::common::models::{Autoencoder, ConvActivation, ConvNorm, ConvUnet, Resnet, Upsample};
use tensor::safetensors::Header;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/backbones.safetensors");

/// The names of the cases with their backbones, grids, padding, and the width of the conditioning vector.
fn cases() -> Vec<(&'static str, BackboneConfig, [usize; 3], Padding, usize)> {
    use Padding::{Periodic, Zero};
    let line = plain(3, 2);
    let plane = ConvUnet {
        kernel_size: 5,
        norm: ConvNorm::Group,
        groups: 3,
        activation: ConvActivation::Gelu,
        upsample: Upsample::Interpolate,
        ..plain(3, 1)
    };
    let deep = ConvUnet { activation: ConvActivation::LeakyRelu, ..plain(1, 2) };
    let volume = ConvUnet { activation: ConvActivation::Silu, ..plain(2, 1) };
    let interpolated = ConvUnet {
        norm: ConvNorm::Group,
        groups: 2,
        activation: ConvActivation::Tanh,
        upsample: Upsample::Interpolate,
        ..plain(2, 1)
    };
    let resnet = |hidden, blocks, norm, groups, activation| Resnet {
        hidden,
        blocks,
        kernel_size: 3,
        norm,
        groups,
        activation,
        dropout: 0.0,
    };
    let lines =
        Resnet { kernel_size: 5, ..resnet(4, 2, ConvNorm::Instance, 8, ConvActivation::Gelu) };
    let planes = resnet(4, 1, ConvNorm::Group, 2, ConvActivation::Silu);
    let volumes = resnet(3, 2, ConvNorm::None, 8, ConvActivation::Sigmoid);
    let coder = |layers: &[usize], latent_dim, act_fn, final_act_fn| {
        let layers = layers.to_vec();
        BackboneConfig::Autoencoder(Autoencoder { layers, latent_dim, act_fn, final_act_fn })
    };
    use ConvActivation::{Gelu, LeakyRelu, None, Sigmoid, Tanh};
    let unet = BackboneConfig::Unet;
    let residual = BackboneConfig::Resnet;
    vec![
        ("line", unet(line), [1, 1, 12], Zero, 3),
        ("plane", unet(plane), [1, 4, 6], Periodic, 2),
        ("deep_plane", unet(deep), [1, 8, 12], Periodic, 1),
        ("volume", unet(volume), [4, 2, 6], Periodic, 2),
        ("volume_interpolated", unet(interpolated), [2, 4, 6], Zero, 1),
        ("resnet_line", residual(lines), [1, 1, 7], Periodic, 2),
        ("resnet_plane", residual(planes), [1, 3, 5], Zero, 1),
        ("resnet_volume", residual(volumes), [3, 2, 5], Zero, 1),
        ("autoencoder_line", coder(&[4, 3], 2, Gelu, None), [1, 1, 13], Zero, 2),
        ("autoencoder_plane", coder(&[3], 4, LeakyRelu, Tanh), [1, 8, 4], Periodic, 1),
        ("autoencoder_volume", coder(&[2], 3, Tanh, Sigmoid), [3, 5, 4], Zero, 1),
    ]
}

/// Values and gradients of PyTorch in f64 (tests/golden/backbones.py), which the file holds rounded to f32.
#[test]
fn values_and_gradients_are_those_of_pytorch() {
    let golden = Header::read(&File::open(FILE).unwrap()).unwrap();
    let bytes = fs::read(FILE).unwrap();
    let read = |name: &str| {
        let entry = golden.get(name).unwrap_or_else(|| panic!("no {name}"));
        let values = bytes[entry.start as usize..entry.end as usize].as_chunks::<4>().0;
        let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        Tensor::from_slice(&values, &entry.shape).to_dtype(Dtype::F64)
    };
    for (case, backbone, grid, padding, width) in cases() {
        let of = |name: &str| read(&format!("{case}/{name}"));
        let (x, features, out) = (of("x"), of("features"), of("out"));
        let [input, output, condition] = [&x, &out, &features].map(Tensor::width);
        let shape = NetworkShape { input, output, grid, padding, condition };
        assert_eq!(backbone.violations(), []);
        let mut b = Builder::new(1);
        let network = Network::new(&mut b, &backbone, (ConditionPath::Adaptive, width), &shape);
        b.check().unwrap();
        let mut params = ParamSet::from(b.finish().trained.to_dtype(Dtype::F64));
        let names: Vec<String> =
            params.trained.entries().iter().map(|(name, _)| name.clone()).collect();
        for (name, value) in names.iter().zip(params.trained.tensors_mut()) {
            let given = of(&format!("value/{name}"));
            assert_eq!(value.shape(), given.shape(), "{case}: {name}");
            *value = given;
        }
        let values = format!("{case}/value/");
        let count = golden.entries.iter().filter(|entry| entry.name.starts_with(&values)).count();
        assert_eq!(count, names.len(), "{case}: parameters");
        let tape = Tape::new();
        let forward = Forward::training(&tape, &params);
        let x = tape.leaf(x);
        let y = network.forward(&forward, &x, &constant(features)).unwrap();
        let variables = forward.variables().to_vec();
        drop(forward);
        let value = y.value().clone();
        let mut gradients = tape.backward_from(&y, of("dout")).unwrap();
        let mut found =
            vec![("out".to_string(), value), ("dx".into(), gradients.take(&x).unwrap())];
        for (name, variable) in names.iter().zip(&variables) {
            found.push((format!("gradient/{name}"), gradients.take(variable).unwrap()));
        }
        for (name, ours) in found {
            // Both sides are exact up to the order of sums in f64, and numbers are of order 1 to 100; the rounding of
            // the file is half a unit in the last place of f32. The gradient of a bias before an instance
            // normalization is zero, and what rounding leaves of it is absolute.
            let theirs = of(&name);
            for (ours, theirs) in ours.to_f64().into_iter().zip(theirs.to_f64()) {
                let allowed = 1e-10 + f64::from(f32::EPSILON) / 2.0 * theirs.abs();
                let error = (ours - theirs).abs();
                assert!(error <= allowed, "{case}, {name}: {ours} instead of {theirs}");
            }
        }
    }
}
