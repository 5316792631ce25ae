//! Tests the baselines on data with known results.

use super::ridge::choose;
use super::*;
use crate::multimodal::metrics::{paired_cosines, pairwise};
use tensor::random::{Philox, Purpose};
use unix::Exit;

fn random() -> Philox {
    Philox::new(test_support::seed(), Purpose::Test)
}

/// `n` texts of 6 tokens below `words`.
fn texts(n: usize, words: u64) -> Vec<Vec<i32>> {
    let random = random();
    (0..n as u64).map(|i| (0..6).map(|at| random.below(i, at, words) as i32).collect()).collect()
}

fn normal(sample: u64, n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| random().normal(sample, i)).collect()
}

/// At the minimum, Σ x·(y - ŷ) = λ·w for every feature x, and Σ (y - ŷ) = 0 for the intercept; w is what one token adds
/// to the prediction of the empty text. Predictions are rounded to 24 bits, and up to 900 of them are added.
#[test]
fn ridge_satisfies_its_normal_equations_with_many_records_and_with_few() {
    let dim = 3;
    for (n, words) in [(300, 40), (30, 100)] {
        let train = texts(n, words);
        let y = normal(1 << 32, n * dim);
        let model = TextRidge::fit(TextFeatures::Tokens, dim, (&train, &y), (&train, &y)).unwrap();
        let found = model.predict(&train);
        let none = model.predict(&[vec![]]);
        for c in 0..dim {
            let residual = |i: usize| f64::from(y[i * dim + c]) - f64::from(found[i * dim + c]);
            let sum: f64 = (0..n).map(residual).sum();
            assert!(sum.abs() < 1e-4, "{n}: {sum}");
            for token in train.concat() {
                let weight = model.predict(&[[token]])[c] - none[c];
                let count = |i: usize| train[i].iter().filter(|own| **own == token).count() as f64;
                let gradient: f64 = (0..n).map(|i| count(i) * residual(i)).sum();
                let error = gradient - model.penalty * f64::from(weight);
                assert!(error.abs() < 1e-4 * (1.0 + model.penalty), "{n} {token}: {error}");
            }
        }
    }
}

/// The vector is a constant and a sum over the tokens. λ = 0.1 changes weights by a share of λ/σ², where σ² is the
/// smallest eigenvalue of XᵀX, about 2000·6/50 = 240 except for the direction in which all counts are equal and
/// whose sum the intercept knows: 4e-4, and 1 - cosine is of the order of its square.
#[test]
fn ridge_recovers_a_linear_map_and_bigrams_the_order_of_tokens() {
    let (dim, words) = (8, 50);
    let weights = normal(1 << 32, (words + 1) * dim);
    let vector = |text: &Vec<i32>| -> Vec<f32> {
        let rows = text.iter().map(|token| *token as usize).chain([words]);
        let rows = rows.map(|row| &weights[row * dim..][..dim]);
        rows.fold(vec![0.0; dim], |sum, row| sum.iter().zip(row).map(|(a, b)| a + b).collect())
    };
    let all = texts(2400, words as u64);
    let vectors: Vec<f32> = all.iter().flat_map(vector).collect();
    let (train, test) = all.split_at(2000);
    let (y, expected) = vectors.split_at(2000 * dim);
    let model = TextRidge::fit(TextFeatures::Tokens, dim, (train, y), (train, y)).unwrap();
    assert_eq!(model.penalty, 0.1);
    let worst = |found: &[f32]| {
        paired_cosines(found, expected, dim).into_iter().fold(f64::INFINITY, f64::min)
    };
    let found = worst(&model.predict(test));
    assert!(found > 1.0 - 1e-4, "{found}");
    // The vector of `a b` is that of `a` alone minus half of that of `b`.
    let role = |text: &Vec<i32>| -> Vec<f32> {
        let row = |at: usize| &weights[text[at] as usize * dim..][..dim];
        row(0).iter().zip(row(1)).map(|(a, b)| a - 0.5 * b).collect()
    };
    let pairs = (0..12).flat_map(|a| (0..12).filter(move |b| *b != a).map(move |b| vec![a, b]));
    let pairs: Vec<Vec<i32>> = pairs.collect();
    let y: Vec<f32> = pairs.iter().flat_map(role).collect();
    let swapped: Vec<Vec<i32>> = pairs.iter().map(|pair| vec![pair[1], pair[0]]).collect();
    let place = |pair: &Vec<i32>| pairs.iter().position(|own| own == pair).unwrap();
    let chosen: Vec<[usize; 2]> =
        swapped.iter().enumerate().map(|(i, pair)| [i, place(pair)]).collect();
    let share = |features: TextFeatures| {
        let model = TextRidge::fit(features, dim, (&pairs, &y), (&pairs, &y)).unwrap();
        let found = pairwise(&model.predict(&pairs), &y, dim, &chosen).concat();
        found.iter().filter(|own| **own).count() as f64 / found.len() as f64
    };
    // Tokens predict the same vector for both orders, which is closer to one of the two.
    assert_eq!(share(TextFeatures::Tokens), 0.5);
    assert_eq!(share(TextFeatures::TokensAndBigrams), 1.0);
}

