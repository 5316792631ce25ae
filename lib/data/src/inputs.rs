//! Verifies that input files still hold the bytes that their manifest or index recorded.
//!
//! A [`Verifier`] hashes on one background thread, so that a start does not wait for it. The result is kept
//! with the file's inode, size, mtime and ctime: while these stay the same the file is not read again, neither
//! by this process nor, through a small cache file, by the next one. The device number is left out because
//! it differs between the mounts of one network file system. Damage that changes no metadata, such as a
//! failing disk, is found by [`verify_all`], which always reads everything.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use unix::publish::{hash_file_while, publish_bytes};
use unix::{Error, Result, small};

/// An input file and the hash that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// The file.
    pub path: PathBuf,
    /// BLAKE3 of its content, in hexadecimal.
    pub blake3: String,
    /// Where that hash comes from, e.g. `split.json`.
    pub recorded_in: String,
    /// What to do about another content.
    pub remedy: &'static str,
}

impl InputFile {
    /// A small file that was read as a whole when the program started, and had this hash then.
    pub fn read_at_start(path: &Path, blake3: &str) -> Self {
        Self {
            path: path.into(),
            blake3: blake3.into(),
            recorded_in: "the one read at the start".into(),
            remedy: "restore it, or start again with the new one",
        }
    }
}

/// What verification has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Input files.
    pub files: usize,
    /// Files that were read and hashed by this process, repeats included.
    pub hashed: usize,
    /// Bytes of those.
    pub bytes: u64,
    /// Files that the cache vouched for.
    pub cached: usize,
}

/// Verifies input files in the background.
#[derive(Debug)]
pub struct Verifier {
    inputs: Vec<InputFile>,
    cache: Option<PathBuf>,
    verified: BTreeMap<String, Verified>,
    running: Option<Running>,
    summary: Summary,
}

/// A file whose content was verified, as it is in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verified {
    blake3: String,
    /// [`identity`] of the file.
    metadata: String,
    /// Whether a later change of the content must show in the metadata.
    #[serde(skip, default = "yes")]
    settled: bool,
}

fn yes() -> bool {
    true
}

/// The cache file.
#[derive(Serialize, Deserialize)]
struct Cache {
    format: String,
    version: u32,
    files: BTreeMap<String, Verified>,
}

const FORMAT: &str = "longhaul-inputs";
const VERSION: u32 = 1;
/// Largest cache file, in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Timestamps are coarser than writes: a file changed this recently may be changed again without a trace in
/// its metadata. File systems with timestamps of whole seconds need more than one.
const TIMESTAMP_SLACK: Duration = Duration::from_secs(2);
/// Attempts at a file whose metadata change while it is hashed.
const TRIES: usize = 3;

#[derive(Debug)]
struct Running {
    results: Receiver<(String, Result<(Verified, u64)>)>,
    cancel: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

impl Verifier {
    /// Starts to verify `inputs` on a background thread. Files that `cache` vouches for are not read; a cache
    /// that is missing or unreadable vouches for none.
    ///
    /// Errors: 66 when a file is missing; 74 when no thread can be started.
    pub fn start(inputs: Vec<InputFile>, cache: Option<PathBuf>) -> Result<Self> {
        let verified = cache.as_deref().map(read_cache).unwrap_or_default();
        let inputs: BTreeMap<_, _> = inputs.into_iter().map(|input| (key(&input), input)).collect();
        let inputs: Vec<_> = inputs.into_values().collect();
        let summary = Summary { files: inputs.len(), ..Summary::default() };
        let mut verifier = Self { inputs, cache, verified, running: None, summary };
        let stale = verifier.stale()?;
        verifier.summary.cached = verifier.inputs.len() - stale.len();
        verifier.hash(stale)?;
        Ok(verifier)
    }

    /// What verification has cost so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Takes in what the background thread has found, without waiting; whether it has finished.
    ///
    /// Errors: 65 for a file with another content, and those of reading.
    pub fn poll(&mut self) -> Result<bool> {
        self.wait(|| false)
    }

    /// Waits until every input is verified and looks at the metadata of all; a file whose metadata changed
    /// is hashed again. False when `keep_waiting`, which is asked a few times a second, returned false first.
    ///
    /// Errors: 65 for a file with another content, 66 for a missing one, and those of reading.
    pub fn settle(&mut self, mut keep_waiting: impl FnMut() -> bool) -> Result<bool> {
        if !self.wait(&mut keep_waiting)? {
            return Ok(false);
        }
        let stale = self.stale()?;
        self.hash(stale)?;
        self.wait(keep_waiting)
    }

    /// As [`settle`](Self::settle), for programs that may stop at any time: `go_on` is asked a few times a second,
    /// and its error ends the wait.
    pub fn finish(&mut self, mut go_on: impl FnMut() -> Result<()>) -> Result<()> {
        let mut stop = Ok(());
        self.settle(|| {
            stop = go_on();
            stop.is_ok()
        })?;
        stop
    }

