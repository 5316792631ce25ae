//! Outputs of ops and gradients of their inputs.

use super::{Golden, agree};
use tensor::check::run;
use tensor::op::{Case, Draw, Op};
use tensor::ops::activation::Activation::{
    Gelu, GeluTanh, Identity, LeakyRelu, Relu, Sigmoid, Silu, Tanh,
};
use tensor::ops::attention::{Attention, Layout};
use tensor::ops::binary::Binary;
use tensor::ops::binary::Binary::{Add, Multiply};
use tensor::ops::concat::Concat;
use tensor::ops::conv::Conv;
use tensor::ops::conv_transpose::ConvTranspose;
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::ops::depthwise_conv::{DepthwiseConv, Padding};
use tensor::ops::embedding::Embedding;
use tensor::ops::group_norm::GroupNorm;
use tensor::ops::interpolate::Interpolate;
use tensor::ops::interpolate::Interpolation::{self, Linear as Straight, Nearest};
use tensor::ops::linear::Linear;
use tensor::ops::low_rank::LowRank;
use tensor::ops::matmul::MatMul;
use tensor::ops::narrow::Narrow;
use tensor::ops::normalization::{NormKind, Normalization};
use tensor::ops::permute::Permute;
use tensor::ops::pool::{Pool, Pooling};
use tensor::ops::reduce::Reduce;
use tensor::ops::relative_error::RelativeError;
use tensor::ops::residual::Residual;
use tensor::ops::rotary::Rotary;
use tensor::ops::scatter_add::ScatterAdd;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::swiglu::SwiGlu;
use tensor::ops::vector_norm::VectorNorm;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Dtype, Tensor};

