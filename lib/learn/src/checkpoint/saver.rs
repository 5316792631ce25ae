//! Asynchronous saves: training copies the state to a snapshot, and a background thread writes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unix::disk::{Disk, RealDisk};
use unix::publish::Publisher;
use unix::{Error, Exit, Result, warn};

use super::image::Image;
use super::keep::{KeepRules, tidy};
use super::list::{folder_name, list};
use super::trash::remove_leftovers;
use super::write::{Files, ensure_room, step, write_on};
use super::{State, Tensors, snapshot};

/// Saves the checkpoints of a run, one at a time, concurrently with training.
///
/// A failed save leaves the older checkpoints unchanged. Dropping the saver waits for the save in progress.
#[derive(Debug)]
pub struct Saver {
    pub(super) to: Destination,
    running: Option<JoinHandle<Ended>>,
    /// Images of the last snapshot, kept to reuse their memory.
    spare: Vec<Image>,
    waits: u64,
}

/// Destination directory of the checkpoints, with its retention rules.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    pub rules: KeepRules,
    attempt: u64,
    log: Option<PathBuf>,
}

/// Memory of the snapshot and result of the save; None if the thread only reserved memory.
type Ended = (Vec<Image>, Option<Result<Done>>);

/// Cost of starting a save to the training loop.
#[derive(Debug)]
pub struct Saved {
    /// Total size of the tensors in bytes.
    pub bytes: u64,
    /// Time spent copying the snapshot.
    pub snapshot: Duration,
    /// Time spent waiting for the previous save.
    pub waited: Duration,
    /// Result of the previous save, unless [`Saver::poll`] has already returned it.
    pub previous: Option<Result<Done>>,
}

/// Result of a successful save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Path of the checkpoint.
    pub path: PathBuf,
    /// Updates completed.
    pub update: u64,
    /// Total size of the tensors in bytes.
    pub bytes: u64,
    /// Time from the start of the write until the checkpoint was durable under its final name.
    pub durable: Duration,
    /// Time from the start of the write until the checkpoint was verified and older ones were removed.
    pub took: Duration,
    /// Names of the checkpoints that were removed because no rule keeps them.
    pub removed: Vec<String>,
}

impl Saver {
    /// Saves checkpoints into `folder` (RUN/ckpt) as attempt number `attempt` of the run. Removes the leftovers of
    /// interrupted saves, so only the process that holds the run's lease may create a saver.
    ///
    /// Errors: 73 when the directory cannot be created, 66 when it cannot be read, 65 when an attempt number in it is
    /// too large.
    pub fn new(folder: &Path, rules: KeepRules, attempt: u64) -> Result<Self> {
        Self::on(Arc::new(RealDisk), folder, rules, attempt)
    }

    /// Like [`Saver::new`], but writes through `disk`.
    pub fn on(disk: Arc<dyn Disk>, folder: &Path, rules: KeepRules, attempt: u64) -> Result<Self> {
        Publisher::new(&*disk).create_folder(folder)?;
        remove_leftovers(&*disk, folder)?;
        // A later attempt counts as newer, so the number must be at least the highest known one even if the attempt
        // record was lost.
        let known = list(folder)?.iter().filter_map(|e| Some(e.manifest()?.attempt)).max();
        let attempt = match known {
            Some(known) if known > attempt => known.checked_add(1).ok_or_else(|| {
                let text = "the attempt number of a checkpoint is too large";
                Error::data(format!("{}: {text}", folder.display()))
            })?,
            _ => attempt,
        };
        let to = Destination { disk, folder: folder.into(), rules, attempt, log: None };
        Ok(Self { to, running: None, spare: Vec::new(), waits: 0 })
    }

    /// Fsyncs the run log before each checkpoint, so that a power failure does not lose records of updates that will
    /// not be repeated.
    pub fn with_log(mut self, log: PathBuf) -> Self {
        self.to.log = Some(log);
        self
    }

