use super::steps::repeats;
use super::{Decoder, Finish, Generated, Generation, Prompt, Sampling, generate};
use std::cell::RefCell;
use std::collections::HashSet;
use tensor::Tensor;
use tensor::random::{Philox, Purpose};
use unix::{Exit, Result};

/// The logits after a sequence are a function of it; the cache is the sequences.
struct Fake<F> {
    logits: F,
    /// Number of sequences in each step.
    batches: RefCell<Vec<usize>>,
}

impl<F: Fn(&[i32]) -> Vec<f32>> Fake<F> {
    fn new(logits: F) -> Self {
        Self { logits, batches: RefCell::default() }
    }

    fn of(&self, sequences: &[Vec<i32>]) -> Tensor {
        let logits: Vec<Vec<f32>> = sequences.iter().map(|ids| (self.logits)(ids)).collect();
        Tensor::from_slice(&logits.concat(), &[sequences.len(), logits[0].len()])
    }
}

impl<F: Fn(&[i32]) -> Vec<f32>> Decoder for Fake<F> {
    type Cache = (Vec<Vec<i32>>, usize);

    fn prefill(&self, prompts: &[&[i32]], capacity: usize) -> Result<(Self::Cache, Tensor)> {
        let sequences: Vec<Vec<i32>> = prompts.iter().map(|ids| ids.to_vec()).collect();
        let logits = self.of(&sequences);
        Ok(((sequences, capacity), logits))
    }

    fn step(&self, (sequences, capacity): &mut Self::Cache, tokens: &[i32]) -> Result<Tensor> {
        assert_eq!(sequences.len(), tokens.len());
        self.batches.borrow_mut().push(tokens.len());
        for (ids, token) in sequences.iter_mut().zip(tokens) {
            ids.push(*token);
            assert!(ids.len() <= *capacity);
        }
        Ok(self.of(sequences))
    }

    fn keep(&self, (sequences, _): &mut Self::Cache, rows: &[usize]) -> Result<()> {
        *sequences = rows.iter().map(|row| sequences[*row].clone()).collect();
        Ok(())
    }
}

fn options(max_new_tokens: usize, stop: &[i32]) -> Generation {
    let sampling = Sampling::default();
    Generation { sampling, max_new_tokens, stop: stop.to_vec(), max_repeat: 0 }
}

fn one_hot(id: i32, classes: usize) -> Vec<f32> {
    (0..classes as i32).map(|own| f32::from(u8::from(own == id))).collect()
}

/// The next token is the last one plus 1, and 9 the end.
fn counting(ids: &[i32]) -> Vec<f32> {
    one_hot((ids[ids.len() - 1] + 1).min(9), 10)
}

#[test]
fn samples_end_at_stop_tokens_and_at_the_maximum_and_leave_the_batch() {
    let model = Fake::new(counting);
    let starts = [[8], [2], [7], [8]];
    let prompts: Vec<Prompt> =
        starts.iter().map(|ids| Prompt { ids, number: ids[0] as u64 }).collect();
    let found = generate(&model, &prompts, &options(5, &[9, 77])).unwrap();
    let of = |ids: &[i32], finish| Generated { ids: ids.to_vec(), finish };
    let expected = [
        of(&[], Finish::Stop),
        of(&[3, 4, 5, 6, 7], Finish::Length),
        of(&[8], Finish::Stop),
        of(&[], Finish::Stop),
    ];
    assert_eq!(found, expected);
    // Two of four have finished after the first token, one of two after the second.
    assert_eq!(*model.batches.borrow(), [2, 1, 1, 1]);
    let none = generate(&model, &prompts[..1], &options(0, &[])).unwrap();
    assert_eq!(none, [of(&[], Finish::Length)]);
    assert!(generate(&model, &[], &options(5, &[])).unwrap().is_empty());
}

#[test]
fn the_first_of_equal_logits_is_taken() {
    let model = Fake::new(|_: &[i32]| vec![0.0, 3.0, 1.0, 3.0]);
    let prompts = [Prompt { ids: &[0], number: 0 }];
    assert_eq!(generate(&model, &prompts, &options(2, &[])).unwrap()[0].ids, [1, 1]);
    // A penalty above 1 takes the token on the host: 3/1.5 is less than the other 3.
    let mut options = options(3, &[]);
    options.sampling.repetition_penalty = 1.5;
    assert_eq!(generate(&model, &prompts, &options).unwrap()[0].ids, [1, 3, 1]);
}

#[test]
fn a_runaway_sample_ends() {
    let block = [5, 6, 7];
    let model = Fake::new(|ids: &[i32]| match ids.len() {
        1..5 => one_hot(ids.len() as i32, 10),
        n => one_hot(block[(n - 5) % 3], 10),
    });
    let prompts = [Prompt { ids: &[0], number: 0 }];
    let options = Generation { max_repeat: 13, ..options(100, &[]) };
    let found = generate(&model, &prompts, &options).unwrap();
    assert_eq!(found[0].finish, Finish::Runaway);
    // Four other tokens, then the 13 of four blocks and one token.
    assert_eq!(found[0].ids.len(), 17);
    let cycle = |period: i32, len: i32| (0..len).map(|i| i % period).collect::<Vec<i32>>();
    assert!(repeats(&cycle(32, 128), 128) && !repeats(&cycle(32, 128), 127));
    assert!(!repeats(&cycle(33, 500), 132) && !repeats(&cycle(33, 500), 500));
    assert!(repeats(&cycle(1, 4), 4) && !repeats(&cycle(1, 4), 3) && !repeats(&cycle(1, 4), 5));
    assert!(!repeats(&cycle(1, 4), 0));
}

