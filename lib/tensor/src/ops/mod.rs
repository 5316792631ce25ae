//! The differentiable ops, a folder each: `mod.rs` holds the formula, the shapes and the cases,
//! `cpu.rs` the loops, `cuda.rs` and `NAME.cu` the kernels.

pub mod activation;
pub mod attention;
pub mod cast;
pub mod conv;
pub mod cross_entropy;
pub mod depthwise_conv;
pub mod embedding;
pub mod interpolate;
pub mod linear;
pub mod normalization;
pub mod pool;
pub mod relative_error;
pub mod residual;
pub mod squared_error;
pub mod swiglu;
pub mod token_map;
pub mod vector_norm;
pub mod weighted_sum;

use crate::op::Case;

/// Name of an op, and what makes its cases.
pub type Entry = (&'static str, fn() -> Vec<Case>);

/// Every op.
pub const ALL: &[Entry] = &[
    ("activation", activation::cases),
    ("adaln", normalization::adaln_cases),
    ("attention", attention::cases),
    ("cast", cast::cases),
    ("conv", conv::cases),
    ("cross_entropy", cross_entropy::cases),
    ("depthwise_conv", depthwise_conv::cases),
    ("embedding", embedding::cases),
    ("interpolate", interpolate::cases),
    ("layernorm", normalization::layernorm_cases),
    ("linear", linear::cases),
    ("pool", pool::cases),
    ("relative_error", relative_error::cases),
    ("residual", residual::cases),
    ("rmsnorm", normalization::rmsnorm_cases),
    ("squared_error", squared_error::cases),
    ("swiglu", swiglu::cases),
    ("token_map", token_map::cases),
    ("vector_norm", vector_norm::cases),
    ("weighted_sum", weighted_sum::cases),
];
