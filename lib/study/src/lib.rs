//! Hyper-parameter search: search spaces, samplers, pruners, and studies whose trials are run by many workers.
//!
//! [`samplers::Sampler::suggest`] and [`pruners::Pruner::prunes`] are pure functions of the seed, the trial number and
//! the records read, so processes that have read the same records get the same result.
#![forbid(unsafe_code)]

pub mod ask;
pub mod claim;
pub mod config;
mod create;
pub mod import;
pub mod importance;
pub mod narrow;
pub mod optuna;
pub mod plot;
pub mod pruners;
pub mod record;
pub mod refit;
pub mod refit_report;
pub mod results;
pub mod samplers;
pub mod space;
pub mod study;
pub mod summary;
pub mod trial;
pub mod worker;

pub use config::StudyConfig;
pub use study::Study;
