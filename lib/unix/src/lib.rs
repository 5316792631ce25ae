//! The Unix conventions of longhaul's programs: exit statuses, signals, time limits, atomic file writes, logs,
//! progress, and the shared parts of the command line. Nothing here depends on tensors, data sets or models.

pub mod budget;
pub mod cli;
pub mod config;
pub mod decimal;
pub mod diagnostics;
pub mod disk;
pub mod error;
pub mod examples;
pub mod fail;
pub mod foreign_keys;
mod generate;
pub mod host;
pub mod inputs;
pub mod lease;
pub mod limits;
pub mod log;
pub mod man;
pub mod memory;
pub mod out;
pub mod progress;
pub mod publish;
pub mod relative;
pub mod retry;
pub mod run_dir;
pub mod secrets;
pub mod signal;
pub mod site;
pub mod slurm;
pub mod small;
pub mod space;
pub mod status;
pub mod stream;
pub mod table;
pub mod terminal;
pub mod text;
pub mod time;
pub mod timekeep;
pub mod work;

pub use error::{Context, Error, Exit, Result};
