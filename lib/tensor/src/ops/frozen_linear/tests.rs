use super::*;
use crate::check::draw;
use crate::nf4;
use crate::ops::low_rank::LowRank;
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
    let frozen = FrozenLinear { weight: storage, bias: true, activation, merged: None };
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
        merged: None,
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
    let op = FrozenLinear {
        weight: Storage::Nf4(layout),
        bias: false,
        activation: Activation::Gelu,
        merged: None,
    };
    let x = draw(&[2, 64], &Draw::Normal, 4, 4);
    let inputs: Vec<&Tensor> = std::iter::once(&x).chain(&pieces).collect();
    let mut out = Tensor::empty(&[2, 64], x.dtype());
    let saved: usize = op.forward(&inputs, &mut out).iter().map(Tensor::bytes).sum();
    let own = pieces.iter().chain([&x, &out]).map(Tensor::bytes).sum::<usize>();
    assert_eq!(saved, own);
}

/// A merged low-rank update gives the results of one that is added to the output, in f64 within rounding.
#[test]
fn a_merged_update_equals_an_added_one() {
    let (n, k, r) = (70, 33, 5);
    let bf16 = draw(&[n, k], &Draw::Normal, 5, 0).to_dtype(Dtype::Bf16);
    let (layout, codes) = nf4::quantise(&bf16.to_dtype(Dtype::F32), true);
    for rows in [1, 258, 530] {
        for (weight, pieces) in [
            (Storage::Dense(Dtype::Bf16), vec![bf16.clone()]),
            (Storage::Nf4(layout), codes.clone()),
        ] {
            let [x, b, dy, of_a, of_b] =
                [&[rows, k][..], &[n], &[rows, n], &[r, k], &[n, r]].map(|shape| {
                    draw(shape, &Draw::Normal, 6, shape[0] as u64 * 7 + shape.len() as u64)
                });
            let pieces: Vec<Var> = pieces.into_iter().map(constant).collect();
            let run = |merged: bool| {
                let tape = Tape::new();
                let [x, b, of_a, of_b] = [&x, &b, &of_a, &of_b].map(|t| tape.leaf(t.clone()));
                let factors = [of_a.detached(), of_b.detached()];
                let op = FrozenLinear {
                    weight,
                    bias: true,
                    activation: Activation::Identity,
                    merged: merged.then_some(0.5),
                };
                let factors = factors.iter().filter(|_| merged);
                let inputs = [&x, &pieces[0], &b].into_iter().chain(&pieces[1..]).chain(factors);
                let y = tape.apply(op, &inputs.collect::<Vec<_>>()).unwrap();
                let low_rank = LowRank { scale: 0.5, merged };
                let x_of_update = if merged { x.detached() } else { x.clone() };
                let y = tape.apply(low_rank, &[&y, &x_of_update, &of_a, &of_b]).unwrap();
                let mut found = tape.backward_from(&y, dy.clone()).unwrap();
                let gradients = [&x, &b, &of_a, &of_b].map(|v| found.take(v).unwrap());
                [&[y.value().clone()][..], &gradients].concat()
            };
            for (i, (found, expected)) in run(true).iter().zip(&run(false)).enumerate() {
                for (found, expected) in found.to_f64().iter().zip(expected.to_f64()) {
                    let error = (found - expected).abs();
                    // Sums of at most 530 products, and of 33 times 5, of numbers of about 1.
                    assert!(error <= 1e-11, "{weight:?}, {rows}, result {i}: {found} {expected}");
                }
            }
        }
    }
}
