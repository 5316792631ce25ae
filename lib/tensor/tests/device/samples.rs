//! Samples of logits on the CPU and on a device that runs kernels: frequencies, noise, and what is refused.

use super::device;
use tensor::check::draw;
use tensor::functions::categorical::{Categorical, categorical, noise};
use tensor::functions::{Candidates, Choice};
use tensor::kernel::Graph;
use tensor::op::Draw;
use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tensor};

fn counter(step: i32, first: i32) -> Tensor {
    let [low, high] = Philox::new(7, Purpose::Sampling).key().map(u32::cast_signed);
    Tensor::from_slice(&[low, high, step, first], &[4])
}

fn by(candidates: Candidates, temperature: f64) -> Categorical {
    Categorical { candidates, temperature, site: 0 }
}

fn devices() -> [Device; 2] {
    [Device::Cpu, device()]
}

/// Samples on a device; returns indices and log-probabilities.
fn sample(device: Device, x: &Tensor, counter: &Tensor, by: Categorical) -> (Vec<i32>, Vec<f64>) {
    let [x, counter] = [x, counter].map(|t| t.to_device(device).unwrap());
    let Choice { index, log_p } = categorical(&x, &counter, by).unwrap();
    let [index, log_p] = [index, log_p].map(|t| t.to_host().unwrap());
    (index.read::<i32>().to_vec(), log_p.to_f64())
}

/// Pearson's chi-square of the frequencies of 4,000 samples, with bounds that hold with probability 1 - 2·10⁻⁹
/// (Laurent and Massart 2000, lemma 1).
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn frequencies_follow_the_softmax_of_the_candidates() {
    let logits = [0.3_f32, -1.0, 2.0, 0.0, 1.1, -0.4, 0.9, 9.0, 9.0];
    // Columns 7 and 8 pad the vocabulary, and column 2, the most probable, is hidden.
    let candidates = Candidates::new(7).without(2);
    let rows = 4_000;
    let x = Tensor::from_slice(&logits.repeat(rows), &[rows, logits.len()]);
    for (device, temperature) in devices().into_iter().flat_map(|d| [(d, 1.0), (d, 0.6), (d, 3.0)])
    {
        let (index, log_p) = sample(device, &x, &counter(0, 0), by(candidates, temperature));
        let is_candidate = |i: &usize| *i < 7 && *i != 2;
        let weights =
            |t: f64| (0..9).filter(is_candidate).map(move |i| (f64::from(logits[i]) / t).exp());
        let (total, at_1): (f64, f64) = (weights(temperature).sum(), weights(1.0).sum());
        let mut chi_square = 0.0;
        for (i, weight) in (0..9).filter(is_candidate).zip(weights(temperature)) {
            let expected = weight / total * rows as f64;
            let found = index.iter().filter(|index| **index == i as i32).count() as f64;
            chi_square += (found - expected).powi(2) / expected;
            let exact = f64::from(logits[i]) - at_1.ln();
            let wrong = index
                .iter()
                .zip(&log_p)
                .find(|(index, p)| **index == i as i32 && (**p - exact).abs() > 1e-6);
            assert!(wrong.is_none(), "{device}: {wrong:?}, {exact}");
        }
        assert!(index.iter().all(|i| is_candidate(&(*i as usize))), "{device}");
        let (freedom, x) = (5.0_f64, 21.0);
        let most = freedom + 2.0 * (freedom * x).sqrt() + 2.0 * x;
        assert!(chi_square < most && chi_square > 0.01, "{device} {temperature}: {chi_square}");
    }
}

