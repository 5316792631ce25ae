//! The differentiable ops, a folder each: `mod.rs` holds the formula, the shapes and the cases,
//! `cpu.rs` the loops, `cuda.rs` and `NAME.cu` the kernels.

pub mod activation;
pub mod adaln;
pub mod attention;
pub mod binary;
pub mod cast;
pub mod concat;
pub mod conv;
pub mod cross_entropy;
pub mod depthwise_conv;
pub mod dropout;
pub mod embedding;
pub mod interpolate;
pub mod layernorm;
pub mod linear;
pub mod narrow;
pub mod permute;
pub mod pool;
pub mod reduce;
pub mod relative_error;
pub mod residual;
pub mod rmsnorm;
pub mod scatter_add;
pub mod softmax;
pub mod spectral_energy;
pub mod spectrum;
pub mod squared_error;
pub(crate) mod strided;
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
    ("binary", binary::cases),
    ("cast", cast::cases),
    ("concat", concat::cases),
    ("conv", conv::cases),
    ("cross_entropy", cross_entropy::cases),
    ("depthwise_conv", depthwise_conv::cases),
    ("dropout", dropout::cases),
    ("embedding", embedding::cases),
    ("interpolate", interpolate::cases),
    ("layernorm", layernorm::cases),
    ("linear", linear::cases),
    ("narrow", narrow::cases),
    ("permute", permute::cases),
    ("pool", pool::cases),
    ("reduce", reduce::cases),
    ("relative_error", relative_error::cases),
    ("residual", residual::cases),
    ("rmsnorm", rmsnorm::cases),
    ("scatter_add", scatter_add::cases),
    ("softmax", softmax::cases),
    ("spectral_energy", spectral_energy::cases),
    ("spectrum", spectrum::cases),
    ("squared_error", squared_error::cases),
    ("swiglu", swiglu::cases),
    ("token_map", token_map::cases),
    ("weighted_sum", weighted_sum::cases),
];