#[test]
fn the_rarest_tokens_beyond_the_limit_are_not_counted() {
    let mut train: Vec<[i32; 2]> = (0..2048).map(|token| [token, token]).collect();
    train.push([5000, 0]);
    let y = normal(0, train.len());
    let model = TextRidge::fit(TextFeatures::Tokens, 1, (&train, &y), (&train, &y)).unwrap();
    let found = model.predict(&[vec![7], vec![7, 5000], vec![7, 9999], vec![7, 8]]);
    assert!(found[0] == found[1] && found[0] == found[2] && found[0] != found[3], "{found:?}");
}

#[test]
fn the_penalty_with_the_best_score_is_chosen() {
    let score = |penalty: &f64| -(penalty.log10() - 1.2).powi(2);
    assert_eq!(choose(Some, score).unwrap(), 10.0);
    // The least of equal ones; the last, if scores rise.
    assert_eq!(choose(Some, |_| 0.0).unwrap(), 0.1);
    assert_eq!(choose(Some, |penalty| *penalty).unwrap(), 1000.0);
}

#[test]
fn a_split_without_records_or_with_nan_is_refused() {
    let none: [[i32; 1]; 0] = [];
    let empty = TextRidge::fit(TextFeatures::Tokens, 1, (&none, &[]), (&none, &[]));
    assert_eq!(empty.unwrap_err().exit, Exit::Data);
    let nan = LinearSlots::fit(1, (&[f32::NAN], &[[0]]), (&[], &[]));
    assert_eq!(nan.unwrap_err().exit, Exit::Data);
}

#[test]
fn the_nearest_vector_is_that_of_the_largest_cosine() {
    let train = [1.0, 0.0, 0.0, 2.0, -1.0, -1.0, 0.0, 4.0];
    let found = nearest(&[0.1, 0.2, 5.0, 4.0, -3.0, -2.0, 0.0, 0.0], &train, 2);
    assert_eq!(found, [1, 0, 2, 0]);
}

/// Vectors are sums of one random vector for each value. With more dimensions than values the values are linear in the
/// vector, so that all are found.
#[test]
fn slots_that_are_linear_in_the_vector_are_found() {
    let (dim, values) = (24, [5, 3, 7]);
    let random = random();
    let drawn = |i: u64| -> [u8; 3] {
        std::array::from_fn(|slot| random.below(i, slot as u64, values[slot]) as u8)
    };
    let slots: Vec<[u8; 3]> = (0..600).map(drawn).collect();
    let vector = |slots: &[u8; 3]| {
        let rows =
            (1 << 32..).zip(slots).map(|(slot, value)| normal(slot + u64::from(*value) * 8, dim));
        rows.fold(vec![1.0; dim], |sum, row| sum.iter().zip(&row).map(|(a, b)| a + b).collect())
    };
    let vectors: Vec<f32> = slots.iter().flat_map(vector).collect();
    let ((x, of_test), (y, truth)) = (vectors.split_at(500 * dim), slots.split_at(500));
    let model = LinearSlots::fit(dim, (x, y), (x, y)).unwrap();
    assert_eq!(model.predict(of_test), truth);
}

#[test]
fn the_unigram_text_has_the_most_frequent_token_of_each_position() {
    let train = [vec![1, 5, 2], vec![1, 4, 2, 9], vec![3, 4], vec![2, 5]];
    let model = Unigram::fit(&train);
    // At position 1 the smaller one of two; at position 2 as many texts have ended as have token 2.
    assert_eq!(model.tokens, [1, 4, 2]);
    assert_eq!(model.equal_share(&[vec![1, 2, 2, 3], vec![7]]), 2.0 / 7.0);
}
