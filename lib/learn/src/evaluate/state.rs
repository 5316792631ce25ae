//! Stores the state of an evaluation so that the next attempt can resume it: `partial.json` holds the sums, and
//! `partial.losses` the losses so far as f64, to which new losses are appended.

use report::evaluation::Subject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use unix::publish::publish_bytes;
use unix::{Error, Result, small};

/// Maximum size in bytes of a file that is read.
const MAX_BYTES: u64 = 4 << 30;
/// Minimum interval between two saves, as a multiple of the duration of the last one.
const STORE_INTERVAL: u32 = 20;

/// Bounds the share of time spent saving: a save is due once the last one is [`STORE_INTERVAL`] times its duration ago.
#[derive(Debug)]
pub struct StoreTimer {
    last: Instant,
    /// Duration of the last save.
    took: Duration,
}

impl StoreTimer {
    /// The first save is due at once.
    pub fn new() -> Self {
        Self { last: Instant::now(), took: Duration::ZERO }
    }

    /// Whether a save is due.
    pub fn is_due(&self) -> bool {
        self.last.elapsed() >= STORE_INTERVAL * self.took
    }

    /// Records a save that started at `began` and has just finished.
    pub fn stored(&mut self, began: Instant) {
        (self.took, self.last) = (began.elapsed(), Instant::now());
    }
}

/// State files of one evaluation.
#[derive(Debug)]
pub struct StateFiles {
    path: PathBuf,
    losses: PathBuf,
    subject: String,
    /// Number of losses in the file.
    stored: usize,
    timer: StoreTimer,
}

#[derive(Serialize, Deserialize)]
struct Stored<S> {
    /// Hash of the evaluation subject.
    subject: String,
    state: S,
    /// Number of losses.
    losses: usize,
}

impl StateFiles {
    /// State files in `folder` for an evaluation of this subject.
    pub fn new(folder: &Path, subject: &Subject) -> Self {
        Self {
            path: folder.join("partial.json"),
            losses: folder.join("partial.losses"),
            subject: subject.hash(),
            stored: 0,
            timer: StoreTimer::new(),
        }
    }

    /// Loads the sums and losses of an earlier attempt at the same evaluation. Files that are damaged or belong to a
    /// different evaluation are ignored, and [`StateFiles::store`] replaces them.
    pub fn load<S: DeserializeOwned>(&mut self) -> Option<(S, Vec<f64>)> {
        let text = small::read(&self.path, MAX_BYTES).ok()?;
        let stored: Stored<S> = serde_json::from_slice(&text).ok()?;
        if stored.subject != self.subject {
            return None;
        }
        let bytes = match stored.losses {
            0 => Vec::new(),
            _ => small::read(&self.losses, MAX_BYTES).ok()?,
        };
        let own = bytes.get(..stored.losses.checked_mul(8)?)?;
        self.stored = stored.losses;
        Some((stored.state, own.as_chunks().0.iter().map(|x| f64::from_le_bytes(*x)).collect()))
    }

    /// Atomically stores the state and all losses so far. Unless `must` is set, it does nothing if the last save was
    /// too recent ([`StoreTimer`]). Returns whether the state was stored. Errors: 73, 74.
    pub fn store(&mut self, state: &impl Serialize, losses: &[f64], must: bool) -> Result<bool> {
        if !must && !self.timer.is_due() {
            return Ok(false);
        }
        let began = Instant::now();
        self.append(losses).map_err(|cause| Error::io(&self.losses, cause))?;
        let stored = Stored { subject: self.subject.clone(), state, losses: losses.len() };
        publish_bytes(&self.path, &serde_json::to_vec(&stored).map_err(Error::bug)?)?;
        self.timer.stored(began);
        Ok(true)
    }

    /// Appends new losses, overwriting any that an interrupted attempt wrote after its last stored state.
    fn append(&mut self, losses: &[f64]) -> std::io::Result<()> {
        let mut file =
            File::options().write(true).create(true).truncate(false).open(&self.losses)?;
        file.seek(SeekFrom::Start(8 * self.stored as u64))?;
        let bytes: Vec<u8> = losses[self.stored..].iter().flat_map(|x| x.to_le_bytes()).collect();
        file.write_all(&bytes)?;
        file.sync_data()?;
        self.stored = losses.len();
        Ok(())
    }

    /// Removes the files once the evaluation is complete. If this fails, the next evaluation replaces them.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path).and_then(|()| fs::remove_file(&self.losses));
    }
}
