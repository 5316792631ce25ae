//! The convolutional U-Net: parameter counts, recomputation, grids that it refuses.

use super::*;
use learn::recompute::Recompute;
use learn::task::Batch;
use std::rc::Rc;
use tasks::common::models::{ConvActivation, ConvNorm, ConvUnet, Upsample};

pub fn plain(hidden: usize, levels: usize) -> ConvUnet {
    ConvUnet {
        hidden,
        levels,
        kernel_size: 3,
        norm: ConvNorm::Instance,
        groups: 8,
        activation: ConvActivation::Relu,
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

fn shape(input: usize, output: usize, grid: [usize; 3], padding: Padding) -> NetworkShape {
    NetworkShape { input, output, grid, padding, condition: 0 }
}

/// Of the published sizes S and M, for four steps of five channels.
#[test]
fn the_published_sizes_have_their_parameter_counts() {
    let shape = shape(20, 5, [1, 64, 64], Padding::Zero);
    let path = (ConditionPath::Concatenated, 1);
    for (hidden, levels, count) in [(32, 3, 7_720_101), (64, 4, 124_192_069)] {
        let (_, b) = network(&plain(hidden, levels), &shape, path);
        b.check().unwrap();
        assert_eq!(b.finish().count(), count);
    }
}

/// The same bits with and without recomputation, whose dropout draws the same masks.
#[test]
fn recomputed_blocks_with_dropout_have_the_same_gradients() {
    let config = ConvUnet { dropout: 0.25, ..plain(4, 2) };
    let shape = shape(3, 2, [1, 1, 24], Padding::Periodic);
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
    assert!(plan.plan().is_some_and(|plan| plan.flops().0 > 0));
    assert!(gradients(None, false) != expected, "dropout changes nothing");
}

#[test]
fn grids_and_sizes_that_do_not_fit_are_refused_with_a_remedy() {
    let group = |groups| ConvUnet { norm: ConvNorm::Group, groups, ..plain(6, 2) };
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
        (
            plain(6, 2),
            [1, 1, 10],
            "4, but a side of the token grid 1 x 10 is 10; choose levels: 1 or less",
        ),
        (
            plain(6, 3),
            [1, 12, 8],
            "8, but a side of the token grid 12 x 8 is 12; choose levels: 2 or less",
        ),
        (
            plain(6, 2),
            [4, 6, 8],
            "4, but a side of the token grid 4 x 6 x 8 is 6; choose levels: 1 or less",
        ),
        (plain(6, 2), [1, 4, 4], "lower levels or use norm: group"),
        (wide, [1, 8, 8], "lower kernel_size or levels"),
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
        let x = zeros(&[1, grid.iter().product(), 3]);
        let error = network.forward(&forward, &x, &zeros(&[1, 2])).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
