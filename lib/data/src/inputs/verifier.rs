//! Verification on a background thread, and its cache file.

use super::{InputFile, Seen, Verified, key, metadata, verify};
use crate::seal::SealedFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;
use unix::disk::Disk;
use unix::publish::Publisher;
use unix::{Error, Result};

/// Counts of the verification work done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Number of input files.
    pub files: usize,
    /// Files that this process hashed; a file hashed twice counts twice.
    pub hashed: usize,
    /// Total size of the hashed files in bytes.
    pub bytes: u64,
    /// Files that were verified from the cache without being read.
    pub cached: usize,
}

/// Verifies input files in the background.
#[derive(Debug)]
pub struct Verifier {
    inputs: Vec<InputFile>,
    cache: Option<(PathBuf, Arc<dyn Disk>)>,
    verified: BTreeMap<String, Verified>,
    seen: BTreeMap<String, Seen>,
    running: Option<Running>,
    summary: Summary,
}

/// The cache file.
#[derive(Serialize, Deserialize)]
struct Cache {
    files: BTreeMap<String, Verified>,
}

const FILE: SealedFile =
    SealedFile { format: "longhaul-inputs", version: 1, made_by: "longhaul", max_bytes: 256 << 20 };

#[derive(Debug)]
struct Running {
    results: Receiver<(String, Result<(Verified, u64)>)>,
    cancel: Arc<AtomicBool>,
    /// Bytes of the files to hash, and how many of them were read.
    bytes: u64,
    read: Arc<AtomicU64>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

impl Verifier {
    /// Starts to verify `inputs` on a background thread. Files that are in the file `cache` and have not changed are
    /// not read; a missing or unreadable cache counts as empty. The cache is written through the given [`Disk`]; a
    /// run's disk refuses writes once another process holds the run.
    ///
    /// Errors: 66 when a file is missing; 74 when no thread can be started.
    pub fn start(inputs: Vec<InputFile>, cache: Option<(PathBuf, Arc<dyn Disk>)>) -> Result<Self> {
        let verified = cache.as_ref().map(|(path, _)| read_cache(path)).unwrap_or_default();
        let inputs: BTreeMap<_, _> = inputs.into_iter().map(|input| (key(&input), input)).collect();
        let inputs: Vec<_> = inputs.into_values().collect();
        let summary = Summary { files: inputs.len(), ..Summary::default() };
        let seen = BTreeMap::new();
        let mut verifier = Self { inputs, cache, verified, seen, running: None, summary };
        let stale = verifier.stale()?;
        verifier.summary.cached = verifier.inputs.len() - stale.len();
        verifier.hash(stale)?;
        Ok(verifier)
    }

    /// Returns counts of the verification work done so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Collects the results of the background thread without waiting. Returns whether it has finished.
    ///
    /// Errors: 65 for a file whose content has changed, and read errors.
    pub fn poll(&mut self) -> Result<bool> {
        self.wait(|_| false)
    }

    /// Waits until every input is verified, then checks the metadata of all inputs and rehashes every file whose
    /// metadata have changed. Calls `keep_waiting` a few hundred times a second with the number of bytes hashed and the
    /// total number of bytes to hash; returns false as soon as it returns false.
    ///
    /// Errors: 65 for a file whose content has changed, 66 for a missing one, and read errors.
    pub fn wait_and_recheck(
        &mut self,
        mut keep_waiting: impl FnMut([u64; 2]) -> bool,
    ) -> Result<bool> {
        if !self.wait(&mut keep_waiting)? {
            return Ok(false);
        }
        let stale = self.stale()?;
        self.hash(stale)?;
        self.wait(keep_waiting)
    }

    /// Like [`wait_and_recheck`](Self::wait_and_recheck), for programs that may be interrupted: calls `check_stop`
    /// while waiting, and returns its error.
    pub fn finish(&mut self, mut check_stop: impl FnMut() -> Result<()>) -> Result<()> {
        let mut stop = Ok(());
        self.wait_and_recheck(|_| {
            stop = check_stop();
            stop.is_ok()
        })?;
        stop
    }