    /// Allocates the memory for snapshots of states like `state` on a background thread, so that the first save does
    /// not have to: writing to fresh memory is many times slower than copying. A save that starts in the meantime waits
    /// for it.
    ///
    /// Errors: 73 when there is not enough disk space for a checkpoint; 70 when a name cannot be stored.
    pub fn reserve(&mut self, state: &State) -> Result<()> {
        let target = self.to.folder.join(folder_name(state.update));
        ensure_room(&target, Files::Tensors(&state.tensors))?;
        self.collect();
        // The thread must not hold the tensors themselves: the next update would then have to copy them on write.
        let plans = snapshot::plans(&state.tensors)?;
        self.spare = Vec::new(); // free the old memory before allocating the new
        self.spawn(move || match plans.into_iter().map(Image::new).collect() {
            Ok(images) => (images, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        })
    }

    /// Starts a save of `state`: copies its tensors and writes them on a background thread. Waits first if the previous
    /// save is still in progress.
    ///
    /// Errors: when no thread can be started. The result of the save itself, including a lack of memory, is returned by
    /// [`Saver::poll`], [`Saved::previous`] and [`Saver::finish`].
    pub fn save(&mut self, mut state: State) -> Result<Saved> {
        let started = Instant::now();
        self.waits += u64::from(self.running.as_ref().is_some_and(|save| !save.is_finished()));
        let previous = self.collect();
        let waited = started.elapsed();
        let copied = Instant::now();
        let bytes = Files::Tensors(&state.tensors).bytes();
        let images = snapshot::take(&state.tensors, std::mem::take(&mut self.spare));
        state.tensors = Tensors::new(); // shared tensors would force training to copy them
        let snapshot = copied.elapsed();
        let to = self.to.clone();
        self.spawn(move || {
            let images = match images {
                Ok(images) => images,
                Err(error) => return (Vec::new(), Some(Err(error))),
            };
            if let Some(Err(cause)) = to.log.as_deref().map(|log| to.disk.sync_file(log)) {
                warn!("cannot fsync the log, which may lose records in a power cut: {cause}");
            }
            let done = to.save(&state, &images);
            (images, Some(done))
        })?;
        Ok(Saved { bytes, snapshot, waited, previous })
    }

    /// Returns the result of the last save, once and without blocking; None while it is in progress.
    pub fn poll(&mut self) -> Option<Result<Done>> {
        if self.running.as_ref()?.is_finished() { self.join() } else { None }
    }

    /// Waits for the save in progress and returns its result; None when there is none.
    pub fn finish(&mut self) -> Result<Option<Done>> {
        self.join().transpose()
    }

    /// Number of saves that had to wait for the previous one; if it grows, saves are too frequent for the disk.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    fn spawn(&mut self, work: impl FnOnce() -> Ended + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        self.running = Some(thread.map_err(|cause| Error::io(&self.to.folder, cause))?);
        Ok(())
    }

    /// Waits for the thread. A failed save is logged here as a warning; a lost lease is reported where the run ends.
    fn collect(&mut self) -> Option<Result<Done>> {
        let ended = self.join();
        if let Some(Err(error)) = &ended
            && error.exit != Exit::Again
        {
            warn!("checkpoint not saved: {error}");
        }
        ended
    }

    fn join(&mut self) -> Option<Result<Done>> {
        match self.running.take()?.join() {
            Ok((spare, done)) => {
                self.spare = spare;
                done
            }
            Err(_) => Some(Err(Error::bug("the checkpoint thread panicked"))),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.collect();
    }
}

impl Destination {
    fn save(&self, state: &State, images: &[Image]) -> Result<Done> {
        let started = Instant::now();
        let (disk, folder) = (&*self.disk, &self.folder);
        state.may_be_written()?;
        if !folder.exists() {
            // Probably removed by mistake; the state in memory can still be saved.
            warn!(
                "{} and all checkpoints in it have been removed; creating it again",
                folder.display()
            );
            Publisher::new(disk).create_folder(folder)?;
        }
        let files = Files::Images(images);
        let written = write_on(disk, folder, state, files, self.attempt);
        state.may_be_written()?; // a lost lease takes precedence over other errors and forbids removals
        let (path, durable) = written?;
        // The checkpoint is safe. Failed link updates and removals are retried at the next save.
        let removed = tidy(disk, folder, &self.rules, &path).unwrap_or_else(|error| {
            warn!("old checkpoints were not removed: {error}");
            Vec::new()
        });
        step("save.end", folder)?;
        let (bytes, took) = (files.bytes(), started.elapsed());
        Ok(Done { path, update: state.update, bytes, durable, took, removed })
    }
}
