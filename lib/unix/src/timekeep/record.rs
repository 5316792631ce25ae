//! `RUN/submit.json`: how a run is submitted, and the jobs that this gave.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::lease::Lease;
use crate::publish::publish_private;
use crate::run_dir::RunDir;
use crate::{Error, Result, secrets, small};

/// Largest record, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Content of `submit.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Program and arguments, never given to a shell: `sbatch` and its words.
    pub command: Vec<String>,
    /// The folder to submit from.
    pub folder: PathBuf,
    /// A file with variables for the command ([`crate::site`]), read each time.
    pub site: Option<PathBuf>,
    /// What sbatch and longhaul read of the environment at the time, for a cron that has none; the site file
    /// overrides it.
    #[serde(default)]
    pub variables: Vec<(String, String)>,
    /// The jobs it gave, the newest last.
    pub jobs: Vec<Job>,
    /// Whether `timekeep cron` is to leave the run alone.
    #[serde(default)]
    pub forgotten: bool,
}

/// A job of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// When it was submitted, UTC.
    pub time: String,
    /// Updates done at that time.
    pub update: u64,
    /// Whether it was cancelled: by timekeep, or SLURM said so, which soon forgets.
    #[serde(default)]
    pub cancelled: bool,
}

/// Reads the record of a run; nothing where it was never submitted. Errors: 65, 66, 74.
pub fn read(run: &RunDir) -> Result<Option<Submission>> {
    let path = run.submission();
    if std::fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    let found = serde_json::from_slice(&small::read(&path, MAX_BYTES)?);
    let found: Submission = found.map_err(|cause| {
        let path = path.display();
        Error::data(format!("{path}: {cause}; move it away and submit the run again"))
    })?;
    secrets::register_words(&found.command);
    Ok(Some(found))
}

/// Replaces the record, which only its owner may read: commands may hold secrets. Errors: 73, 74; 75 when another process submits the run by now.
pub fn write(run: &RunDir, submission: &Submission, lease: &Lease) -> Result<()> {
    lease.fence().look()?;
    let mut text = serde_json::to_vec_pretty(submission).map_err(Error::bug)?;
    text.push(b'\n');
    publish_private(&run.submission(), &text)
}
