//! Backbones on token grids of three axes that have no convolution over them.

use super::*;

const GRID: [usize; 3] = [2, 3, 4];

fn on_volume(backbone: &BackboneConfig) -> (Network, Builder) {
    let shape =
        NetworkShape { input: 3, output: 2, grid: GRID, padding: Padding::Zero, condition: 2 };
    let mut b = Builder::new(1);
    let network = Network::new(&mut b, backbone, (ConditionPath::Adaptive, 5), &shape);
    (network, b)
}

/// Attention knows the places of the tokens along all three axes: every position vector matters.
#[test]
fn attention_over_a_volume_uses_the_positions_along_each_axis() {
    let mut model = stack(0, Attention::MultiHead { heads: 3, qk_norm: true });
    let BackboneConfig::PdetStack(c) = &mut model.backbone else { unreachable!() };
    c.positions = true;
    let (network, b) = on_volume(&model.backbone);
    b.check().unwrap();
    let params = b.finish();
    let shapes: Vec<&[usize]> = params
        .trained
        .entries()
        .iter()
        .filter(|(name, _)| name.contains("positions"))
        .map(|(_, tensor)| &tensor.shape()[..1])
        .collect();
    assert_eq!(shapes, [[2], [3], [4]]);
    let [x, target] = [(3, 1), (2, 3)].map(|(n, seed)| draw(&[2, 24, n], &Draw::Normal, seed, 0));
    let features = draw(&[2, 2], &Draw::Normal, 2, 0);
    check("attention over a volume", &params, |forward| {
        let (x, features) = (constant(x.clone()), constant(features.clone()));
        distance(forward, &network.forward(forward, &x, &features).unwrap(), &target)
    });
}

#[test]
fn backbones_without_a_third_axis_say_which_have_one() {
    let fno = BackboneConfig::Fno(Fno { hidden: 4, depth: 1, modes: 4, positions: false });
    let filters = stack(3, Attention::None).backbone;
    for (backbone, words) in [
        (
            fno,
            "kind: fno supports one or two axes, but the token grid is 2 x 3 x 4: use kind: unet",
        ),
        (unet(6, 3, 3).backbone, "kind: pdet_unet supports one or two axes"),
        (filters, "kind: pdet_stack with kernel_size above 0 supports one or two axes"),
    ] {
        let error = on_volume(&backbone).1.check().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.exit, unix::Exit::Config);
    }
    let tokens = BackboneConfig::Mlp(Mlp { hidden: 4, depth: 1 });
    on_volume(&tokens).1.check().unwrap();
}
