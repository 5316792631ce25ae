//! Data sets: PDE solvers, fields in HDF5, splits, statistics, checks, memory-mapped latents, and the
//! order in which training reads them. Knows no model.

// Files hold little-endian numbers and are read and mapped as they are.
const _: () = assert!(cfg!(target_endian = "little"));

pub mod audit;
pub mod check;
mod content;
pub mod divide;
pub mod field;
pub mod generate;
pub mod import;
pub mod index;
pub mod initial;
pub mod inputs;
pub mod latents;
pub mod list;
pub mod loader;
mod moments;
pub mod parameter;
pub mod provenance;
pub mod seal;
pub mod solvers;
pub mod split;
pub mod split_set;
pub mod stats;
pub mod write;
