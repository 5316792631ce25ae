//! The differentiable ops, a folder each: `mod.rs` holds the formula, the shapes and the cases,
//! `cpu.rs` the loops, `cuda.rs` and `NAME.cu` the kernels.

pub mod activation;
pub mod adaln;
pub mod attention;
pub mod cast;
pub mod conv;
pub mod cross_entropy;
pub mod depthwise_conv;
pub mod embedding;
pub mod interpolate;
pub mod layernorm;
pub mod linear;
pub mod pool;
pub mod relative_error;
pub mod residual;
pub mod rmsnorm;
pub mod softmax;
pub mod spectral_energy;
pub mod spectrum;
pub mod squared_error;
pub mod swiglu;
pub mod token_map;
pub mod weighted_sum;

use crate::op::Case;

/// Name of an op, and what makes its cases.
pub type Entry = (&'static str, fn() -> Vec<Case>);

/// Every op.
pub const ALL: &[Entry] = &[
    ("activation", activation::cases),
    ("adaln", adaln::cases),
    ("attention", attention::cases),
    ("cast", cast::cases),
    ("conv", conv::cases),
    ("cross_entropy", cross_entropy::cases),
    ("depthwise_conv", depthwise_conv::cases),
    ("embedding", embedding::cases),
    ("interpolate", interpolate::cases),
    ("layernorm", layernorm::cases),
    ("linear", linear::cases),
    ("pool", pool::cases),
    ("relative_error", relative_error::cases),
    ("residual", residual::cases),
    ("rmsnorm", rmsnorm::cases),
    ("softmax", softmax::cases),
    ("spectral_energy", spectral_energy::cases),
    ("spectrum", spectrum::cases),
    ("squared_error", squared_error::cases),
    ("swiglu", swiglu::cases),
    ("token_map", token_map::cases),
    ("weighted_sum", weighted_sum::cases),
];
