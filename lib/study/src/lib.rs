//! Hyper-parameter search: the space of a study, what its trials have told, and which parameters to try next.
//!
//! A suggestion ([`samplers::Sampler::suggest`]) and a pruner's decision ([`pruners::Pruner::prunes`]) are functions of
//! the seed, the number of the trial and the records read, so any program that has read the same records finds the same.
#![forbid(unsafe_code)]

pub mod ask;
pub mod claim;
pub mod config;
mod create;
pub mod import;
pub mod importance;
pub mod narrow;
pub mod optuna;
pub mod pruners;
pub mod record;
pub mod refit;
pub mod results;
pub mod samplers;
pub mod space;
pub mod study;
pub mod summary;
pub mod trial;
pub mod worker;

pub use config::StudyConfig;
pub use study::Study;
