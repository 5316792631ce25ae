//! The crate on real files.

mod burgers;
mod common;
mod coordinates;
mod faults;
mod fields;
mod formats;
mod generation;
mod golden;
mod groups;
mod imports;
mod latents;
mod layouts;
mod leaks;
mod orders;
mod provenance;
mod solvers;
mod splits;
