//! Tests of the crate on real files.

mod attributes;
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
mod inputs;
mod latents;
mod layouts;
mod leaks;
mod limits;
mod orders;
mod planted;
mod provenance;
mod solvers;
mod splits;
mod symmetries;
