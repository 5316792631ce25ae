//! Saving beside training: a snapshot, then a thread that writes it.

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

/// Saves the checkpoints of a run, one at a time, while training goes on.
///
/// A save that fails leaves the older checkpoints as they were. Dropping the saver waits for the save
/// that runs.
#[derive(Debug)]
pub struct Saver {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: PathBuf,
    pub(super) rules: KeepRules,
    /// The newest checkpoint at a multiple of this many updates stays; 0: none.
    pub(super) anchor: u64,
    attempt: u64,
    log: Option<PathBuf>,
    running: Option<JoinHandle<Ended>>,
    /// The last snapshot, for its memory.
    spare: Vec<Image>,
    waits: u64,
}

/// The memory of the snapshot, and how the save ended unless it only reserved.
type Ended = (Vec<Image>, Option<Result<Done>>);

/// A save that was begun: what it cost training.
#[derive(Debug)]
pub struct Saved {
    /// Bytes of the tensors.
    pub bytes: u64,
    /// How long the copy took.
    pub snapshot: Duration,
    /// How long the save before it was waited for.
    pub waited: Duration,
    /// How the save before it ended, unless [`Saver::poll`] told it already.
    pub previous: Option<Result<Done>>,
}

/// A save that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The checkpoint.
    pub path: PathBuf,
    /// Updates done.
    pub update: u64,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// From the snapshot until it was on the disk under its name.
    pub durable: Duration,
    /// From the snapshot until it was on the disk, verified, and older ones removed.
    pub took: Duration,
    /// Names of checkpoints that were removed because no rule keeps them.
    pub removed: Vec<String>,
}

impl Saver {
    /// A saver of checkpoints into `folder` (RUN/ckpt), for start number `attempt` of the run. What
    /// killed saves left there is removed: only the one writer of the run may make a saver.
    ///
    /// Errors: 73 when the folder cannot be made, 66 when it cannot be read, 65 when its attempts cannot be
    /// counted on.
    pub fn new(folder: &Path, rules: KeepRules, attempt: u64) -> Result<Self> {
        Self::on(Arc::new(RealDisk), folder, rules, attempt)
    }

    /// As [`Saver::new`], writing through `disk`.
    pub fn on(disk: Arc<dyn Disk>, folder: &Path, rules: KeepRules, attempt: u64) -> Result<Self> {
        Publisher::new(&*disk).create_folder(folder)?;
        remove_leftovers(&*disk, folder)?;
        // Newer is what a later attempt wrote, even when the record of attempts was lost.
        let known = list(folder)?.iter().filter_map(|e| Some(e.manifest()?.attempt)).max();
        let attempt = match known {
            Some(known) if known > attempt => known.checked_add(1).ok_or_else(|| {
                let text = "no attempt can follow that of the newest checkpoint";
                Error::data(format!("{}: {text}", folder.display()))
            })?,
            _ => attempt,
        };
        let (folder, log, running, spare) = (folder.into(), None, None, Vec::new());
        Ok(Self { disk, folder, rules, anchor: 0, attempt, log, running, spare, waits: 0 })
    }

    /// Keeps the newest checkpoint at a multiple of `updates` whatever the rules say: where a rewind
    /// will go.
    pub fn anchored(mut self, updates: u64) -> Self {
        self.anchor = updates;
        self
    }

    /// Makes the log of the run durable before each checkpoint, so that a power cut does not take what
    /// was said of updates that are not done again.
    pub fn with_log(mut self, log: PathBuf) -> Self {
        self.log = Some(log);
        self
    }