    /// Waits for the background thread as long as `keep_waiting` returns true. Returns whether it has finished.
    fn wait(&mut self, mut keep_waiting: impl FnMut([u64; 2]) -> bool) -> Result<bool> {
        while let Some(running) = &self.running {
            match running.results.try_recv() {
                Ok((key, result)) => {
                    let (verified, bytes) = result.inspect_err(|_| self.save())?;
                    self.summary.hashed += 1;
                    self.summary.bytes += bytes;
                    self.verified.insert(key, verified);
                }
                Err(TryRecvError::Disconnected) => {
                    self.running = None;
                    self.save();
                }
                Err(TryRecvError::Empty) => {
                    if !keep_waiting([running.read.load(Ordering::Relaxed), running.bytes]) {
                        return Ok(false);
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        Ok(true)
    }

    /// Returns the inputs that have no valid entry in the cache.
    fn stale(&mut self) -> Result<Vec<(InputFile, Seen)>> {
        let mut stale = Vec::new();
        for input in &self.inputs {
            let (key, now) = (key(input), Seen::now(&metadata(&input.path)?));
            let trusted = self.verified.get(&key).is_some_and(|known| {
                known.settled && known.metadata == now.metadata && known.blake3 == input.blake3
            });
            let seen = self.seen.entry(key).or_insert_with(|| now.clone());
            if seen.metadata != now.metadata {
                *seen = now;
            }
            if !trusted {
                stale.push((input.clone(), seen.clone()));
            }
        }
        Ok(stale)
    }

    /// Hashes files on a background thread.
    fn hash(&mut self, inputs: Vec<(InputFile, Seen)>) -> Result<()> {
        if inputs.is_empty() {
            return Ok(());
        }
        let (send, results) = channel();
        let bytes = inputs.iter().map(|(_, seen)| seen.bytes).sum();
        let (cancel, read) = (Arc::default(), Arc::default());
        let running =
            Running { results, cancel: Arc::clone(&cancel), bytes, read: Arc::clone(&read) };
        let work = move || hash_all(&inputs, &cancel, &read, &send);
        std::thread::Builder::new().name("verify".into()).spawn(work).map_err(|cause| {
            Error::new(unix::Exit::Io, format!("cannot start a thread to verify inputs: {cause}"))
        })?;
        self.running = Some(running);
        Ok(())
    }

    /// Writes the cache, even when only some inputs are verified. If that fails, the next start has to hash the files
    /// again.
    pub fn save(&self) {
        let Some((path, disk)) = &self.cache else { return };
        let of_inputs = self.inputs.iter().filter_map(|input| {
            let known = self.verified.get_key_value(&key(input))?;
            known.1.settled.then(|| (known.0.clone(), known.1.clone()))
        });
        let cache = Cache { files: of_inputs.collect() };
        if read_cache(path) == cache.files {
            return;
        }
        let publish = |text: String| Publisher::new(&**disk).bytes(path, text.as_bytes());
        if let Err(error) = FILE.text(&cache).and_then(publish) {
            unix::warn!("{error}; the next start will hash the input files again");
        }
    }
}

fn hash_all(
    inputs: &[(InputFile, Seen)],
    cancel: &AtomicBool,
    read: &AtomicU64,
    send: &Sender<(String, Result<(Verified, u64)>)>,
) {
    for (input, seen) in inputs {
        let before = read.load(Ordering::Relaxed);
        let result = verify(input, seen, &|count| {
            read.store(before + count, Ordering::Relaxed);
            !cancel.load(Ordering::Relaxed)
        });
        if cancel.load(Ordering::Relaxed) || send.send((key(input), result)).is_err() {
            return;
        }
    }
}

fn read_cache(path: &Path) -> BTreeMap<String, Verified> {
    FILE.read::<Cache>(path).map(|(cache, _)| cache.files).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::{TIMESTAMP_SLACK, changed, is_settled};
    use super::*;
    use std::time::{Instant, UNIX_EPOCH};

    #[test]
    fn a_future_ctime_is_trusted_once_the_file_was_unchanged_for_some_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, "data").unwrap();
        let found = metadata(&path).unwrap();
        let clocks = [changed(&found).unwrap() + 2 * TIMESTAMP_SLACK, UNIX_EPOCH];
        let settled = |unchanged_for| clocks.map(|now| is_settled(&found, now, unchanged_for));
        assert_eq!(settled(Duration::ZERO), [true, false]);
        assert_eq!(settled(TIMESTAMP_SLACK), [true, false]);
        assert_eq!(settled(2 * TIMESTAMP_SLACK), [true, true]);

        let input = InputFile::read_at_start(&path, &unix::publish::hash_file(&path).unwrap());
        let at = Instant::now().checked_sub(2 * TIMESTAMP_SLACK).unwrap();
        let seen = Seen { at, ..Seen::now(&found) };
        assert!(verify(&input, &seen, &|_| true).unwrap().0.settled);

        // The time counts from when the metadata were first seen, and restarts when they change.
        let mut verifier = Verifier::start(vec![input.clone()], None).unwrap();
        let first = verifier.seen[&key(&input)].at;
        assert!(verifier.wait_and_recheck(|_| true).unwrap());
        assert_eq!(verifier.seen[&key(&input)].at, first);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "data").unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, "data").unwrap();
        std::fs::rename(other, &path).unwrap();
        assert!(verifier.wait_and_recheck(|_| true).unwrap());
        assert!(verifier.seen[&key(&input)].at > first);
    }
}