/// A vocabulary wide enough for several groups of columns per thread: each tenth of it is as probable as the others.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn all_columns_of_a_wide_row_are_equally_likely() {
    let (rows, width) = (600, 1503);
    let x = Tensor::zeros(&[rows, width], Dtype::F32);
    for device in devices() {
        let (index, log_p) = sample(device, &x, &counter(1, 0), by(Candidates::new(1500), 1.0));
        let mut counts = [0.0_f64; 10];
        index.iter().for_each(|i| counts[*i as usize / 150] += 1.0);
        let chi_square: f64 = counts.iter().map(|n| (n - 60.0).powi(2) / 60.0).sum();
        assert!(chi_square < 9.0 + 2.0 * (9.0_f64 * 21.0).sqrt() + 42.0, "{device}: {counts:?}");
        assert!(log_p.iter().all(|p| (p + 1500.0_f64.ln()).abs() < 1e-5), "{device}");
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_row_draws_the_same_for_any_batch_and_another_at_each_step() {
    let x = draw(&[8, 300], &Draw::Normal, 3, 0).to_dtype(Dtype::F32);
    for device in devices() {
        let own = by(Candidates::new(300), 1.0);
        let all = sample(device, &x, &counter(2, 16), own).0;
        let parts = [(0, 3), (3, 5)].map(|(first, rows)| {
            let part =
                Tensor::from_slice(&x.read::<f32>()[first * 300..][..rows * 300], &[rows, 300]);
            sample(device, &part, &counter(2, 16 + first as i32), own).0
        });
        assert_eq!(all, parts.concat(), "{device}");
        assert_ne!(all, sample(device, &x, &counter(3, 16), own).0, "{device}");
        let site = Categorical { site: 1, ..own };
        assert_ne!(all, sample(device, &x, &counter(2, 16), site).0, "{device}");
    }
}

#[test]
fn the_noise_has_the_quantiles_of_its_distribution() {
    // P(g ≤ q) = exp(-exp(-q)); the largest and the smallest word give the bounds of the documentation.
    let n = 1_000_000_u64;
    let numbers: Vec<f32> =
        (0..n as u32).map(|i| noise([1, 2, 3, 4], 0, i / 1000, i % 1000)).collect();
    for q in [-2.0_f64, -1.0, 0.0, 0.5, 2.0, 5.0, 10.0] {
        let p = (-(-q).exp()).exp();
        let below = numbers.iter().filter(|g| f64::from(**g) <= q).count() as f64 / n as f64;
        let deviation = (p * (1.0 - p) / n as f64).sqrt();
        assert!((below - p).abs() < 6.0 * deviation, "{q}: {below} {p}");
    }
    assert!(numbers.iter().all(|g| (-2.9..22.9).contains(g)));
    // The same formula in f64.
    let philox = Philox::from_key([1, 2]);
    for (i, found) in (0_u32..).zip(&numbers) {
        let (row, column) = (i / 1000, i % 1000);
        let word = philox.block([column / 4, 4 + row, 3, 1 << 31])[column as usize % 4];
        let v = (f64::from(word) + 0.5) / 2.0_f64.powi(32);
        let exact = -(-(-v).ln_1p()).ln();
        let off = (f64::from(*found) - exact).abs();
        // Roundings of v, whose effect grows as it approaches 1, and of the logarithms.
        let most = 1e-6 + 2e-7 * exact.abs() + 2.0_f64.powi(-23) / (1.0 - v);
        assert!(off < most || v > 0.999_999, "{word}: {off:e}");
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn numbers_that_are_not_finite_choose_as_argmax_does() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows = [[1.0, nan, 2.0, nan], [0.0, inf, 1.0, inf], [-inf; 4], [-inf, -inf, 3.0, -inf]];
    let x = Tensor::from_slice(rows.as_flattened(), &[4, 4]);
    for (device, temperature) in devices().into_iter().flat_map(|d| [(d, 0.0), (d, 1.0)]) {
        let (index, log_p) =
            sample(device, &x, &counter(0, 0), by(Candidates::new(4), temperature));
        assert_eq!(index, [1, 1, 0, 2], "{device} {temperature}");
        assert!(log_p[..3].iter().all(|p| p.is_nan()) && log_p[3] == 0.0, "{device}: {log_p:?}");
    }
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let x = Tensor::from_slice(&[0.0; 6], &[2, 3]);
    let all = by(Candidates::new(3), 1.0);
    for wrong in [
        by(Candidates::new(4), 1.0),
        by(Candidates::new(0), 1.0),
        by(Candidates::new(1).without(0), 1.0),
        Categorical { temperature: -1.0, ..all },
        Categorical { temperature: f64::NAN, ..all },
        Categorical { site: 1 << 31, ..all },
    ] {
        let error = categorical(&x, &counter(0, 0), wrong).unwrap_err().to_string();
        assert!(error.contains("categorical of [[2, 3], [4]]: takes"), "{error}");
    }
    let error = categorical(&x, &x, all).unwrap_err().to_string();
    assert!(error.contains("must be i32"), "{error}");
}

/// A captured graph is replayed with the counter of each step.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn replays_draw_what_a_call_draws() {
    let device = device();
    let x = draw(&[4, 90], &Draw::Normal, 5, 0).to_dtype(Dtype::F32).to_device(device).unwrap();
    let own = by(Candidates::new(90), 1.0);
    let on_device = |step: i32| counter(step, 0).to_device(device).unwrap();
    let call = |counter: &Tensor| categorical(&x, counter, own).unwrap().index;
    let plain = [7, 8, 9].map(|step| call(&on_device(step)).to_host().unwrap());
    let input = on_device(0);
    let mut graph = Graph::record(device, vec![input.clone()], |_| Ok(vec![call(&input)])).unwrap();
    drop(input);
    for (step, plain) in (7..).zip(&plain) {
        graph.replay([&on_device(step)], |_| Ok(())).unwrap();
        let found = graph.outputs()[0].to_host().unwrap();
        assert_eq!(found.read::<i32>(), plain.read::<i32>(), "step {step}");
    }
    assert_ne!(plain[0].read::<i32>(), plain[1].read::<i32>());
}