/// Name in the file, op, names of its inputs in the op's order.
type Row = (&'static str, Box<dyn Op>, &'static [&'static str]);

fn rows(golden: &Golden) -> Vec<Row> {
    let linear = |bias, activation| Box::new(Linear { bias, activation });
    let norm = |kind| {
        let file = if kind == NormKind::Rms { "rmsnorm" } else { "layernorm" };
        Box::new(Normalization { kind, epsilon: golden.number(&format!("{file}/epsilon")) })
    };
    let attention = |packed: bool, norm: bool| {
        let epsilon = golden.number("attention/epsilon");
        let heads = golden.number("attention/heads") as usize;
        let layout = if packed { Layout::Packed } else { Layout::Separate };
        Box::new(Attention { qk_norm: norm.then_some(epsilon), ..Attention::new(heads, layout) })
    };
    let rotary = |norm: bool| {
        let epsilon = golden.number("rotary/epsilon");
        let heads = golden.number("rotary/heads") as usize;
        Box::new(Rotary { heads, norm: norm.then_some(epsilon) })
    };
    let conv = |grid, filter, padding| Box::new(DepthwiseConv { grid, filter, padding });
    let relative = RelativeError { epsilon: golden.number("relative_error/epsilon") };
    let root = VectorNorm::Root { epsilon: golden.number("vector_norm/epsilon") };
    let plain = Conv::same([1, 1, 1], Padding::Zero);
    let dense = |op: Conv| Box::new(op);
    let pool = |pooling| Box::new(Pool { pooling, window: [1, 3, 2], stride: [1, 2, 1] });
    let boxes = |pooling| Box::new(Pool { pooling, window: [2, 3, 2], stride: [1, 2, 2] });
    let grid = |interpolation: Interpolation, grid| Box::new(Interpolate { interpolation, grid });
    let group = |groups, affine, activation| {
        let epsilon = golden.number("group_norm/epsilon");
        Box::new(GroupNorm { groups, affine, epsilon, activation })
    };
    let smoothing = golden.number("cross_entropy_smoothed/smoothing");
    let gamma = golden.number("cross_entropy_focal/gamma");
    let focal = CrossEntropy { gamma, ..CrossEntropy::default() };
    let weights = ["wa", "wb"].map(|w| golden.number(&format!("weighted_sum/{w}")));
    vec![
        ("linear_identity", linear(true, Identity), &["x", "w", "b"]),
        ("linear_gelu", linear(true, Gelu), &["x", "w", "b"]),
        ("linear_gelu_tanh", linear(true, GeluTanh), &["x", "w", "b"]),
        ("linear_silu", linear(true, Silu), &["x", "w", "b"]),
        ("linear_unbiased", linear(false, Identity), &["x", "w"]),
        ("activation_identity", Box::new(Identity), &["x"]),
        ("activation_gelu", Box::new(Gelu), &["x"]),
        ("activation_gelu_tanh", Box::new(GeluTanh), &["x"]),
        ("activation_silu", Box::new(Silu), &["x"]),
        (
            "low_rank",
            Box::new(LowRank { scale: golden.number("low_rank/scale"), merged: false }),
            &["y", "x", "a", "b"],
        ),
        ("linear_tanh", linear(true, Tanh), &["x", "w", "b"]),
        ("linear_sigmoid", linear(true, Sigmoid), &["x", "w", "b"]),
        ("activation_tanh", Box::new(Tanh), &["x"]),
        ("activation_sigmoid", Box::new(Sigmoid), &["x"]),
        ("activation_relu", Box::new(Relu), &["x"]),
        ("activation_leaky_relu", Box::new(LeakyRelu), &["x"]),
        ("add_same", Box::new(Add), &["a", "b"]),
        ("multiply_same", Box::new(Multiply), &["a", "b"]),
        ("add_bias", Box::new(Add), &["a", "b"]),
        ("multiply_bias", Box::new(Multiply), &["a", "b"]),
        ("add_gate", Box::new(Add), &["a", "b"]),
        ("multiply_gate", Box::new(Multiply), &["a", "b"]),
        ("add_column", Box::new(Add), &["a", "b"]),
        ("multiply_column", Box::new(Multiply), &["a", "b"]),
        ("add_both", Box::new(Add), &["a", "b"]),
        ("multiply_both", Box::new(Multiply), &["a", "b"]),
        ("add_scalar", Box::new(Add), &["a", "b"]),
        ("multiply_scalar", Box::new(Multiply), &["a", "b"]),
        ("sum_0", Box::new(Reduce::Sum(0)), &["x"]),
        ("mean_0", Box::new(Reduce::Mean(0)), &["x"]),
        ("sum_1", Box::new(Reduce::Sum(1)), &["x"]),
        ("mean_1", Box::new(Reduce::Mean(1)), &["x"]),
        ("sum_2", Box::new(Reduce::Sum(2)), &["x"]),
        ("mean_2", Box::new(Reduce::Mean(2)), &["x"]),
        ("permute", Box::new(Permute(vec![2, 0, 3, 1])), &["x"]),
        ("permute_heads", Box::new(Permute(vec![0, 2, 1, 3])), &["x"]),
        ("narrow", Box::new(Narrow { axis: 1, start: 2, length: 4 }), &["x"]),
        ("narrow_last", Box::new(Narrow { axis: 2, start: 3, length: 2 }), &["x"]),
        ("concat", Box::new(Concat { axis: 1 }), &["a", "b", "c"]),
        ("concat_last", Box::new(Concat { axis: 2 }), &["a", "b", "c"]),
        ("scatter_add", Box::new(ScatterAdd(6)), &["x", "index"]),
        ("layernorm", norm(NormKind::Layer), &["x", "w", "b"]),
        ("rmsnorm", norm(NormKind::Rms), &["x", "w"]),
        ("adaln", norm(NormKind::Adaptive { shift: 3, scale: 4 }), &["x", "m"]),
        ("attention_packed", attention(true, false), &["qkv"]),
        ("attention_packed_norm", attention(true, true), &["qkv", "wq", "wk"]),
        ("attention", attention(false, false), &["q", "k", "v"]),
        ("attention_norm", attention(false, true), &["q", "k", "v", "wq", "wk"]),
        ("conv_line", conv([1, 13], [1, 7], Padding::Periodic), &["x", "w", "bias"]),
        ("conv_periodic", conv([5, 7], [3, 5], Padding::Periodic), &["x", "w", "bias"]),
        ("conv_zero", conv([5, 7], [3, 5], Padding::Zero), &["x", "w", "bias"]),
        ("dense_conv", dense(Conv::same([1, 3, 5], Padding::Zero)), &["x", "w", "bias"]),
        ("dense_conv_line", dense(Conv::same([1, 1, 5], Padding::Periodic)), &["x", "w", "bias"]),
        (
            "dense_conv_periodic",
            dense(Conv { stride: [1, 2, 1], ..Conv::same([1, 3, 3], Padding::Periodic) }),
            &["x", "w", "bias"],
        ),
        (
            "dense_conv_strided",
            dense(Conv { stride: [1, 2, 2], ..Conv::same([1, 3, 3], Padding::Zero) }),
            &["x", "w", "bias"],
        ),
        (
            "dense_conv_dilated",
            dense(Conv { dilation: [1, 2, 3], margin: [0, 2, 1], ..plain }),
            &["x", "w", "bias"],
        ),
        (
            "dense_conv_patches",
            dense(Conv { bias: false, stride: [1, 4, 4], ..plain }),
            &["x", "w"],
        ),
        (
            "conv_transpose",
            Box::new(ConvTranspose {
                bias: true,
                stride: [1, 2, 3],
                dilation: [1, 2, 1],
                margin: [0, 1, 2],
                output_padding: [0, 1, 2],
            }),
            &["x", "w", "bias"],
        ),
        (
            "conv_transpose_patches",
            Box::new(ConvTranspose { bias: false, ..ConvTranspose::patches([1, 2, 2]) }),
            &["x", "w"],
        ),
        ("pool_mean", pool(Pooling::Mean), &["x"]),
        ("pool_max", pool(Pooling::Max), &["x"]),
        ("interpolate_nearest_finer", grid(Nearest, [1, 9, 12]), &["x"]),
        ("interpolate_nearest_coarser", grid(Nearest, [1, 3, 2]), &["x"]),
        ("interpolate_nearest_mixed", grid(Nearest, [1, 2, 11]), &["x"]),
        ("interpolate_linear_finer", grid(Straight, [1, 9, 12]), &["x"]),
        ("interpolate_linear_coarser", grid(Straight, [1, 3, 2]), &["x"]),
        ("interpolate_linear_mixed", grid(Straight, [1, 2, 11]), &["x"]),
        ("volume_conv", dense(Conv::same([3, 1, 5], Padding::Zero)), &["x", "w", "bias"]),
        (
            "volume_conv_periodic",
            dense(Conv { stride: [2, 1, 3], ..Conv::same([3, 3, 3], Padding::Periodic) }),
            &["x", "w", "bias"],
        ),
        (
            "volume_conv_dilated",
            dense(Conv { bias: false, dilation: [3, 1, 2], margin: [1, 0, 1], ..plain }),
            &["x", "w"],
        ),
        (
            "volume_conv_transpose",
            Box::new(ConvTranspose {
                bias: true,
                stride: [2, 1, 3],
                dilation: [1, 2, 1],
                margin: [1, 0, 2],
                output_padding: [1, 0, 1],
            }),
            &["x", "w", "bias"],
        ),
        (
            "volume_conv_transpose_patches",
            Box::new(ConvTranspose { bias: false, ..ConvTranspose::patches([2, 2, 2]) }),
            &["x", "w"],
        ),
        ("volume_pool_mean", boxes(Pooling::Mean), &["x"]),
        ("volume_pool_max", boxes(Pooling::Max), &["x"]),
        ("volume_interpolate_nearest_finer", grid(Nearest, [4, 9, 5]), &["x"]),
        ("volume_interpolate_trilinear_finer", grid(Straight, [4, 9, 5]), &["x"]),
        ("volume_interpolate_nearest_mixed", grid(Nearest, [5, 2, 4]), &["x"]),
        ("volume_interpolate_trilinear_mixed", grid(Straight, [5, 2, 4]), &["x"]),
        ("group_norm", group(3, true, Silu), &["x", "w", "b"]),
        ("instance_norm", group(5, false, Identity), &["x"]),
        ("embedding", Box::new(Embedding), &["table", "index"]),
        ("swiglu", Box::new(SwiGlu), &["a", "b"]),
        ("rotary", rotary(false), &["x", "table"]),
        ("rotary_normalized", rotary(true), &["x", "table", "w"]),
        ("cross_entropy", Box::new(CrossEntropy::default()), &["x", "target"]),
        (
            "cross_entropy_smoothed",
            Box::new(CrossEntropy { ignore: -100, smoothing, gamma: 0.0 }),
            &["x", "target"],
        ),
        ("cross_entropy_weighted", Box::new(CrossEntropy::default()), &["x", "target", "w"]),
        ("cross_entropy_focal", Box::new(focal), &["x", "target", "w"]),
        ("residual_plain", Box::new(Binary::Add), &["x", "y"]),
        ("residual_scaled", Box::new(Residual::Scaled), &["x", "y", "s"]),
        ("residual_gated", Box::new(Residual::Gated { gain: 1 }), &["x", "y", "m"]),
        ("matmul", Box::new(MatMul), &["m", "x"]),
        ("matmul_constant", Box::new(MatMul), &["m", "x"]),
        ("relative_error", Box::new(relative), &["p", "t"]),
        ("squared_error", Box::new(SquaredError), &["p", "t", "w", "v"]),
        ("mean_squared_error", Box::new(SquaredError), &["p", "t", "w", "v"]),
        ("vector_norm", Box::new(root), &["x"]),
        ("vector_norm_squared", Box::new(VectorNorm::Squared), &["x"]),
        ("weighted_sum", Box::new(WeightedSum(weights.to_vec())), &["a", "b"]),
    ]
}

#[test]
fn ops_and_their_gradients() {
    let golden = Golden::read();
    let names = golden.names();
    for (name, op, inputs) in rows(&golden) {
        let constant = |input: &str| !names.contains(&format!("{name}/d{input}"));
        let tensors: Vec<Tensor> =
            inputs.iter().map(|i| golden.tensor(&format!("{name}/{i}"))).collect();
        let drawn = |i: &str| if constant(i) { Draw::Constant } else { Draw::Normal };
        let shapes = inputs.iter().zip(&tensors).map(|(i, x)| (x.shape().to_vec(), drawn(i)));
        let case = Case { op, inputs: shapes.collect(), operations: 0 };
        for dtype in [Dtype::F64, Dtype::F32] {
            let x = case.inputs_in(&tensors, dtype);
            let dout = golden.tensor(&format!("{name}/dout")).to_dtype(dtype);
            let (out, gradients) = run(&case, &x, &dout, None);
            agree(name, &out, &golden.tensor(&format!("{name}/out")));
            for (input, gradient) in inputs.iter().zip(gradients) {
                assert_eq!(gradient.is_none(), constant(input), "{name}/d{input}");
                let Some(gradient) = gradient else { continue };
                let what = format!("{name}/d{input}");
                agree(&what, &gradient, &golden.tensor(&what));
            }
        }
    }
}

#[test]
fn every_op_and_value_of_the_file_is_compared() {
    let golden = Golden::read();
    let rows = rows(&golden);
    // A cast is the rounding of `half`, whose tests have it; the masks of dropout are our own; hyper-connections have their
    // own test, and so have compositions of other ops: the cross entropy of a linear layer, and frozen linear layers, whose
    // weights are compared with bitsandbytes.
    let ours = |op: &str| {
        ["cast", "dropout", "linear_cross_entropy", "frozen_linear"].contains(&op)
            || op.contains("hyper_")
    };
    for (op, _) in tensor::ops::ALL.iter().filter(|(op, _)| !ours(op)) {
        assert!(rows.iter().any(|(_, row, _)| row.name() == *op), "{op} has no golden numbers");
    }
    // The layer in lib/learn reads those of spectral convolutions.
    let is_op = |name: &&str| !name.starts_with("spectral_conv_");
    for name in golden.names().iter().filter_map(|n| n.strip_suffix("/out")).filter(is_op) {
        assert!(rows.iter().any(|(row, ..)| *row == name), "{name} is not compared");
    }
}