#[test]
fn logits_that_are_not_finite_are_an_error() {
    for (bad, temperature) in
        [(f32::NAN, 0.0), (f32::INFINITY, 0.0), (f32::NAN, 1.0), (f32::INFINITY, 0.7)]
    {
        let model = Fake::new(|ids: &[i32]| {
            let second = if ids.len() == 3 && ids[0] == 1 { bad } else { 0.5 };
            vec![1.0, second, 0.0]
        });
        let prompts = [Prompt { ids: &[0], number: 4 }, Prompt { ids: &[1], number: 17 }];
        let mut options = options(6, &[]);
        options.sampling.temperature = temperature;
        let error = generate(&model, &prompts, &options).unwrap_err();
        assert_eq!(error.exit, Exit::Failure);
        assert!(error.to_string().contains("prompt 17 are not finite"), "{error}");
    }
}

#[test]
fn options_and_prompts_are_checked() {
    type Change = fn(&mut Sampling);
    let model = Fake::new(counting);
    let prompts = [Prompt { ids: &[1], number: 0 }];
    let run = |change: Change| {
        let mut options = options(2, &[]);
        change(&mut options.sampling);
        generate(&model, &prompts, &options).map_err(|error| (error.exit, error.to_string()))
    };
    let changes: [(Change, &str); 6] = [
        (|s| s.temperature = -1.0, "temperature: must be a number of at least 0, not -1"),
        (|s| s.temperature = f64::NAN, "temperature: must be a number of at least 0, not NaN"),
        (|s| s.top_p = 0.0, "top_p: must be greater than 0 and at most 1, not 0"),
        (|s| s.min_p = 1.5, "min_p: must be from 0 to 1, not 1.5"),
        (|s| s.repetition_penalty = 0.0, "repetition_penalty: must be a positive number, not 0"),
        (|s| s.repetition_penalty = f64::INFINITY, "repetition_penalty: must be a positive"),
    ];
    for (change, expected) in changes {
        let (exit, text) = run(change).unwrap_err();
        assert!(exit == Exit::Config && text.contains(expected), "{text}");
    }
    let empty = [Prompt { ids: &[], number: 3 }];
    let error = generate(&model, &empty, &options(2, &[])).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("prompt 3 has no tokens"));
}

/// Logits of the probabilities 0.4, 0.05, 0.3, 0.05, 0.2 at temperature 1.
fn small() -> Vec<f32> {
    [0.4_f32, 0.05, 0.3, 0.05, 0.2].map(f32::ln).to_vec()
}

fn distribution(sampling: &Sampling, seen: &[i32]) -> Vec<f64> {
    let seen: HashSet<i32> = seen.iter().copied().collect();
    let mut all = vec![0.0; 5];
    for (id, probability) in sampling.distribution(&small(), &seen).unwrap() {
        all[id as usize] = probability;
    }
    all
}

/// Each filter against what it is by definition. Logits are rounded to f32: 1e-7 of numbers up to 3.
#[test]
fn filters_have_their_closed_forms() {
    let plain = Sampling { temperature: 1.0, ..Sampling::default() };
    let check = |what: &str, sampling: Sampling, seen: &[i32], expected: [f64; 5]| {
        let total: f64 = expected.iter().sum();
        for (found, expected) in distribution(&sampling, seen).iter().zip(expected) {
            assert!((found - expected / total).abs() < 1e-6, "{what}: {found} {expected}");
        }
    };
    let p = [0.4, 0.05, 0.3, 0.05, 0.2];
    check("none", plain.clone(), &[1], p);
    let half = Sampling { temperature: 0.5, ..plain.clone() };
    check("temperature", half.clone(), &[], p.map(|p| p * p));
    check("greedy", Sampling::default(), &[], [1.0, 0.0, 0.0, 0.0, 0.0]);
    let top = |top_k| Sampling { top_k, ..plain.clone() };
    check("top-k", top(2), &[], [0.4, 0.0, 0.3, 0.0, 0.0]);
    // Both tokens with the fourth probability stay.
    check("top-k, ties", top(4), &[], p);
    check("top-k, more than there are", top(9), &[], p);
    let nucleus = |top_p| Sampling { top_p, ..plain.clone() };
    check("top-p", nucleus(0.65), &[], [0.4, 0.0, 0.3, 0.0, 0.0]);
    check("top-p, one more", nucleus(0.75), &[], [0.4, 0.0, 0.3, 0.0, 0.2]);
    check("top-p, a tie", nucleus(0.93), &[], [0.4, 0.05, 0.3, 0.0, 0.2]);
    check("top-p, one", nucleus(0.1), &[], [0.4, 0.0, 0.0, 0.0, 0.0]);
    let least = |min_p| Sampling { min_p, ..plain.clone() };
    check("min-p", least(0.4), &[], [0.4, 0.0, 0.3, 0.0, 0.2]);
    check("min-p, one", least(1.0), &[], [0.4, 0.0, 0.0, 0.0, 0.0]);
    // All logits are negative, so they are multiplied: p² of the tokens that have occurred.
    let penalty = Sampling { repetition_penalty: 2.0, ..plain.clone() };
    check("penalty", penalty, &[0, 3, 99, -1], [0.16, 0.05, 0.3, 0.0025, 0.2]);
    // The order: with p², 0.4 is 0.16/0.295 = 0.54 of the mass, and top-p looks at what top-k leaves.
    check("order", Sampling { top_p: 0.6, ..half }, &[], [0.16, 0.0, 0.09, 0.0, 0.0]);
    let both = Sampling { top_k: 2, top_p: 0.5, ..plain };
    check("order", both, &[], [0.4, 0.0, 0.0, 0.0, 0.0]);
    // A positive logit is divided.
    let twice = Sampling { repetition_penalty: 4.0, temperature: 1.0, ..Sampling::default() };
    let found = twice.distribution(&[2.0, 0.0], &[0].into()).unwrap();
    assert!((found[0].1 / found[1].1 - 0.5_f64.exp()).abs() < 1e-12);
}

