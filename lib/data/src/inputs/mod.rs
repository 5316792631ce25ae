//! Verifies that input files still hold the bytes that their manifest or index recorded.
//!
//! A [`Verifier`] hashes on one background thread, so that a start does not wait for it. The result is kept
//! with the file's inode, size, mtime and ctime: while these stay the same the file is not read again, neither
//! by this process nor, through a small cache file, by the next one. The device number is left out because
//! it differs between the mounts of one network file system. Damage that changes no metadata, such as a
//! failing disk, is found by [`verify_all`], which always reads everything.

mod verifier;

pub use verifier::{Summary, Verifier};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use unix::publish::hash_file_while;
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
    pub remedy: String,
}

impl InputFile {
    /// A small file that was read as a whole when the program started, and had this hash then.
    pub fn read_at_start(path: &Path, blake3: &str) -> Self {
        Self {
            path: path.into(),
            blake3: blake3.into(),
            recorded_in: "the one read at the start".into(),
            remedy: "restore it, or start again with the new one".into(),
        }
    }
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

/// Timestamps are coarser than writes: a file changed this recently may be changed again without a trace in
/// its metadata. File systems with timestamps of whole seconds need more than one.
const TIMESTAMP_SLACK: Duration = Duration::from_secs(2);
/// Attempts at a file whose metadata change while it is hashed.
const TRIES: usize = 3;

/// Reads and hashes every input, whatever its metadata: the errors, one for each file that is not what was
/// recorded.
pub fn verify_all(inputs: &[InputFile]) -> Vec<Error> {
    let unique: BTreeMap<_, _> = inputs.iter().map(|input| (key(input), input)).collect();
    let cancel = AtomicBool::new(false);
    let verify = |input: &InputFile| {
        let seen = Seen::now(&metadata(&input.path)?);
        verify(input, &seen, &cancel)
    };
    unique.into_values().filter_map(|input| verify(input).err()).collect()
}

/// When a file was first seen with its present metadata.
#[derive(Clone, Debug)]
struct Seen {
    /// [`identity`] of the file.
    metadata: String,
    at: Instant,
}

impl Seen {
    fn now(found: &Metadata) -> Self {
        Self { metadata: identity(found), at: Instant::now() }
    }
}

/// Whether a change of the file from now on must show in its metadata. It must where its ctime is old. The
/// clock of a file server may be ahead of this machine's; then it must where the metadata have been the same
/// for some time: when they were first seen, the server's clock had reached the ctime already.
fn is_settled(found: &Metadata, now: SystemTime, unchanged_for: Duration) -> bool {
    unchanged_for > TIMESTAMP_SLACK
        || changed(found).is_some_and(|time| time + TIMESTAMP_SLACK < now)
}

/// Hashes one file and compares: what is now known of it, and its bytes.
fn verify(input: &InputFile, seen: &Seen, cancel: &AtomicBool) -> Result<(Verified, u64)> {
    let path = &input.path;
    for _ in 0..TRIES {
        let (before, started) = (metadata(path)?, SystemTime::now());
        let is_same = identity(&before) == seen.metadata;
        let unchanged_for = if is_same { seen.at.elapsed() } else { Duration::ZERO };
        let settled = is_settled(&before, started, unchanged_for);
        unix::fail::point("inputs.hash").map_err(|cause| Error::io(path, cause))?;
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
