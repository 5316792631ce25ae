use super::*;
use crate::random::Purpose;
use crate::tape::{Tape, constant};

/// Returns the counter of a micro-batch whose first sample is `first`.
fn counter(seed: u64, micro_batch: i32, first: i32) -> Tensor {
    let [low, high] = Philox::new(seed, Purpose::Dropout).key();
    Tensor::from_slice(&[low as i32, high as i32, micro_batch, first], &[4])
}

/// Applies dropout to ones [samples, size].
fn ones(op: Dropout, size: usize, counter: &Tensor) -> Tensor {
    let tape = Tape::without_gradients();
    let x = constant(Tensor::full(&[op.samples, size], 1.0, Dtype::F32));
    tape.apply(op, &[&x, &constant(counter.clone())]).unwrap().value().clone()
}

/// Checks that the number of kept elements is within six standard deviations of its binomial mean, and that kept
/// elements are scaled by 1/(1 - p).
#[test]
fn the_share_of_kept_elements_is_1_minus_p() {
    let (samples, size) = (50, 4001);
    let n = (samples * size) as f64;
    for p in [0.1, 0.5, 0.9] {
        let y = ones(Dropout { p, site: 0, samples }, size, &counter(7, 0, 0)).to_f64();
        let kept = y.iter().filter(|y| **y != 0.0).count() as f64 / n;
        let deviation = (p * (1.0 - p) / n).sqrt();
        assert!((kept - (1.0 - p)).abs() < 6.0 * deviation, "p = {p}: {kept}");
        let mean = y.iter().sum::<f64>() / n;
        assert!((mean - kept / (1.0 - p)).abs() < 1e-6, "p = {p}: {mean}");
    }
}

#[test]
fn the_mask_of_a_sample_does_not_depend_on_the_samples_beside_it() {
    let op = |samples| Dropout { p: 0.3, site: 5, samples };
    let size = 37;
    let all = ones(op(8), size, &counter(7, 2, 16));
    let parts = [(0, 3), (3, 4), (7, 1)]
        .map(|(first, samples)| ones(op(samples), size, &counter(7, 2, 16 + first)).to_f64());
    assert_eq!(all.to_f64(), parts.concat());
}

#[test]
fn seed_micro_batch_sample_and_site_each_change_the_mask() {
    let op = Dropout { p: 0.5, site: 5, samples: 1 };
    let masks = [
        ones(op, 256, &counter(7, 2, 16)),
        ones(op, 256, &counter(8, 2, 16)),
        ones(op, 256, &counter(7, 3, 16)),
        ones(op, 256, &counter(7, 2, 17)),
        ones(Dropout { site: 6, ..op }, 256, &counter(7, 2, 16)),
    ];
    for (i, a) in masks.iter().enumerate() {
        assert!(masks[..i].iter().all(|b| a.to_f64() != b.to_f64()), "mask {i} is there twice");
    }
}

#[test]
fn the_gradient_has_the_mask_of_the_output() {
    let (op, size) = (Dropout { p: 0.4, site: 1, samples: 3 }, 41);
    let tape = Tape::new();
    let x = tape.leaf(Tensor::full(&[3, size], 1.0, Dtype::F64));
    let y = tape.apply(op, &[&x, &constant(counter(1, 0, 0))]).unwrap();
    let value = y.value().to_f64();
    assert!(value.contains(&0.0) && value.contains(&(1.0 / 0.6)));
    let ones = Tensor::full(&[3, size], 1.0, Dtype::F64);
    let dx = tape.backward_from(&y, ones).unwrap().take(&x).unwrap();
    assert_eq!(dx.to_f64(), value);
}

#[test]
fn a_probability_of_0_is_the_identity() {
    let op = Dropout { p: 0.0, site: 1, samples: 1 };
    assert_eq!(ones(op, 9, &counter(1, 0, 0)).to_f64(), [1.0; 9]);
    for p in [1.0, -0.1, f64::NAN] {
        assert!(Dropout { p, ..op }.shape(&[&[9], &[4]]).is_err(), "{p}");
    }
}

/// All words of the counter have their top bit set; sample sizes are close to the vector width.
#[cfg(feature = "emu")]
#[test]
fn kernels_have_the_masks_of_the_host_to_the_bit() {
    use crate::device::Device;
    let counter = Tensor::from_slice(&[-7, i32::MIN, -1, -2], &[4]);
    for (samples, size) in [(5, 1), (5, 7), (5, 8), (3, 37), (2, 1024)] {
        let op = Dropout { p: 0.3, site: u32::MAX, samples };
        let host = ones(op, size, &counter).to_f64();
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let x = Tensor::full(&[samples, size], 1.0, dtype).to_device(Device::Emu).unwrap();
            let on_device = constant(counter.to_device(Device::Emu).unwrap());
            let tape = Tape::without_gradients();
            let y = tape.apply(op, &[&constant(x), &on_device]).unwrap();
            let kept = y.value().to_host().unwrap().to_f64().into_iter().map(|y| y != 0.0);
            assert!(kept.eq(host.iter().map(|y| *y != 0.0)), "{samples} of {size} in {dtype}");
        }
    }
}
