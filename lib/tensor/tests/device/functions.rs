//! Every case of every function on a device that runs kernels, in every dtype, compared with the CPU in f64, and
//! choices compared with a sort.

use super::device;
use tensor::check::{difference, draw, tolerance};
use tensor::functions::argmax::argmax;
use tensor::functions::categorical::{Categorical, categorical, noise};
use tensor::functions::top_k::top_k;
use tensor::functions::{ALL, Candidates};
use tensor::kernel::ALL_DTYPES;
use tensor::op::Draw;
use tensor::{Device, Dtype, Tensor};
use test_support::seed;

/// The elements of a row in descending order: NaN first, equal ones by index.
fn sorted(row: &[f64]) -> Vec<usize> {
    let key = |i: &usize| if row[*i].is_nan() { f64::INFINITY } else { row[*i] };
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| {
        let is_nan = |i: usize| row[i].is_nan();
        is_nan(*b).cmp(&is_nan(*a)).then(key(b).partial_cmp(&key(a)).unwrap()).then(a.cmp(b))
    });
    order
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn functions_agree_with_the_cpu_in_f64() {
    let seed = seed();
    for (name, cases) in ALL {
        for (case, dtype) in cases().iter().flat_map(|c| ALL_DTYPES.iter().map(move |d| (c, *d))) {
            let shapes: Vec<_> = case.inputs.iter().map(|(shape, _)| shape).collect();
            let what = format!("{name} {shapes:?} {dtype}");
            let inputs = (0..).zip(&case.inputs).map(|(i, (shape, kind))| {
                let x = draw(shape, kind, seed, i);
                if x.dtype() == Dtype::I32 { x } else { x.to_dtype(dtype) }
            });
            let inputs: Vec<Tensor> = inputs.collect();
            let apply = |inputs: &[Tensor]| {
                case.function.apply(&inputs.iter().collect::<Vec<_>>()).unwrap()
            };
            let moved: Vec<Tensor> =
                inputs.iter().map(|x| x.to_device(device()).unwrap()).collect();
            let exact: Vec<Tensor> = inputs
                .iter()
                .map(|x| if x.dtype() == Dtype::I32 { x.clone() } else { x.to_dtype(Dtype::F64) })
                .collect();
            for (found, expected) in apply(&moved).iter().zip(apply(&exact)) {
                let found = found.to_host().unwrap();
                if found.dtype() == Dtype::I32 {
                    // Samples whose noise differs by a rounding: one in 100,000.
                    let pairs = found.read::<i32>().iter().zip(expected.read::<i32>());
                    let wrong = pairs.filter(|(a, b)| a != b).count();
                    assert!(
                        wrong <= usize::from(*name == "categorical"),
                        "{what}: {wrong} indices"
                    );
                } else if *name != "categorical" {
                    let error = difference(&found, &expected) / tolerance(found.dtype(), 100);
                    assert!(error < 1.0, "{what}: {error:.2} tolerances");
                }
            }
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn choices_are_those_of_a_sort() {
    // Small integers, so that many elements are equal; some elements are not numbers.
    for (device, (width, seed)) in [Device::Cpu, device()]
        .into_iter()
        .flat_map(|d| [(d, (6, 1)), (d, (100, 2)), (d, (1030, 3)), (d, (8300, 4))])
    {
        let rows = 5;
        let integers = draw(&[rows, width], &Draw::RandInt(9), seed, 0);
        let mut values: Vec<f64> = integers.read::<i32>().iter().map(|i| f64::from(*i)).collect();
        values[2 * width - 1] = f64::NAN;
        values[2 * width - 3] = f64::NAN;
        values[3 * width] = f64::NAN;
        (values[0], values[1]) = (f64::NEG_INFINITY, -0.0);
        let host = Tensor::from_slice(&values, &[rows, width]);
        let dtypes: &[Dtype] =
            if device == Device::Cpu { &[Dtype::F32, Dtype::F64] } else { ALL_DTYPES };
        for dtype in dtypes {
            let x = host.to_dtype(*dtype).to_device(device).unwrap();
            let k = width.min(64);
            let (largest, index) = top_k(&x, k).unwrap();
            let [largest, index] = [largest, index].map(|t| t.to_host().unwrap());
            let hidden = 3;
            let candidates = Candidates::new(width - 1).without(hidden);
            let choice = argmax(&x, candidates).unwrap();
            let chosen = choice.index.to_host().unwrap();
            let log_p = choice.log_p.to_host().unwrap().to_f64();
            for (row, values) in values.chunks(width).enumerate() {
                let what = format!("{device} {dtype}, width {width}, row {row}");
                let order = sorted(values);
                let found = &index.read::<i32>()[row * k..][..k];
                let expected: Vec<i32> = order[..k].iter().map(|i| *i as i32).collect();
                assert_eq!(found, expected, "{what}");
                let expected: Vec<f64> = order[..k].iter().map(|i| values[*i]).collect();
                let found = &largest.to_f64()[row * k..][..k];
                assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{what}");
                let is_candidate = |i: &&usize| **i < width - 1 && **i != hidden as usize;
                let best = *order.iter().find(is_candidate).unwrap();
                assert_eq!(chosen.read::<i32>()[row], best as i32, "{what}");
                let each = (0..width).filter(|i| is_candidate(&i)).map(|i| values[i].exp());
                let expected = values[best] - each.sum::<f64>().ln();
                let is_right = (log_p[row] - expected).abs() < 1e-5;
                assert!(
                    is_right || log_p[row].is_nan() == expected.is_nan() && expected.is_nan(),
                    "{what}: {} {expected}",
                    log_p[row]
                );
            }
        }
    }
}

/// Samples are those of x/τ plus the noise that the host computes, up to a rounding.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn samples_are_the_largest_with_noise() {
    let (rows, columns, temperature, seed) = (9_usize, 1201, 0.8, seed());
    let counter = [5, -7, 11, 4_000_000];
    let by = Categorical { candidates: Candidates::new(columns), temperature, site: 9 };
    let x = draw(&[rows, columns + 3], &Draw::Normal, seed, 0).to_dtype(Dtype::F32);
    let on = |t: &Tensor| t.to_device(device()).unwrap();
    let index = categorical(&on(&x), &on(&Tensor::from_slice(&counter, &[4])), by).unwrap().index;
    for (row, found) in index.to_host().unwrap().read::<i32>().iter().enumerate() {
        let y = |i: usize| {
            let x = f64::from(x.read::<f32>()[row * (columns + 3) + i]);
            x / temperature + f64::from(noise(counter, 9, row as u32, i as u32))
        };
        let best = (0..columns).map(y).fold(f64::NEG_INFINITY, f64::max);
        assert!(y(*found as usize) > best - 1e-5, "seed {seed}, row {row}");
    }
}
