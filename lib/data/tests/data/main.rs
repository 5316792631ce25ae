//! The crate on real files.

mod burgers;
mod common;
mod faults;
mod fields;
mod latents;
mod splits;
