use super::*;
use crate::check::draw;
use crate::nf4;
use crate::tape::{Tape, Var, constant};

/// Output, dx and db of a frozen layer and of [`Linear`] with the dequantised weight, for x [rows.., K].
fn both(
    weight: &Tensor,
    (storage, pieces): (Storage, &[Tensor]),
    rows: &[usize],
    activation: Activation,
) -> [[Tensor; 3]; 2] {
    let [n, k] = [0, 1].map(|axis| weight.shape()[axis]);
    let [x, b, dy] = [(0, [rows, &[k]].concat()), (1, vec![n]), (2, [rows, &[n]].concat())]
        .map(|(i, shape)| draw(&shape, &Draw::Normal, 9, i).to_dtype(Dtype::F32));
    let run = |op: &dyn Fn(&Tape, &Var, &Var) -> Var| {
        let tape = Tape::new();
        let [x, b] = [&x, &b].map(|t| tape.leaf(t.clone()));
        let y = op(&tape, &x, &b);
        let mut found = tape.backward_from(&y, dy.clone()).unwrap();
        [y.value().clone(), found.take(&x).unwrap(), found.take(&b).unwrap()]
    };
    let frozen = FrozenLinear { weight: storage, bias: true, activation };
    let dense = constant(weight.to_dtype(Dtype::F32));
    let pieces: Vec<Var> = pieces.iter().cloned().map(constant).collect();
    [
        run(&|tape, x, b| {
            let inputs = [x, &pieces[0], b].into_iter().chain(&pieces[1..]);
            tape.apply(frozen, &inputs.collect::<Vec<_>>()).unwrap()
        }),
        run(&|tape, x, b| tape.apply(Linear { bias: true, activation }, &[x, &dense, b]).unwrap()),
    ]
}

#[test]
fn results_are_those_of_a_weight_dequantised_once() {
    let weight = draw(&[40, 200], &Draw::Normal, 4, 0).to_dtype(Dtype::F32);
    let half = weight.to_dtype(Dtype::Bf16);
    let mut forms = vec![(half.clone(), Storage::Dense(Dtype::Bf16), vec![half])];
    for nested in [false, true] {
        let (layout, pieces) = nf4::quantise(&weight, nested);
        let whole = layout.dequantised(&pieces.iter().collect::<Vec<_>>(), Dtype::F32);
        forms.push((whole, Storage::Nf4(layout), pieces));
    }
    for (whole, storage, pieces) in forms {
        let one_step: &[usize] = &[3, 1];
        for (rows, activation) in [
            (&[3][..], Activation::Gelu),
            (&[300], Activation::Gelu),
            (one_step, Activation::Gelu),
            (one_step, Activation::Identity),
            (&[8, 1], Activation::Identity),
            (&[9, 1], Activation::Identity),
        ] {
            let [found, expected] = both(&whole, (storage, &pieces), rows, activation);
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(
                    found.to_f64(),
                    expected.to_f64(),
                    "{rows:?}, {activation:?}, {storage:?}"
                );
            }
        }
    }
}

#[test]
fn a_piece_of_another_shape_is_refused() {
    let (layout, pieces) = nf4::quantise(&draw(&[6, 50], &Draw::Normal, 4, 1), false);
    let op = FrozenLinear {
        weight: Storage::Nf4(layout),
        bias: false,
        activation: Activation::Identity,
    };
    let shapes: Vec<&[usize]> = pieces.iter().map(Tensor::shape).collect();
    let good = [&[&[2, 50][..]], &shapes[..]].concat();
    assert_eq!(op.shape(&good), Ok(vec![2, 6]));
    for (i, wrong) in [(0, &[2, 49][..]), (1, &[149, 1]), (2, &[4]), (3, &[15])] {
        let mut bad = good.clone();
        bad[i] = wrong;
        assert!(op.shape(&bad).is_err(), "{i}");
    }
}

/// The kernels dequantise to the same bits as the CPU.
#[cfg(feature = "emu")]
#[test]
fn kernels_dequantise_to_the_bit() {
    let weight = draw(&[33, 77], &Draw::Normal, 4, 2).to_dtype(Dtype::F32);
    for nested in [false, true] {
        let (layout, pieces) = nf4::quantise(&weight, nested);
        let expected = layout.dequantised(&pieces.iter().collect::<Vec<_>>(), Dtype::F32);
        let there: Vec<Tensor> =
            pieces.iter().map(|piece| piece.to_device(crate::Device::Emu).unwrap()).collect();
        for compute in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let mut w = Tensor::empty_on(crate::Device::Emu, &layout.shape, compute);
            let pieces: Vec<&Tensor> = there.iter().collect();
            cuda::expand(Storage::Nf4(layout), &pieces, &mut w);
            let found = w.to_host().unwrap();
            assert_eq!(found.to_f64(), expected.to_dtype(compute).to_f64(), "{compute}, {nested}");
        }
    }
}

/// No W in the dtype of x is kept for the backward pass.
#[test]
fn only_the_stored_weight_is_saved() {
    let (layout, pieces) = nf4::quantise(&draw(&[64, 64], &Draw::Normal, 4, 3), true);
    let op =
        FrozenLinear { weight: Storage::Nf4(layout), bias: false, activation: Activation::Gelu };
    let x = draw(&[2, 64], &Draw::Normal, 4, 4);
    let inputs: Vec<&Tensor> = std::iter::once(&x).chain(&pieces).collect();
    let mut out = Tensor::empty(&[2, 64], x.dtype());
    let saved: usize = op.forward(&inputs, &mut out).iter().map(Tensor::bytes).sum();
    let own = pieces.iter().chain([&x, &out]).map(Tensor::bytes).sum::<usize>();
    assert_eq!(saved, own);
}
