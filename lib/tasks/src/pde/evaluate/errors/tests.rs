use super::*;
use crate::pde::evaluate::spectrum::BANDS;
use std::f64::consts::TAU;
use tensor::random::{Philox, Purpose};

fn get(sums: &Errors, name: &str) -> f64 {
    let quantities = sums.quantities();
    quantities.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn add(sums: &mut Errors, prediction: &[f32], target: &[f32], spectrum: &Spectrum) {
    sums.merge(&Errors::of(prediction, target, Some(spectrum)));
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-12 * b.abs().max(1.0), "{a} is not {b}");
}

#[test]
fn by_hand() {
    let spectrum = Spectrum::new(&[4], 1);
    let mut sums = Errors::default();
    // A field 2 2 2 2 with the errors 1 1 1 1, then a field 3 0 0 4 with the errors 0 -2 0 2.
    add(&mut sums, &[3.0, 3.0, 3.0, 3.0], &[2.0, 2.0, 2.0, 2.0], &spectrum);
    add(&mut sums, &[3.0, -2.0, 0.0, 6.0], &[3.0, 0.0, 0.0, 4.0], &spectrum);
    near(get(&sums, "nrmse"), (12.0_f64 / 41.0).sqrt());
    near(get(&sums, "nrmse_pdebench"), (0.5 + 8.0_f64.sqrt() / 5.0) / 2.0);
    near(get(&sums, "rmse"), 1.5_f64.sqrt());
    near(get(&sums, "mae"), 1.0);
    near(get(&sums, "max_error"), 2.0);
    near(get(&sums, "conserved_rmse"), 0.5_f64.sqrt());
    near(get(&sums, "boundary_rmse"), 1.5_f64.sqrt());
    // The mean of the first sample and wave number 1 of the second are both in the low band.
    near(get(&sums, "fourier_rmse_low"), 1.5_f64.sqrt());
    near(get(&sums, "fourier_rmse_high"), 0.0);
}

/// Values from NumPy, with p = sin(i/3), t = cos(i²/7), i = 0..30 as f32, reshaped to (3, 10): e = p - t;
/// √(e²).mean(-1)/√(t²).mean(-1) etc.; FFT by np.fft.rfft(e, norm="forward").
#[test]
fn as_numpy() {
    let n = 30;
    let p: Vec<f32> = (0..n).map(|i| (f64::from(i) / 3.0).sin() as f32).collect();
    let t: Vec<f32> = (0..n).map(|i| (f64::from(i * i) / 7.0).cos() as f32).collect();
    let (mut sums, spectrum) = (Errors::default(), Spectrum::new(&[10], 1));
    for (p, t) in p.chunks(10).zip(t.chunks(10)) {
        add(&mut sums, p, t, &spectrum);
    }
    for (name, expected) in NUMPY {
        let found = get(&sums, name);
        assert!((found - expected).abs() < 1e-12, "{name}: {found}, numpy has {expected}");
    }
}

const NUMPY: [(&str, f64); 9] = [
    ("nrmse", 1.223151705208364),
    ("nrmse_pdebench", 1.2502344535890595),
    ("rmse", 0.8845270795635194),
    ("mae", 0.6864476074309399),
    ("max_error", 1.9044420719146729),
    ("conserved_rmse", 0.3709188992251852),
    ("boundary_rmse", 0.6248726203323283),
    ("fourier_rmse_low", 0.8546035959490705),
    ("fourier_rmse_middle", 0.2281246331987986),
];

#[test]
fn as_the_formulas_say_for_any_numbers() {
    let seed = std::process::id().into();
    println!("seed {seed}");
    let random = Philox::new(seed, Purpose::Noise);
    for (samples, n) in [(1, 1), (3, 2), (5, 37), (4, 64)] {
        let (mut sums, spectrum) = (Errors::default(), Spectrum::new(&[n], 1));
        let value =
            |kind: u64, s: usize, i: usize| random.at_update(kind).normal(s as u64, i as u64);
        let field = |kind, s| (0..n).map(|i| value(kind, s, i)).collect::<Vec<f32>>();
        let (mut bands, mut pdebench) = ([0.0; 3], 0.0);
        for s in 0..samples {
            let (p, t) = (field(0, s), field(1, s));
            add(&mut sums, &p, &t, &spectrum);
            let e: Vec<f64> =
                p.iter().zip(&t).map(|(p, t)| f64::from(*p) - f64::from(*t)).collect();
            let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
            pdebench += (squares(&mut e.iter().copied())
                / squares(&mut t.iter().map(|x| f64::from(*x))))
            .sqrt();
            // Reference: the transform over all n wave numbers; k and n - k are the same wave.
            for k in 0..n {
                let turn = |j: usize| TAU * ((j * k) % n) as f64 / n as f64;
                let re: f64 = (0..n).map(|j| e[j] * turn(j).cos()).sum::<f64>() / n as f64;
                let im: f64 = (0..n).map(|j| e[j] * turn(j).sin()).sum::<f64>() / n as f64;
                let wave = k.min(n - k);
                let band = BANDS.iter().position(|(_, b)| b.contains(&wave)).unwrap();
                bands[band] += (re * re + im * im) / samples as f64;
            }
        }
        near(get(&sums, "nrmse_pdebench"), pdebench / samples as f64);
        for ((name, _), band) in BANDS.iter().zip(bands) {
            assert!((get(&sums, name) - band.sqrt()).abs() < 1e-9, "{name} of {n} points");
        }
        let all: f64 = BANDS.iter().map(|(name, _)| get(&sums, name).powi(2)).sum();
        near(all.sqrt(), get(&sums, "rmse"));
    }
}

#[test]
fn merging_is_adding() {
    let spectrum = Spectrum::new(&[3], 1);
    let fields: Vec<[f32; 3]> = (0..7).map(|i| [i as f32, 1.0, -(i as f32) / 3.0]).collect();
    let sum = |pairs: &[[f32; 3]]| {
        let mut sums = Errors::default();
        pairs.windows(2).for_each(|w| add(&mut sums, &w[0], &w[1], &spectrum));
        sums
    };
    let mut merged = sum(&fields[..4]);
    merged.merge(&sum(&fields[3..]));
    for ((name, a), (_, b)) in merged.quantities().into_iter().zip(sum(&fields).quantities()) {
        assert!((a - b).abs() < 1e-12, "{name}");
    }
}

#[test]
fn an_exact_prediction_has_no_error_and_a_broken_one_is_not_hidden() {
    let spectrum = Spectrum::new(&[2], 1);
    let mut exact = Errors::default();
    add(&mut exact, &[0.0, 0.0], &[0.0, 0.0], &spectrum);
    add(&mut exact, &[3.0, -1.0], &[3.0, -1.0], &spectrum);
    assert!(exact.quantities().iter().all(|(_, value)| *value == 0.0));
    let mut broken = Errors::default();
    add(&mut broken, &[f32::NAN, 0.0], &[1.0, 1.0], &spectrum);
    add(&mut broken, &[1.0, 1.0], &[1.0, 1.0], &spectrum);
    assert!(broken.quantities().iter().all(|(name, v)| v.is_nan() || name.starts_with("fou")));
    assert!(get(&broken, "max_error").is_nan() && get(&broken, "nrmse").is_nan());
}