/// More tokens than are sorted at first, in an order that is not that of their ids.
#[test]
fn top_p_of_many_tokens_is_that_of_all_sorted() {
    let n = 5000_usize;
    let logits: Vec<f32> = (0..n).map(|i| -((i * 1999 % n) as f32) / 700.0).collect();
    let weights: Vec<f64> = logits.iter().map(|z| f64::from(*z).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    for top_p in [0.03, 0.5, 0.97] {
        let mut sum = 0.0;
        let mut expected: Vec<i32> = Vec::new();
        for id in &order {
            if sum >= top_p * total {
                break;
            }
            sum += weights[*id];
            expected.push(*id as i32);
        }
        expected.sort_unstable();
        let sampling = Sampling { temperature: 1.0, top_p, ..Sampling::default() };
        let found = sampling.distribution(&logits, &HashSet::new()).unwrap();
        let ids: Vec<i32> = found.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, expected, "{top_p}");
    }
}

/// A frequency of n draws has the standard deviation √(p(1-p)/n); five of them are exceeded once in 1.7 million.
#[test]
fn frequencies_of_draws_are_the_probabilities() {
    let (n, sampling) =
        (40_000_u64, Sampling { temperature: 0.8, top_k: 3, ..Sampling::default() });
    let expected = distribution(&sampling, &[]);
    let random = Philox::new(5, Purpose::Tokens);
    // Draws of one prompt at many positions, and of many prompts at one position.
    for by_position in [true, false] {
        let mut counts = [0_u64; 5];
        for i in 0..n {
            let at = if by_position { [3, i] } else { [i, 3] };
            counts[sampling.draw(&small(), &HashSet::new(), &random, at).unwrap() as usize] += 1;
        }
        for (count, p) in counts.iter().zip(&expected) {
            let error = (*count as f64 / n as f64 - p).abs();
            assert!(error <= 5.0 * (p * (1.0 - p) / n as f64).sqrt(), "{counts:?}");
        }
    }
}

/// Draws depend on seed, number and position alone: neither on the batch nor on what has left it.
#[test]
fn a_text_does_not_depend_on_the_others() {
    let model = Fake::new(|ids: &[i32]| {
        let last = ids[ids.len() - 1];
        (0..11).map(|id| ((id * 7 + last * 3 + ids.len() as i32) % 11) as f32 * 0.3).collect()
    });
    let starts: Vec<Vec<i32>> = (0..9).map(|i| (0..=i % 4).collect()).collect();
    let prompts: Vec<Prompt> =
        starts.iter().zip(100..).map(|(ids, number)| Prompt { ids, number }).collect();
    let mut options = Generation { stop: vec![3, 8], ..options(40, &[]) };
    options.sampling = Sampling { temperature: 1.2, top_p: 0.9, seed: 7, ..Sampling::default() };
    let together = generate(&model, &prompts, &options).unwrap();
    for (prompt, expected) in prompts.iter().zip(&together) {
        let alone = generate(&model, &[*prompt], &options).unwrap();
        assert_eq!(alone[..], *std::slice::from_ref(expected));
    }
    let lengths: HashSet<usize> = together.iter().map(|sample| sample.ids.len()).collect();
    assert!(lengths.len() > 3, "{lengths:?}");
    options.sampling.seed = 8;
    assert_ne!(generate(&model, &prompts, &options).unwrap(), together);
    // Equal prompts with different numbers have different texts.
    options.stop.clear();
    let equal = [0, 1, 2].map(|number| Prompt { ids: &[1, 2], number });
    let found = generate(&model, &equal, &options).unwrap();
    assert!(found[0] != found[1] && found[1] != found[2]);
}
