//! `RUN/submit.json`: the command that submits a run, and the submitted jobs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::lease::Lease;
use crate::publish;
use crate::run_dir::RunDir;
use crate::{Error, Result, secrets, small};

/// Maximum size of the record in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Content of `submit.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Program and arguments, never passed to a shell: `sbatch` and its arguments.
    pub command: Vec<String>,
    /// The directory to submit from.
    pub folder: PathBuf,
    /// A file with variables for the command ([`crate::site`]), which is read at each submission.
    pub site: Option<PathBuf>,
    /// The variables for sbatch and longhaul at the time of `timekeep submit`, because cron has an empty
    /// environment; the site file overrides them.
    #[serde(default)]
    pub variables: Vec<(String, String)>,
    /// The submitted jobs, newest last.
    pub jobs: Vec<Job>,
    /// Whether `timekeep cron` should ignore the run.
    #[serde(default)]
    pub forgotten: bool,
}

/// A submitted job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// SLURM job id.
    pub id: String,
    /// Time of submission, UTC.
    pub time: String,
    /// Number of completed updates at the time of submission.
    pub update: u64,
    /// Whether the job was cancelled, by timekeep or according to SLURM, which soon forgets it.
    #[serde(default)]
    pub cancelled: bool,
}

/// Reads the record of a run; `None` if it was never submitted. Errors: 65, 66, 74.
pub fn read(run: &RunDir) -> Result<Option<Submission>> {
    let advice = "move it away and submit the run again";
    let found: Option<Submission> = small::read_json(&run.submission(), MAX_BYTES, advice)?;
    if let Some(found) = &found {
        secrets::register_words(&found.command);
    }
    Ok(found)
}

/// Replaces the record. Only its owner may read the file, because commands may contain secrets. Errors: 73, 74; 75 when
/// another process has started to submit the run.
pub fn write(run: &RunDir, submission: &Submission, lease: &Lease) -> Result<()> {
    lease.fence().check_now()?;
    let mut text = serde_json::to_vec_pretty(submission).map_err(Error::bug)?;
    text.push(b'\n');
    publish::REAL.private_bytes(&run.submission(), &text)
}
