//! Cases at the sizes used to compare GPUs. Each row contains everything that `tests/peers/gpu.py` needs to compute the
//! same in PyTorch: names and shapes of the inputs, and these options.

use super::Options;
use serde_json::{Value, json};
use tensor::op::{Case, Draw, Op};
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::conv::{Conv, Padding};
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::ops::linear::Linear;
use tensor::ops::normalization::{NormKind, Normalization};

/// Square matrix products, the linear layers of the operator, the vocabulary of BERT, the layers of BERT, of MMDiT of width
/// 1024 and of a decoder of width 2048 at 8192 rows, rows of language models, images.
pub fn cases() -> Vec<(Options, Case)> {
    let mut cases = Vec::new();
    for side in [4096, 8192] {
        cases.push(linear(Activation::Identity, false, side, side, side));
    }
    cases.push(linear(Activation::Identity, true, 64 * 128, 256, 1024));
    cases.push(linear(Activation::Gelu, true, 64 * 128, 1024, 256));
    cases.push(linear(Activation::Identity, true, 8192, 4096, 1024));
    cases.push(linear(Activation::Identity, false, 4096, 30_522, 768));
    for width in [768, 1024] {
        cases.push(linear(Activation::Identity, true, 8192, width, width));
        cases.push(linear(Activation::Identity, true, 8192, 3 * width, width));
        cases.push(linear(Activation::Gelu, true, 8192, 4 * width, width));
        cases.push(linear(Activation::Identity, true, 8192, width, 4 * width));
    }
    for n in [2048, 6144] {
        cases.push(linear(Activation::Identity, false, 8192, n, 2048));
    }
    cases.push(linear(Activation::Identity, false, 8192, 2048, 6144));
    for width in [256, 1024, 4096] {
        let shapes: &[&[usize]] = &[&[8192, width], &[width], &[width]];
        cases.push(plain(Normalization { kind: NormKind::Layer, epsilon: 1e-5 }, shapes));
        cases.push(plain(Normalization { kind: NormKind::Rms, epsilon: 1e-6 }, &shapes[..2]));
    }
    for classes in [1000, 50_257] {
        let (options, case) = plain(CrossEntropy::default(), &[&[4096, classes], &[4096]]);
        cases.push((options, case.draw(1, Draw::RandInt(classes as u64))));
    }
    // Shapes of the operator, and of language models.
    cases.push(attention(64, 128, 8, 32, false));
    for width in [64, 128] {
        cases.push(attention(4, 4096, 2048 / width, width, false));
        cases.push(attention(4, 4096, 2048 / width, width, true));
    }
    cases.push(conv([32, 1, 56, 56, 128], 128, [1, 3, 3]));
    cases.push(conv([32, 1, 28, 28, 256], 512, [1, 1, 1]));
    cases
}

fn plain(op: impl Op, shapes: &[&[usize]]) -> (Options, Case) {
    (Options::new(), Case::new(op, shapes))
}

fn options<const N: usize>(fields: [(&str, Value); N]) -> Options {
    fields.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}

fn linear(activation: Activation, bias: bool, rows: usize, n: usize, k: usize) -> (Options, Case) {
    let shapes: &[&[usize]] = &[&[rows, k], &[n, k], &[n]];
    let case = Case::new(Linear { bias, activation }, &shapes[..2 + usize::from(bias)]);
    let name = format!("{activation:?}").to_lowercase();
    (options([("activation", json!(name))]), case.flops(2 * rows * n * k))
}

/// As many queries as keys; a causal mask leaves half of the operations.
fn attention(b: usize, tokens: usize, heads: usize, width: usize, causal: bool) -> (Options, Case) {
    let shape: &[usize] = &[b, tokens, heads * width];
    let mask = Mask { causal, padding: false };
    let op = Attention { mask, ..Attention::new(heads, Layout::Separate) };
    let operations = 4 * b * heads * tokens * tokens * width / if causal { 2 } else { 1 };
    let case = Case::new(op, &[shape; 3]).flops(operations);
    (options([("heads", json!(heads)), ("causal", json!(causal))]), case)
}

/// With zero padding and stride 1.
fn conv(x: [usize; 5], outputs: usize, filter: [usize; 3]) -> (Options, Case) {
    let op = Conv::same(filter, Padding::Zero);
    let w = [outputs, filter[0], filter[1], filter[2], x[4]];
    let taps: usize = filter.iter().product();
    let operations = 2 * x.iter().product::<usize>() * outputs * taps;
    (Options::new(), Case::new(op, &[&x, &w, &[outputs]]).flops(operations))
}
