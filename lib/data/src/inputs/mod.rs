//! Verifies that input files still have the content that their manifest or index recorded.
//!
//! A [`Verifier`] hashes files on one background thread, so that other work need not wait for it. The result is stored
//! with the file's inode, size, mtime and ctime: while these do not change, the file is not read again, neither by this
//! process nor, through a small cache file, by the next one. The device number is not compared because it differs
//! between mounts of the same network file system. Only [`verify_all`], which always reads everything, detects
//! corruption that changes no metadata, such as that of a failing disk.

mod verifier;

pub use verifier::{Summary, Verifier};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use unix::publish::hash_file_while;
use unix::{Error, Result, small};

/// An input file and its expected hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// The file.
    pub path: PathBuf,
    /// BLAKE3 hash of its content, in hexadecimal.
    pub blake3: String,
    /// The file that recorded the hash, e.g. `split.json`.
    pub recorded_in: String,
    /// Advice in the error message if the content has changed.
    pub remedy: String,
}

impl InputFile {
    /// A small file that was read completely at startup and had this hash then.
    pub fn read_at_start(path: &Path, blake3: &str) -> Self {
        Self {
            path: path.into(),
            blake3: blake3.into(),
            recorded_in: "the one read at the start".into(),
            remedy: "restore it, or start again with the new one".into(),
        }
    }
}

/// A cache entry: a file whose content was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verified {
    blake3: String,
    /// [`fingerprint`] of the file.
    metadata: String,
    /// Whether any later change of the content must change the metadata too.
    settled: bool,
}

/// Timestamps have a coarser resolution than writes, so a file that was just changed may change again with the same
/// metadata. File systems with timestamps in whole seconds need more than one second.
const TIMESTAMP_SLACK: Duration = Duration::from_secs(2);
/// Maximum number of attempts to hash a file whose metadata changes while it is read.
const TRIES: usize = 3;

/// Reads and hashes every input regardless of its metadata. Returns one error per file whose content differs from the
/// recorded one.
pub fn verify_all(inputs: &[InputFile]) -> Vec<Error> {
    let unique: BTreeMap<_, _> = inputs.iter().map(|input| (key(input), input)).collect();
    let verify = |input: &InputFile| {
        let seen = Seen::now(&metadata(&input.path)?);
        verify(input, &seen, &|_| true)
    };
    unique.into_values().filter_map(|input| verify(input).err()).collect()
}

/// The current metadata of a file, and when this process first saw them.
#[derive(Clone, Debug)]
struct Seen {
    /// [`fingerprint`] of the file.
    metadata: String,
    /// Size of the file in bytes.
    bytes: u64,
    at: Instant,
}

impl Seen {
    fn now(found: &Metadata) -> Self {
        Self { metadata: fingerprint(found), bytes: found.size(), at: Instant::now() }
    }
}

/// Whether any later change to the file must change its metadata. True if its ctime is old. Because the clock of a file
/// server may be ahead of this machine's, it is also true if the metadata have not changed for some time: the server's
/// clock had already reached the ctime when they were first seen.
fn is_settled(found: &Metadata, now: SystemTime, unchanged_for: Duration) -> bool {
    unchanged_for > TIMESTAMP_SLACK
        || changed(found).is_some_and(|time| time + TIMESTAMP_SLACK < now)
}

/// Hashes a file and compares the hash with the expected one. Calls `proceed` with the number of bytes read, like
/// [`hash_file_while`]. Returns the file's cache entry and its size in bytes.
fn verify(
    input: &InputFile,
    seen: &Seen,
    proceed: &dyn Fn(u64) -> bool,
) -> Result<(Verified, u64)> {
    let path = &input.path;
    for _ in 0..TRIES {
        let (before, started) = (metadata(path)?, SystemTime::now());
        let is_same = fingerprint(&before) == seen.metadata;
        let unchanged_for = if is_same { seen.at.elapsed() } else { Duration::ZERO };
        let settled = is_settled(&before, started, unchanged_for);
        unix::fail::point("inputs.hash").map_err(|cause| Error::io(path, cause))?;
        let blake3 = hash_file_while(path, proceed)?;
        let after = fingerprint(&metadata(path)?);
        if fingerprint(&before) != after {
            continue;
        }
        if blake3 != input.blake3 {
            let InputFile { blake3: expected, recorded_in, remedy, .. } = input;
            return Err(Error::data(format!(
                "{}: the content has changed: its BLAKE3 is {blake3}, but {recorded_in} has {expected}; {remedy}",
                path.display()
            )));
        }
        return Ok((Verified { blake3, metadata: after, settled }, before.size()));
    }
    Err(Error::data(format!(
        "{}: another process is writing to it; wait until it is complete, then {}",
        path.display(),
        input.remedy
    )))
}

/// Returns the metadata of a regular file. Errors: 66.
fn metadata(path: &Path) -> Result<Metadata> {
    small::require_file(path)?;
    std::fs::metadata(path).map_err(|cause| Error::open(path, cause))
}

/// Returns a text that changes whenever the file is replaced or written to. The values are not stored as numbers
/// because JSON would lose nanoseconds.
fn fingerprint(found: &Metadata) -> String {
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

/// Returns the ctime of a file, when its content or metadata last changed; `None` before 1970.
fn changed(found: &Metadata) -> Option<SystemTime> {
    let [seconds, nanoseconds] = [found.ctime(), found.ctime_nsec()];
    let since = Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
    Some(UNIX_EPOCH + since)
}

fn key(input: &InputFile) -> String {
    let path = std::path::absolute(&input.path).unwrap_or_else(|_| input.path.clone());
    path.to_string_lossy().into_owned()
}
