//! Differentiable ops, one folder each: `mod.rs` documents formula and shapes and lists the test cases, `cpu.rs` has
//! the CPU implementation, and `cuda.rs` launches the kernels in `NAME.cu`.

pub mod activation;
pub mod attention;
pub mod binary;
pub mod cast;
pub mod concat;
pub mod conv;
pub mod conv_transpose;
pub mod cross_entropy;
pub mod depthwise_conv;
pub mod dropout;
pub mod embedding;
pub mod frozen_linear;
mod grid;
pub mod group_norm;
pub mod hyper_connection;
pub mod interpolate;
pub mod linear;
pub mod linear_cross_entropy;
pub mod low_rank;
pub mod matmul;
pub mod narrow;
pub mod normalization;
pub mod permute;
pub mod pool;
pub mod reduce;
pub mod relative_error;
pub mod residual;
pub mod rotary;
pub mod scatter_add;
pub mod squared_error;
pub(crate) mod strided;
pub mod swiglu;
pub mod vector_norm;
pub mod weighted_sum;

use crate::op::Case;

/// Name of an op and the function that returns its test cases.
pub type Entry = (&'static str, fn() -> Vec<Case>);

/// All ops with their test cases.
pub const ALL: &[Entry] = &[
    ("activation", activation::cases),
    ("adaln", normalization::adaln_cases),
    ("attention", attention::cases),
    ("binary", binary::cases),
    ("cast", cast::cases),
    ("concat", concat::cases),
    ("conv", conv::cases),
    ("conv_transpose", conv_transpose::cases),
    ("cross_entropy", cross_entropy::cases),
    ("depthwise_conv", depthwise_conv::cases),
    ("dropout", dropout::cases),
    ("embedding", embedding::cases),
    ("frozen_linear", frozen_linear::cases),
    ("group_norm", group_norm::cases),
    ("hyper_coefficients", hyper_connection::coefficient_cases),
    ("hyper_depth", hyper_connection::depth_cases),
    ("gated_hyper_depth", hyper_connection::gated_depth_cases),
    ("hyper_width", hyper_connection::width_cases),
    ("adaptive_hyper_width", hyper_connection::adaptive_width_cases),
    ("interpolate", interpolate::cases),
    ("layernorm", normalization::layernorm_cases),
    ("linear", linear::cases),
    ("linear_cross_entropy", linear_cross_entropy::cases),
    ("low_rank", low_rank::cases),
    ("narrow", narrow::cases),
    ("permute", permute::cases),
    ("pool", pool::cases),
    ("reduce", reduce::cases),
    ("relative_error", relative_error::cases),
    ("residual", residual::cases),
    ("gated_residual", residual::gated_cases),
    ("rmsnorm", normalization::rmsnorm_cases),
    ("rotary", rotary::cases),
    ("scatter_add", scatter_add::cases),
    ("squared_error", squared_error::cases),
    ("swiglu", swiglu::cases),
    ("matmul", matmul::cases),
    ("vector_norm", vector_norm::cases),
    ("weighted_sum", weighted_sum::cases),
];
