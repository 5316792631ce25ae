//! Models on a two-dimensional grid of tokens.

use super::*;

/// Like [`unet`] with filters and positions, on a grid with odd sides.
fn placed_unet() -> OperatorModel {
    OperatorModel {
        backbone: BackboneConfig::PdetUnet(PdetUnet {
            hidden: 8,
            depths: vec![1, 1, 1],
            attention: Attention::None,
            kernel_size: 3,
            mlp_ratio: 2,
            positions: true,
        }),
        condition: ConditionPath::Adaptive,
        condition_width: 4,
        output: Output::Scale,
    }
}

#[test]
fn models_on_a_grid_have_a_gradient_for_every_parameter() {
    let grid = [3, 6];
    let z = draw(&[2, 18, 2], &Draw::Normal, 1, 0);
    let features = draw(&[2, 2], &Draw::Normal, 2, 0);
    let target = draw(&[2, 18, 2], &Draw::Normal, 3, 0);
    let attending = stack(3, Attention::MultiHead { heads: 3, qk_norm: true });
    for (what, model) in [("U on a grid", placed_unet()), ("stack on a grid", attending)] {
        let (operator, params) = on_grid(&model, 2, grid, 2);
        check(what, &params, |forward| {
            let features = constant(features.clone());
            let next = operator.forward(forward, &constant(z.clone()), &features).unwrap();
            distance(forward, &next, &target)
        });
    }
    let model = CodecModel {
        patch: 2,
        latent: 3,
        hidden: 6,
        encoder_depth: 1,
        decoder_depth: 1,
        kernel_size: 3,
        mlp_ratio: 2,
        padding_mode: Default::default(),
    };
    let patches = model.patches(&[6, 4], 2).unwrap();
    let mut b = Builder::new(1);
    let codec = Codec::new(&mut b, &model, &patches);
    let u = draw(&[2, patches.field_len()], &Draw::Normal, 4, 0);
    check("codec on a grid", &b.finish(), |forward| {
        let z = codec.encode(forward, &constant(u.clone())).unwrap();
        assert_eq!(z.shape(), [2, 6, 3]);
        distance(forward, &codec.decode(forward, &z).unwrap(), &u)
    });
}

/// The tokens of a frame [rows, columns, dim], shifted periodically along both axes.
fn moved(z: &[f32], [rows, columns]: [usize; 2], dim: usize, by: [usize; 2]) -> Vec<f32> {
    let mut out = vec![0.0; z.len()];
    for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
        let to = (row + by[0]) % rows * columns + (column + by[1]) % columns;
        let from = row * columns + column;
        out[to * dim..][..dim].copy_from_slice(&z[from * dim..][..dim]);
    }
    out
}

/// Without positions, a model on a periodic grid is equivariant to shifts: a state shifted along either axis gives the
/// next state shifted likewise. With positions it is not.
#[test]
fn models_on_a_periodic_grid_are_shift_equivariant_without_positions() {
    let (grid, dim) = ([4, 8], 3);
    let z = draw(&[1, 32, dim], &Draw::Normal, seed(), 0).to_dtype(Dtype::F32);
    let features = draw(&[1, 2], &Draw::Normal, seed(), 1).to_dtype(Dtype::F32);
    let mut unplaced = placed_unet();
    let BackboneConfig::PdetUnet(backbone) = &mut unplaced.backbone else { panic!() };
    (backbone.positions, backbone.depths) = (false, vec![2]);
    for (model, by, placed) in [
        (stack(3, Attention::None), [1, 5], false),
        (stack(5, Attention::MultiHead { heads: 2, qk_norm: false }), [3, 1], false),
        (unplaced, [1, 2], false),
        (placed_unet(), [1, 2], true),
    ] {
        let (operator, params) = on_grid(&model, dim, grid, 2);
        let params = ParamSet::from(shaken(&params, seed()).trained.to_dtype(Dtype::F32));
        let next = |z: &[f32]| {
            let tape = Tape::without_gradients();
            let forward = Forward::evaluation(&tape, &params);
            let z = constant(Tensor::from_slice(z, &[1, 32, dim]));
            let next = operator.forward(&forward, &z, &constant(features.clone())).unwrap();
            next.value().read::<f32>().to_vec()
        };
        let (a, b) = (next(&moved(z.read(), grid, dim, by)), moved(&next(z.read()), grid, dim, by));
        let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(error > 1e-3, placed, "{model:?}: {error}");
    }
}

/// The effect of one changed token reaches exactly as far as the filters do, along both axes.
#[test]
fn a_stack_on_a_grid_is_local_along_both_axes() {
    let (grid, dim) = ([9, 11], 2);
    let (operator, params) = on_grid(&stack(3, Attention::None), dim, grid, 2);
    let params = ParamSet::from(shaken(&params, seed()).trained.to_dtype(Dtype::F32));
    let features = Tensor::from_slice(&[0.3_f32, -0.2], &[1, 2]);
    let next = |z: &Tensor| {
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, &params);
        let next = operator.forward(&forward, &constant(z.clone()), &constant(features.clone()));
        next.unwrap().value().read::<f32>().to_vec()
    };
    let z = draw(&[1, 99, dim], &Draw::Normal, seed(), 0).to_dtype(Dtype::F32);
    let mut other = z.clone();
    // Token (4, 5), in the middle.
    other.write::<f32>()[(4 * 11 + 5) * dim] += 1.0;
    let (a, b) = (next(&z), next(&other));
    let far = |token: usize| (token / 11).abs_diff(4).max((token % 11).abs_diff(5));
    for token in 0..99 {
        let own = token * dim..(token + 1) * dim;
        let changed = a[own.clone()] != b[own];
        // Two blocks with filters of three tokens reach two tokens far.
        assert_eq!(changed, far(token) <= 2, "token {token}, {} away", far(token));
    }
}
