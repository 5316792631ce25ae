//! Runs in the formats of experiment trackers: TensorBoard, Weights & Biases, MLflow and CSV.
//!
//! [`Run::read`] turns a run directory into one curve without duplicates, and each format is a function of the
//! [`Run`]. The same run gives the same bytes, and a run that has grown gives bytes that begin with the old ones
//! (except in CSV), so exporting again appends what is new or replaces the file ([`Files::write`]).

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

pub use client::Client;
pub use evaluation::Evaluation;
pub use files::Files;
pub use mlflow::{Logged, log};
pub use run::{RecordedUpdate, Run, id};

/// What the user adds to a run.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Project of Weights & Biases, or experiment of MLflow.
    pub project: String,
    /// User or team that the project belongs to, for Weights & Biases.
    pub entity: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Remarks.
    pub notes: Option<String>,
    /// Name to show instead of the run id.
    pub name: Option<String>,
}

/// A format that consists of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// An event file.
    Tensorboard,
    /// A folder of an offline run.
    Wandb,
    /// Tables and pictures.
    Csv,
}

impl FileFormat {
    /// The files of a run, with paths below the output folder.
    pub fn files(self, run: &Run, labels: &Labels) -> unix::Result<Files> {
        match self {
            FileFormat::Tensorboard => Ok(tensorboard::files(run, labels)),
            FileFormat::Wandb => wandb::files(run, labels),
            FileFormat::Csv => csv::files(run, labels),
        }
    }
}