    /// Lets a thread take the memory for snapshots of states like `state`, so that the first save need
    /// not: fresh memory is many times slower than a copy. A save that comes earlier waits for it.
    ///
    /// Errors: 73 when there is no room for a checkpoint on the disk either, and 70.
    pub fn reserve(&mut self, state: &State) -> Result<()> {
        let target = self.folder.join(folder_name(state.update));
        ensure_room(&target, Files::Tensors(&state.tensors))?;
        self.collect();
        // Not the tensors themselves: holding them would make the next update copy them.
        let plans = snapshot::plans(&state.tensors)?;
        self.spare = Vec::new(); // before as much is taken again
        self.spawn(move || match plans.into_iter().map(Image::new).collect() {
            Ok(images) => (images, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        })
    }

    /// Begins a save of `state`: copies its tensors and lets a thread write them. When the save before
    /// still runs, it is waited for.
    ///
    /// Errors: when no thread can be started; how a save ended, also for want of memory, tell
    /// [`Saver::poll`], [`Saved::previous`] and [`Saver::finish`].
    pub fn save(&mut self, mut state: State) -> Result<Saved> {
        let started = Instant::now();
        self.waits += u64::from(self.running.as_ref().is_some_and(|save| !save.is_finished()));
        let previous = self.collect();
        let waited = started.elapsed();
        let copied = Instant::now();
        let bytes = Files::Tensors(&state.tensors).bytes();
        let images = snapshot::take(&state.tensors, std::mem::take(&mut self.spare));
        state.tensors = Tensors::new(); // training would have to copy what is shared
        let snapshot = copied.elapsed();
        let (disk, folder) = (Arc::clone(&self.disk), self.folder.clone());
        let (rules, anchor, attempt) = (self.rules.clone(), self.anchor, self.attempt);
        let log = self.log.clone();
        self.spawn(move || {
            let images = match images {
                Ok(images) => images,
                Err(error) => return (Vec::new(), Some(Err(error))),
            };
            if let Some(Err(cause)) = log.as_deref().map(|log| disk.sync_file(log)) {
                warn!("the log may lose records in a power cut: {cause}");
            }
            let done = save_now(&*disk, &folder, &rules, anchor, attempt, &state, &images);
            (images, Some(done))
        })?;
        Ok(Saved { bytes, snapshot, waited, previous })
    }

    /// How the last save ended, told once and without waiting; none while it runs.
    pub fn poll(&mut self) -> Option<Result<Done>> {
        if self.running.as_ref()?.is_finished() { self.join() } else { None }
    }

    /// Waits for the save that runs and tells how it ended; none when nothing ran.
    pub fn finish(&mut self) -> Result<Option<Done>> {
        self.join().transpose()
    }

    /// How often a save had to wait for the one before it: they come too fast for this disk.
    pub fn waits(&self) -> u64 {
        self.waits
    }

    fn spawn(&mut self, work: impl FnOnce() -> Ended + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        self.running = Some(thread.map_err(|cause| Error::io(&self.folder, cause))?);
        Ok(())
    }

    /// Waits; a save that failed is worth a warning here, where the caller looks at the next one. A lost lease
    /// is reported where the run ends.
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
            Err(_) => Some(Err(Error::bug("the thread that writes checkpoints died"))),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.collect();
    }
}

fn save_now(
    disk: &dyn Disk,
    folder: &Path,
    rules: &KeepRules,
    anchor: u64,
    attempt: u64,
    state: &State,
    images: &[Image],
) -> Result<Done> {
    let started = Instant::now();
    state.may_be_written()?;
    if !folder.exists() {
        // Somebody's mistake: what is in memory need not be lost for it.
        warn!("{} is gone, with all checkpoints in it; it is made again", folder.display());
        Publisher::new(disk).create_folder(folder)?;
    }
    let files = Files::Images(images);
    let written = write_on(disk, folder, state, files, attempt);
    state.may_be_written()?; // a lost run is the cause of other errors, and nothing of it may be removed
    let (path, durable) = written?;
    // The checkpoint is safe; links and the removal of old ones can be made up for at the next.
    let removed = tidy(disk, folder, rules, anchor, &path).unwrap_or_else(|error| {
        warn!("old checkpoints stay: {error}");
        Vec::new()
    });
    step("save.end", folder)?;
    let (bytes, took) = (files.bytes(), started.elapsed());
    Ok(Done { path, update: state.update, bytes, durable, took, removed })
}
