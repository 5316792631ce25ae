//! Fields: PDE solvers, trajectory files in HDF5 and other formats, splits, statistics, checks, and memory-mapped
//! latents.

pub mod audit;
pub mod check;
pub(crate) mod content;
pub mod field;
pub mod generate;
pub mod import;
pub mod initial;
pub mod latents;
pub mod list;
pub mod parameter;
pub mod solvers;
pub mod split;
pub mod split_set;
pub mod stats;
pub mod write;
