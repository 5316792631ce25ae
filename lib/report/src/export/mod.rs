//! Exports runs in the formats of experiment trackers: TensorBoard, Weights & Biases, MLflow and CSV.
//!
//! [`Run::read`] turns a run directory into one curve without duplicates, and each format is a function of the [`Run`].
//! The same run gives the same bytes. If a run has grown, its bytes begin with the old ones (except in CSV), so
//! exporting again appends the new data or replaces the file ([`Files::write`]).

mod client;
mod csv;
mod evaluation;
mod files;
mod mlflow;
mod protobuf;
mod run;
mod tensorboard;
mod wandb;
mod wandb_log;
mod worst;

pub use client::Client;
pub use evaluation::Evaluation;
pub use files::Files;
pub use mlflow::{LoggedRun, log};
pub use run::{RecordedUpdate, Run, id};
pub use worst::WorstItems;

/// Labels that the user adds to a run.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Project of Weights & Biases, or experiment of MLflow.
    pub project: String,
    /// User or team that the project belongs to, for Weights & Biases.
    pub entity: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Notes.
    pub notes: Option<String>,
    /// Name to show instead of [`Run::name`].
    pub name: Option<String>,
}

/// A format that consists of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// An event file.
    Tensorboard,
    /// Folder of an offline run.
    Wandb,
    /// Tables and pictures.
    Csv,
}

impl FileFormat {
    /// Returns the files of a run, with paths below the output folder.
    pub fn files(self, run: &Run, labels: &Labels) -> unix::Result<Files> {
        match self {
            FileFormat::Tensorboard => Ok(tensorboard::files(run, labels)),
            FileFormat::Wandb => wandb::files(run, labels),
            FileFormat::Csv => csv::files(run, labels),
        }
    }
}
