//! Compares the metrics with closed forms, and BLEU with sacrebleu (tests/golden/bleu.py).

use super::*;
use crate::text::metrics::Resampling;
use serde::Deserialize;
use tensor::random::{Philox, Purpose};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/bleu.json");

#[derive(Deserialize)]
struct Corpus {
    hypotheses: Vec<Vec<i32>>,
    references: Vec<Vec<i32>>,
    matches: [u64; 4],
    totals: [u64; 4],
    lengths: [u64; 2],
    none: f64,
    exp: f64,
}

fn normal(n: usize) -> Vec<f32> {
    let random = Philox::new(test_support::seed(), Purpose::Test);
    (0..n as u64).map(|i| random.normal(0, i)).collect()
}

#[test]
fn bleu_is_that_of_sacrebleu() {
    let corpora: Vec<Corpus> =
        serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    for (at, corpus) in corpora.iter().enumerate() {
        let mut bleu = Bleu::default();
        for (hypothesis, reference) in corpus.hypotheses.iter().zip(&corpus.references) {
            bleu.add(hypothesis, reference);
        }
        assert_eq!((bleu.matches, bleu.totals), (corpus.matches, corpus.totals), "case {at}");
        assert_eq!([bleu.hypothesis, bleu.reference], corpus.lengths, "case {at}");
        for (smoothing, expected) in [(Smoothing::None, corpus.none), (Smoothing::Exp, corpus.exp)]
        {
            let found = bleu.score(smoothing);
            assert!(
                (found - expected).abs() < 1e-9,
                "case {at}, {smoothing:?}: {found} {expected}"
            );
        }
    }
}

#[test]
fn tokens_agree_by_position_and_as_multisets() {
    let found = TokenAgreement::of(&[1, 2, 2, 3], &[1, 2, 3, 2, 4]);
    assert_eq!((found.exact, found.equal, found.positions), (false, 2, 5));
    // Four of four and five tokens.
    assert!((found.f1 - 8.0 / 9.0).abs() < 1e-15 && found.equal_share() == 0.4);
    let same = TokenAgreement::of(&["a", "b"], &["a", "b"]);
    assert_eq!((same.exact, same.f1, same.equal_share()), (true, 1.0, 1.0));
    let empty = TokenAgreement::of::<u8>(&[], &[]);
    assert_eq!((empty.exact, empty.f1, empty.equal_share()), (true, 1.0, 1.0));
    assert_eq!(TokenAgreement::of(&[], &[1]).equal_share(), 0.0);
}

/// The i-th prediction is the π(i)-th unit vector. Where π moves i, its own cosine is 0, as are those of all but one, so
/// that its rank is n.
#[test]
fn a_permuted_identity_ranks_fixed_points_first_and_the_others_last() {
    let n = 150;
    let unit = |at: usize, length: f32| -> Vec<f32> {
        (0..n).map(|i| if i == at { length } else { 0.0 }).collect()
    };
    let targets: Vec<f32> = (0..n).flat_map(|i| unit(i, 1.0)).collect();
    // Exchanges 100 and 101, 102 and 103, ...
    let moved = |i: usize| if i < 100 { i } else { i ^ 1 };
    let predictions: Vec<f32> = (0..n).flat_map(|i| unit(moved(i), 0.1 + i as f32)).collect();
    let found = ranks(&predictions, &targets, n);
    assert_eq!(found, [vec![1; 100], vec![n; 50]].concat());
    assert_eq!([1, n - 1, n].map(|k| recall(&found, k)), [100.0 / 150.0, 100.0 / 150.0, 1.0]);
    // A second copy of the targets is as close; other distractors are not.
    let twice = [&*targets, &unit(0, 3.0), &unit(1, -1.0)].concat();
    assert_eq!(ranks(&predictions[..2 * n], &twice, n), [2, 1]);
    // Predictions without a direction find nothing.
    let wrong = [vec![0.0; n], vec![f32::NAN; n]].concat();
    assert_eq!(ranks(&wrong, &targets, n), [n, n]);
    let groups: Vec<usize> = (0..n).map(|i| i / 50).collect();
    let own = within_groups(&predictions, &targets, n, &groups);
    assert_eq!(own, [vec![true; 100], vec![false; 50]].concat());
    let pairs = [[0, 99], [99, 101], [100, 101], [100, 149]];
    let expected = [[true; 2], [true, false], [false; 2], [false; 2]];
    assert_eq!(pairwise(&predictions, &targets, n, &pairs), expected);
}

/// The standard error of a correlation ρ of normal numbers is (1 - ρ²)/√n = 0.018 for ρ = 0.8 and n = 400. The bounds
/// of 1000 resamples scatter by 4 % of the width, and the variance of the sample by 1/√n·√8, 14 % (standard deviation).
#[test]
fn correlations_have_the_intervals_of_normal_numbers() {
    let drawn = normal(800);
    let (a, noise): (Vec<f64>, Vec<f64>) =
        drawn.chunks(2).map(|pair| (f64::from(pair[0]), f64::from(pair[1]))).unzip();
    let b: Vec<f64> = a.iter().zip(&noise).map(|(a, noise)| 0.8 * a + 0.6 * noise).collect();
    for metric in correlations(&a, &b, Resampling::Samples).0 {
        let (value, [low, high]) = (metric.value.unwrap(), metric.interval.unwrap());
        let expected = 2.0 * 1.96 * (1.0 - value * value) / 20.0;
        assert!((value - 0.8).abs() < 0.1, "{metric:?}");
        // Ranks of normal numbers have a standard error that is larger by about 10 %.
        assert!(low < value && value < high && (0.6..1.7).contains(&((high - low) / expected)));
    }
    let cubes: Vec<f64> = a.iter().map(|a| a * a * a).collect();
    let found = correlations(&a, &cubes, Resampling::None);
    assert!((found.get("spearman").unwrap() - 1.0).abs() < 1e-12);
    assert!(found.get("pearson").unwrap() < 0.95);
    assert_eq!(correlations(&a, &[0.1; 400], Resampling::Samples).get("pearson"), None);
}

/// The mean over l = 1..=S of the estimates at t = l/S is the integral over t: the entropy, if the model is exact.
#[test]
fn bounds_of_exact_models_are_entropies() {
    let (tokens, entropy) = (7, 4.0_f64.ln());
    let mean = |losses: &dyn Fn(usize) -> Vec<f32>| -> f64 {
        let of = |l: usize| weighted_sum(&losses(l), l as f64 / tokens as f64);
        (1..=tokens).map(of).sum::<f64>() / tokens as f64
    };
    // Independent tokens: every masked one costs its entropy. f32 has 24 bits.
    let independent = mean(&|l| vec![entropy as f32; l]);
    assert!((independent - 7.0 * entropy).abs() < 1e-5, "{independent}");
    // Equal tokens: an unmasked one tells all others, so only the time at which all are masked costs.
    let equal = mean(&|l| vec![if l == tokens { entropy as f32 } else { 0.0 }; l]);
    assert!((equal - entropy).abs() < 1e-6, "{equal}");
}
