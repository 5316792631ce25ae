//! The programs, run as users run them: one binary, a module for each topic. `cargo test --test programs -- stop::`
//! runs one of them. Those with a real SLURM are in tests/slurm.

mod ckpt;
mod codec;
mod common;
mod corrector;
#[cfg(feature = "failpoints")]
mod data_parallel;
mod decoder_memory;
mod device;
mod ds_prep;
mod equations;
mod errors;
mod evaluate;
#[cfg(feature = "failpoints")]
mod failpoints;
#[cfg(feature = "emu")]
mod gpu_checks;
mod hostile;
#[cfg(feature = "failpoints")]
mod hpo;
mod hpo_analysis;
#[cfg(feature = "failpoints")]
mod hpo_damage;
#[cfg(feature = "failpoints")]
mod hpo_errors;
#[cfg(feature = "failpoints")]
mod hpo_refit;
mod kernels;
mod man;
mod mixture;
mod moved;
mod power_cut;
mod record_options;
mod record_results;
mod records;
mod restart;
mod resume;
#[cfg(feature = "failpoints")]
mod sentences;
mod state;
mod stop;
#[cfg(feature = "failpoints")]
mod text;
#[cfg(feature = "failpoints")]
mod text_training;
mod timekeep;
mod tree;
mod two_dimensions;
mod volumes;
