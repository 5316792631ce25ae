//! The meaning of masks, shared heads and joined sequences: each equals plain attention to the visible keys.

use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::dropout::Dropout;
use tensor::ops::permute::Permute;
use tensor::{Tape, Tensor, constant};

const CAUSAL: Mask = Mask { causal: true, padding: false };
const PADDED: Mask = Mask { causal: false, padding: true };

fn apply(op: Attention, inputs: &[&Tensor]) -> Vec<f64> {
    let vars: Vec<_> = inputs.iter().map(|x| constant((*x).clone())).collect();
    let tape = Tape::without_gradients();
    tape.apply(op, &vars.iter().collect::<Vec<_>>()).unwrap().value().to_f64()
}

fn random(rows: usize, width: usize, input: u64) -> Tensor {
    draw(&[1, rows, width], &Draw::Normal, 7, input)
}

/// The first rows of a tensor [1, rows, width].
fn first(x: &Tensor, rows: usize) -> Tensor {
    let width = x.width();
    Tensor::from_slice(&x.read::<f64>()[..rows * width], &[1, rows, width])
}

fn assert_close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{a:?} {b:?}");
}

#[test]
fn a_query_behind_a_causal_mask_sees_the_keys_up_to_its_own() {
    let plain = Attention::new(2, Layout::Separate);
    let op = Attention { mask: CAUSAL, ..plain };
    let (q, k, v) = (random(70, 6, 0), random(69, 6, 1), random(69, 6, 2));
    let out = apply(op, &[&q, &k, &v]);
    // With one query more than keys, the first query sees nothing.
    assert_eq!(out[..6], [0.0; 6]);
    for query in 1..70 {
        let seen = apply(plain, &[&first(&q, query + 1), &first(&k, query), &first(&v, query)]);
        assert_close(&out[query * 6..][..6], &seen[query * 6..]);
    }
}

#[test]
fn padded_keys_are_ignored() {
    let plain = Attention::new(1, Layout::Separate);
    let op = Attention { mask: PADDED, ..plain };
    let (q, k, v) = (random(3, 4, 0), random(5, 4, 1), random(5, 4, 2));
    for length in 1..=5 {
        let out = apply(op, &[&q, &k, &v, &Tensor::from_slice(&[length as i32], &[1])]);
        assert_close(&out, &apply(plain, &[&q, &first(&k, length), &first(&v, length)]));
    }
    for (length, same) in [(-3, 0), (9, 5)] {
        let out = apply(op, &[&q, &k, &v, &Tensor::from_slice(&[length], &[1])]);
        assert_eq!(out, apply(op, &[&q, &k, &v, &Tensor::from_slice(&[same], &[1])]));
    }
    let out = apply(op, &[&q, &k, &v, &Tensor::from_slice(&[0], &[1])]);
    assert_eq!(out, [0.0; 12]);
}

#[test]
fn joined_sequences_are_one_after_the_other() {
    let (a, b) = (random(3, 12, 0), random(4, 12, 1));
    let both: Vec<f64> = a.to_f64().into_iter().chain(b.to_f64()).collect();
    let both = Tensor::from_slice(&both, &[1, 7, 12]);
    let out = apply(Attention::new(2, Layout::Joined), &[&a, &b]);
    assert_close(&out, &apply(Attention::new(2, Layout::Packed), &[&both]));
    // The second sequence alone, when no key of the first is visible.
    let op = Attention { mask: PADDED, ..Attention::new(2, Layout::Joined) };
    let out = apply(op, &[&a, &b, &Tensor::from_slice(&[0, 4], &[1, 2])]);
    assert_close(&out[12..], &apply(Attention::new(2, Layout::Packed), &[&b]));
}

#[test]
fn heads_of_queries_share_those_of_keys() {
    let (q, k, v) = (random(3, 8, 0), random(5, 4, 1), random(5, 4, 2));
    let twice = |x: &Tensor| {
        // Heads of 2 features: a, b -> a, a, b, b.
        let rows = x.to_f64();
        let rows = rows.chunks_exact(2).flat_map(|head| [head, head]).flatten().copied();
        Tensor::from_slice(&rows.collect::<Vec<f64>>(), &[1, 5, 8])
    };
    let plain = Attention::new(4, Layout::Separate);
    let out = apply(Attention { kv_heads: 2, ..plain }, &[&q, &k, &v]);
    assert_close(&out, &apply(plain, &[&q, &twice(&k), &twice(&v)]));
}

/// With the identity matrix as values, the output is the probabilities.
#[test]
fn dropout_of_probabilities_is_that_of_a_tensor() {
    let (batch, heads, queries, keys) = (3, 2, 5, 8);
    let q = draw(&[batch, queries, heads * keys], &Draw::Normal, 7, 0);
    let k = draw(&[batch, keys, heads * keys], &Draw::Normal, 7, 1);
    let one = |i: usize| f64::from(i / (heads * keys) % keys == i % keys);
    let v: Vec<f64> = (0..batch * keys * heads * keys).map(one).collect();
    let v = Tensor::from_slice(&v, k.shape());
    let counter = Tensor::from_slice(&[1, -2, 3, 40], &[4]);
    let dropout = Dropout { p: 0.4, site: 5, samples: batch };
    let plain = Attention::new(heads, Layout::Separate);
    let out = apply(Attention { dropout: Some(dropout), ..plain }, &[&q, &k, &v, &counter]);

    let tape = Tape::without_gradients();
    let p = Tensor::from_slice(&apply(plain, &[&q, &k, &v]), &[batch, queries, heads, keys]);
    let p = tape.apply(Permute(vec![0, 2, 1, 3]), &[&constant(p)]).unwrap();
    let p = tape.apply(dropout, &[&p, &constant(counter)]).unwrap();
    let p = tape.apply(Permute(vec![0, 2, 1, 3]), &[&p]).unwrap();
    assert!(out.contains(&0.0) && out.iter().any(|p| *p > 0.0));
    assert_close(&out, &p.value().to_f64());
}

#[test]
fn joined_sequences_have_no_causal_mask() {
    let tape = Tape::without_gradients();
    let x = constant(random(3, 12, 0));
    let op = Attention { mask: CAUSAL, ..Attention::new(2, Layout::Joined) };
    let why = tape.apply(op, &[&x, &x]).unwrap_err().to_string();
    assert!(why.contains("no common order"), "{why}");
}

#[cfg(feature = "emu")]
#[test]
fn a_device_says_which_heads_are_too_large_for_its_kernels() {
    use tensor::{Device, Dtype};
    let tape = Tape::new();
    let x = random(1, 3 * 258, 0).to_dtype(Dtype::F32).to_device(Device::Emu).unwrap();
    let x = tape.leaf(x);
    let out = tape.apply(Attention::new(1, Layout::Packed), &[&x]).unwrap();
    let why = out.value().to_host().unwrap_err().to_string();
    assert!(why.contains("at most 256") && why.contains("258"), "{why}");
}
