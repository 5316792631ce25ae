//! The crate on real files.

mod burgers;
mod common;
mod faults;
mod fields;
mod formats;
mod generation;
mod golden;
mod imports;
mod inputs;
mod latents;
mod layouts;
mod leaks;
mod orders;
mod solvers;
mod splits;