    /// Waits for the background thread while `keep_waiting`.
    fn wait(&mut self, mut keep_waiting: impl FnMut() -> bool) -> Result<bool> {
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
                Err(TryRecvError::Empty) if keep_waiting() => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(TryRecvError::Empty) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The inputs that nothing vouches for.
    fn stale(&self) -> Result<Vec<InputFile>> {
        let mut stale = Vec::new();
        for input in &self.inputs {
            let now = identity(&metadata(&input.path)?);
            let known = self.verified.get(&key(input));
            let trusted = known.is_some_and(|known| {
                known.settled && known.metadata == now && known.blake3 == input.blake3
            });
            if !trusted {
                stale.push(input.clone());
            }
        }
        Ok(stale)
    }

    /// Hashes files on a background thread.
    fn hash(&mut self, inputs: Vec<InputFile>) -> Result<()> {
        if inputs.is_empty() {
            return Ok(());
        }
        let (send, results) = channel();
        let cancel = Arc::new(AtomicBool::new(false));
        let running = Running { results, cancel: Arc::clone(&cancel) };
        let work = move || hash_all(&inputs, &cancel, &send);
        std::thread::Builder::new().name("verify".into()).spawn(work).map_err(|cause| {
            Error::new(unix::Exit::Io, format!("cannot start a thread to verify inputs: {cause}"))
        })?;
        self.running = Some(running);
        Ok(())
    }

    /// Writes the cache, which also holds what is verified when not all is. A cache that cannot be written
    /// costs time at the next start and nothing else.
    pub fn save(&self) {
        let Some(path) = &self.cache else { return };
        let of_inputs = self.inputs.iter().filter_map(|input| {
            let known = self.verified.get_key_value(&key(input))?;
            known.1.settled.then(|| (known.0.clone(), known.1.clone()))
        });
        let cache = Cache { format: FORMAT.into(), version: VERSION, files: of_inputs.collect() };
        if read_cache(path) == cache.files {
            return;
        }
        let text = serde_json::to_vec_pretty(&cache).map_err(Error::bug);
        if let Err(error) = text.and_then(|text| publish_bytes(path, &text)) {
            unix::warn!("{error}; input files will be hashed again at the next start");
        }
    }
}

/// Reads and hashes every input, whatever its metadata: the errors, one for each file that is not what was
/// recorded.
pub fn verify_all(inputs: &[InputFile]) -> Vec<Error> {
    let unique: BTreeMap<_, _> = inputs.iter().map(|input| (key(input), input)).collect();
    let cancel = AtomicBool::new(false);
    unique.into_values().filter_map(|input| verify(input, &cancel).err()).collect()
}

fn hash_all(
    inputs: &[InputFile],
    cancel: &AtomicBool,
    send: &Sender<(String, Result<(Verified, u64)>)>,
) {
    for input in inputs {
        let result = verify(input, cancel);
        if cancel.load(Ordering::Relaxed) || send.send((key(input), result)).is_err() {
            return;
        }
    }
}

/// Hashes one file and compares: what is now known of it, and its bytes.
fn verify(input: &InputFile, cancel: &AtomicBool) -> Result<(Verified, u64)> {
    let path = &input.path;
    for _ in 0..TRIES {
        let (before, started) = (metadata(path)?, SystemTime::now());
        let go_on = || !cancel.load(Ordering::Relaxed);
        let blake3 = hash_file_while(path, &go_on)?;
        let after = identity(&metadata(path)?);
        if identity(&before) != after {
            continue;
        }
        if blake3 != input.blake3 {
            return Err(Error::data(format!(
                "{}: the content has changed: its BLAKE3 is {blake3}, but {} has {}; {}",
                path.display(),
                input.recorded_in,
                input.blake3,
                input.remedy
            )));
        }
        let settled = changed(&before).is_some_and(|time| time + TIMESTAMP_SLACK < started);
        return Ok((Verified { blake3, metadata: after, settled }, before.size()));
    }
    Err(Error::data(format!(
        "{}: another process writes to it; wait until it is complete, then {}",
        path.display(),
        input.remedy
    )))
}

/// Metadata of a regular file. Errors: 66.
fn metadata(path: &Path) -> Result<Metadata> {
    small::require_file(path)?;
    std::fs::metadata(path).map_err(|cause| Error::open(path, cause))
}

/// What changes whenever a file is replaced or written to. As text, because JSON numbers lose nanoseconds.
fn identity(found: &Metadata) -> String {
    format!(
        "inode {}, {} bytes, mtime {}.{:09}, ctime {}.{:09}",
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec()
    )
}

/// When a file was last changed, its metadata included. None before 1970.
fn changed(found: &Metadata) -> Option<SystemTime> {
    let [seconds, nanoseconds] = [found.ctime(), found.ctime_nsec()];
    let since = Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
    Some(UNIX_EPOCH + since)
}

fn key(input: &InputFile) -> String {
    let path = std::path::absolute(&input.path).unwrap_or_else(|_| input.path.clone());
    path.to_string_lossy().into_owned()
}

fn read_cache(path: &Path) -> BTreeMap<String, Verified> {
    let cache = small::read(path, MAX_BYTES).ok();
    let cache = cache.and_then(|bytes| serde_json::from_slice::<Cache>(&bytes).ok());
    let ours = cache.filter(|cache| cache.format == FORMAT && cache.version == VERSION);
    ours.map(|cache| cache.files).unwrap_or_default()
}
