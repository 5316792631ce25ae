//! Compares the baselines with scikit-learn (tests/golden/text_metrics.py), and tests them on data with known results.

use super::features::{Features, count};
use super::logistic::Problem;
use super::*;
use crate::text::metrics::predicted_classes;
use serde::Deserialize;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/text_metrics.json");

#[derive(Deserialize)]
struct Golden {
    hashed: Vec<Hashed>,
    bag_of_words: Vec<Bag>,
}

#[derive(Deserialize)]
struct Hashed {
    text: String,
    counts: Vec<(u32, u32)>,
}

#[derive(Deserialize)]
struct Bag {
    kind: String,
    texts: Vec<String>,
    truth: Vec<serde_json::Value>,
    strength: f64,
    width: usize,
    p: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap()
}

#[test]
fn hashed_words_are_those_of_scikit_learn() {
    for Hashed { text, counts } in golden().hashed {
        assert_eq!(count(&text), counts, "{text:?}");
    }
}

/// The penalised loss has one minimum, so both programs find the same probabilities; ours within the tolerance at which
/// it stops, 1e-4 of the first gradient. Hence the decisions are equal.
#[test]
fn the_bag_of_words_is_that_of_scikit_learn() {
    for case in golden().bag_of_words {
        let classes: Vec<usize> =
            case.truth.iter().map(|y| y.as_u64().unwrap_or_default() as usize).collect();
        let labels: Vec<bool> =
            case.truth.iter().map(|y| y.as_bool().unwrap_or_default()).collect();
        let (train, test) = case.texts.split_at(case.texts.len() * 2 / 3);
        let targets = match case.kind.as_str() {
            "classes" => Targets::Classes { classes: case.width, truth: &classes[..train.len()] },
            _ => Targets::Labels { labels: case.width, truth: &labels[..train.len() * case.width] },
        };
        let (features, rows) = Features::fit(train);
        let problem = Problem::new(&rows, &targets);
        let mut model = problem.start();
        problem.fit(&mut model, case.strength);
        let found = model.predict(&features.of(test));
        assert_eq!(found.len(), case.p.len());
        let pairs = found.iter().zip(&case.p);
        let error = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        assert!(error < 1e-3, "{} {}: {error}", case.kind, case.strength);
    }
}

#[test]
fn the_constant_baseline_has_the_shares_of_the_training_texts() {
    let train = Targets::Classes { classes: 3, truth: &[1, 1, 0, 1] };
    let p = constant(&train, 2);
    assert_eq!(p, [0.25, 0.75, 0.0, 0.25, 0.75, 0.0]);
    assert_eq!(predicted_classes(&p, 3), [1, 1]);
    let labels = Targets::Labels { labels: 2, truth: &[true, false, true, true] };
    assert_eq!(constant(&labels, 1), [1.0, 0.5]);
}

/// Of n = 4000 draws the share of a class scatters by √(0.25/4000) = 0.008 at most (standard deviation).
#[test]
fn the_stratified_baseline_draws_with_the_shares_of_the_training_texts() {
    let n = 4000;
    let shares = |p: &[f64], width: usize| -> Vec<f64> {
        (0..width).map(|at| p.iter().skip(at).step_by(width).sum::<f64>() / n as f64).collect()
    };
    let close = |found: Vec<f64>, expected: &[f64]| {
        let pairs = found.iter().zip(expected);
        assert!(pairs.map(|(a, b)| (a - b).abs()).all(|error| error < 0.04), "{found:?}");
    };
    let seed = test_support::seed();
    let classes = Targets::Classes { classes: 4, truth: &[0, 2, 2, 2] };
    let drawn = stratified(&classes, n, seed);
    assert!(drawn.chunks(4).all(|row| row.iter().sum::<f64>() == 1.0 && row[1] + row[3] == 0.0));
    close(shares(&drawn, 4), &[0.25, 0.0, 0.75, 0.0]);
    assert_eq!(drawn, stratified(&classes, n, seed));
    assert_ne!(drawn, stratified(&classes, n, seed + 1));
    let labels = Targets::Labels { labels: 2, truth: &[true, false, true, true] };
    close(shares(&stratified(&labels, n, seed), 2), &[1.0, 0.5]);
}

/// Texts of two classes with a word that tells them apart, in a share of the texts; the other words say nothing.
fn written(texts: u64, share: f32) -> (Vec<String>, Vec<usize>) {
    let random = Philox::new(test_support::seed(), Purpose::Test);
    let class = |text: u64| usize::from(random.uniform(0, text) < 0.5);
    let text = |text: u64| {
        let word = |i: u64| format!("word{}", (random.uniform(2 + i, text) * 300.0) as u32);
        let hint = ["no", "yes"][class(text)];
        let hint = if random.uniform(1, text) < share { hint } else { "perhaps" };
        (0..8).map(word).chain([hint.to_string()]).collect::<Vec<_>>().join(" ")
    };
    (0..texts).map(|n| (text(n), class(n))).unzip()
}

/// It finds the word where there is one, guesses for the other texts, and finds nothing in shuffled classes.
#[test]
fn the_bag_of_words_finds_what_words_say() {
    let (texts, truth) = written(2400, 0.8);
    let of = |truth: &[usize]| {
        let targets =
            |at: std::ops::Range<usize>| Targets::Classes { classes: 2, truth: &truth[at] };
        let (train, validation) = (targets(0..1200), targets(1200..1800));
        let model = BagOfWords::fit((&texts[..1200], &train), (&texts[1200..1800], &validation));
        let predicted = predicted_classes(&model.predict(&texts[1800..]), 2);
        let right = predicted.iter().zip(&truth[1800..]).filter(|(a, b)| a == b).count();
        right as f64 / predicted.len() as f64
    };
    // 0.8 + 0.2/2, with a standard deviation of √(0.09/600) = 0.012; for shuffled classes 0.5 and 0.02.
    let accuracy = of(&truth);
    assert!((accuracy - 0.9).abs() < 0.05, "{accuracy}");
    let shuffled: Vec<usize> = truth.iter().cycle().skip(777).take(2400).copied().collect();
    let chance = of(&shuffled);
    assert!((chance - 0.5).abs() < 0.1, "{chance}");
}

/// Results do not depend on the number of threads.
#[test]
fn the_bag_of_words_has_the_same_bits_on_any_number_of_threads() {
    let (texts, truth) = written(600, 0.5);
    let targets = Targets::Classes { classes: 2, truth: &truth };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let fit = || BagOfWords::fit((&texts, &targets), (&texts, &targets)).predict(&texts);
        pool.install(fit)
    };
    assert_eq!(on(1), on(3));
}

#[test]
fn edges_of_the_bag_of_words() {
    // No words, no validation texts, a class without texts: probabilities are the shares.
    let train = Targets::Classes { classes: 3, truth: &[0, 0, 1] };
    let none = Targets::Classes { classes: 3, truth: &[] };
    let model = BagOfWords::fit((&["", "?", "a"], &train), (&[], &none));
    let p = model.predict(&["", "unseen words"]);
    assert!((p[0] - 2.0 / 3.0).abs() < 0.01 && p[2] < 0.01 && p[..3] == p[3..], "{p:?}");
}
