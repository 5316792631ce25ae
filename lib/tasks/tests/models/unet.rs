//! The convolutional U-Net: parameter counts, the numbers of PyTorch, grids that it refuses.

use super::*;
use learn::recompute::Recompute;
use learn::task::Batch;
use std::fs::{self, File};
use std::rc::Rc;
use tasks::pde::models::{ConvUnet, UnetActivation, UnetNorm, Upsample};
use tensor::safetensors::Header;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/unet.safetensors");

fn plain(hidden: usize, levels: usize) -> ConvUnet {
    ConvUnet {
        hidden,
        levels,
        kernel_size: 3,
        norm: UnetNorm::Instance,
        groups: 8,
        activation: UnetActivation::Relu,
        upsample: Upsample::Transposed,
        dropout: 0.0,
    }
}

fn network(
    config: &ConvUnet,
    shape: &NetworkShape,
    path: (ConditionPath, usize),
) -> (Network, Builder) {
    let backbone = BackboneConfig::Unet(config.clone());
    assert_eq!(backbone.violations(), []);
    let mut b = Builder::new(1);
    let network = Network::new(&mut b, &backbone, path, shape);
    (network, b)
}

fn shape(input: usize, output: usize, grid: [usize; 2], padding: Padding) -> NetworkShape {
    NetworkShape { input, output, grid, padding, condition: 0 }
}

/// Of the published sizes S and M, for four steps of five channels.
#[test]
fn the_published_sizes_have_their_parameter_counts() {
    let shape = shape(20, 5, [64, 64], Padding::Zero);
    let path = (ConditionPath::Concatenated, 1);
    for (hidden, levels, count) in [(32, 3, 7_720_101), (64, 4, 124_192_069)] {
        let (_, b) = network(&plain(hidden, levels), &shape, path);
        b.check().unwrap();
        assert_eq!(b.finish().count(), count);
    }
}

/// Values and gradients of PyTorch in f64 (tests/golden/unet.py), which the file holds rounded to f32.
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
    let line = plain(3, 2);
    let plane = ConvUnet {
        kernel_size: 5,
        norm: UnetNorm::Group,
        groups: 3,
        activation: UnetActivation::Gelu,
        upsample: Upsample::Interpolate,
        ..plain(3, 1)
    };
    let deep = ConvUnet { activation: UnetActivation::LeakyRelu, ..plain(1, 2) };
    for (case, config, grid, padding, width) in [
        ("line", line, [1, 12], Padding::Zero, 3),
        ("plane", plane, [4, 6], Padding::Periodic, 2),
        ("deep_plane", deep, [8, 12], Padding::Periodic, 1),
    ] {
        let of = |name: &str| read(&format!("{case}/{name}"));
        let (x, features, out) = (of("x"), of("features"), of("out"));
        let shape = shape(x.width(), out.width(), grid, padding);
        let shape = NetworkShape { condition: features.width(), ..shape };
        let (network, b) = network(&config, &shape, (ConditionPath::Adaptive, width));
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

/// The same bits with and without recomputation, whose dropout draws the same masks.
#[test]
fn recomputed_blocks_with_dropout_have_the_same_gradients() {
    let config = ConvUnet { dropout: 0.25, ..plain(4, 2) };
    let shape = shape(3, 2, [1, 24], Padding::Periodic);
    let shape = NetworkShape { condition: 2, ..shape };
    let (network, b) = network(&config, &shape, (ConditionPath::Adaptive, 5));
    let params = b.finish();
    let value = |shape: &[usize], seed| draw(shape, &Draw::Normal, seed, 0).to_dtype(Dtype::F32);
    let batch = Batch::new(1.0);
    let gradients = |plan: Option<&Rc<Recompute>>, counter: bool| -> Vec<Vec<u8>> {
        let tape = Tape::new();
        let mut forward = Forward::training(&tape, &params);
        if counter {
            forward = forward.with_counter(batch.counter());
        }
        if let Some(plan) = plan {
            forward = forward.recomputing(Rc::clone(plan));
        }
        let (x, features) = (constant(value(&[2, 24, 3], 1)), constant(value(&[2, 2], 2)));
        let y = network.forward(&forward, &x, &features).unwrap();
        let variables = forward.variables().to_vec();
        drop(forward);
        if let Some(plan) = plan {
            plan.end_pass();
        }
        let mut found = tape.backward_from(&y, value(&[2, 24, 2], 3)).unwrap();
        variables.iter().map(|v| found.take(v).unwrap().as_bytes().to_vec()).collect()
    };
    let expected = gradients(None, true);
    let plan = Rc::new(Recompute::new(0.0));
    for pass in 0..3 {
        assert!(gradients(Some(&plan), true) == expected, "pass {pass}");
    }
    assert!(plan.plan().is_some_and(|plan| plan.operations().0 > 0));
    assert!(gradients(None, false) != expected, "dropout changes nothing");
}

#[test]
fn grids_and_sizes_that_do_not_fit_are_refused_with_a_remedy() {
    let group = |groups| ConvUnet { norm: UnetNorm::Group, groups, ..plain(6, 2) };
    for (config, key) in [
        (ConvUnet { kernel_size: 4, ..plain(6, 2) }, "backbone.kernel_size"),
        (group(8), "backbone.groups"),
        (group(0), "backbone.groups"),
    ] {
        let violations = BackboneConfig::Unet(config).violations();
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].0, key);
    }
    assert_eq!(BackboneConfig::Unet(group(4)).violations(), []);
    let wide = ConvUnet { kernel_size: 7, ..plain(6, 2) };
    for (config, grid, words) in [
        (plain(6, 2), [1, 10], "4, but a side of the token grid 1 x 10 is 10: lower levels"),
        (plain(6, 3), [12, 8], "8, but a side of the token grid 12 x 8 is 12: lower levels"),
        (plain(6, 2), [4, 4], "lower levels or use norm: group"),
        (wide, [8, 8], "lower kernel_size or levels"),
    ] {
        let shape = NetworkShape { condition: 2, ..shape(3, 2, grid, Padding::Periodic) };
        let (network, b) = network(&config, &shape, (ConditionPath::Adaptive, 5));
        let error = b.check().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.exit, unix::Exit::Config);
        let params = b.finish();
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, &params);
        let zeros = |shape: &[usize]| constant(Tensor::zeros(shape, Dtype::F32));
        let x = zeros(&[1, grid[0] * grid[1], 3]);
        let error = network.forward(&forward, &x, &zeros(&[1, 2])).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
