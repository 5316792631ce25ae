//! Reads small input files in full, such as a manifest, an index or a record of a run.
//!
//! A path may refer to anything: opening a pipe would block, the error for a directory is unhelpful, and a file of
//! several gigabytes would fill the memory. All of these are rejected without reading them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::de::DeserializeOwned;

use crate::{Error, Result, memory, retry};

/// Bytes of memory per byte of a parsed file: in `[0,0,0]`, every 2 bytes hold an 8-byte number, in a list that may
/// have doubled its capacity.
const PARSED: u64 = 16;

/// Reads a regular file of at most `limit` bytes.
///
/// Errors: 66 when it is missing, unreadable or not a regular file; 65 when it is too large, or does not fit into
/// memory when parsed; 74.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let bytes = require_file(path)?;
    let large = |bytes: u64| {
        let path = path.display();
        Error::data(format!(
            "{path}: {bytes} bytes is more than the limit of {limit} for such a file"
        ))
    };
    if bytes > limit {
        return Err(large(bytes));
    }
    memory::ensure(&format_args!("reading {}", path.display()), bytes.checked_mul(PARSED))?;
    // The file may grow while it is read.
    let content = read_all(path, limit.saturating_add(1))?;
    if content.len() as u64 > limit { Err(large(content.len() as u64)) } else { Ok(content) }
}

/// Reads the first `limit` bytes of a regular file. Errors: 66, 74.
pub fn read_all(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut opened = Some(open(path)?);
    let read = || {
        let file = opened.take().map_or_else(|| nonblocking(path), Ok)?;
        let mut content = Vec::with_capacity(file.metadata()?.len().min(limit) as usize);
        file.take(limit).read_to_end(&mut content)?;
        Ok(content)
    };
    retry::reading(path, read).map_err(|cause| Error::io(path, cause))
}

/// Reads a JSON file; returns `None` if there is no such file. Errors: 65 for a damaged file, with `advice` in the
/// message; those of [`read`].
pub fn read_json<T: DeserializeOwned>(path: &Path, limit: u64, advice: &str) -> Result<Option<T>> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    serde_json::from_slice(&read(path, limit)?)
        .map(Some)
        .map_err(|cause| Error::data(format!("{}: {cause}; {advice}", path.display())))
}

/// Opens a regular file for reading, without blocking on a pipe. Errors: 66.
pub fn open(path: &Path) -> Result<File> {
    require_file(path)?;
    retry::reading(path, || nonblocking(path)).map_err(|cause| Error::open(path, cause))
}

fn nonblocking(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Returns the size of a regular file. Opening anything else might block forever. Errors: 66.
pub fn require_file(path: &Path) -> Result<u64> {
    let found = fs::metadata(path).map_err(|cause| Error::open(path, cause))?;
    match found.is_file() {
        true => Ok(found.len()),
        false if found.is_dir() => Err(Error::open(path, "it is a directory; expected a file")),
        false => Err(Error::open(path, "not a regular file")),
    }
}

/// Opens a file or a pipe without waiting for a writer: a pipe without a writer reads as empty.
///
/// Errors: 66.
pub fn open_pipe(path: &Path) -> Result<File> {
    let nonblocking = OFlags::NONBLOCK;
    let mut options = File::options();
    let opened = options.read(true).custom_flags(nonblocking.bits() as i32).open(path);
    let file = opened.map_err(|cause| Error::open(path, cause))?;
    // Once a writer has opened the pipe, read everything, however slow the writer is.
    let flags = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - nonblocking));
    flags.map_err(|cause| Error::open(path, cause))?;
    Ok(file)
}

/// Returns the path of the file `name` in `folder`, where `name` was read from another file; `None` if it leads outside
/// the folder. Every name from a file is checked here.
pub fn inside(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut parts = Path::new(name).components();
    let plain = matches!(parts.next(), Some(Component::Normal(part)) if part == name);
    (plain && parts.next().is_none() && !name.contains('\0')).then(|| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    #[test]
    fn only_small_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().exit, Exit::Data);
        assert_eq!(read(folder.path(), 4).unwrap_err().exit, Exit::NoInput);
        assert_eq!(read(Path::new("/dev/zero"), 4).unwrap_err().exit, Exit::NoInput);
        File::options().write(true).open(&path).unwrap().set_len((4 << 30) + 1).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().exit, Exit::Data);
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read(&pipe, 4).unwrap_err().exit, Exit::NoInput);
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        assert_eq!(read(&folder.path().join("loop"), 4).unwrap_err().exit, Exit::NoInput);
    }

    #[test]
    fn names_stay_in_their_folder() {
        let folder = Path::new("a");
        for name in ["x", "x.safetensors", "two\nlines", "..x"] {
            assert_eq!(inside(folder, name), Some(folder.join(name)), "{name:?}");
        }
        for name in ["", ".", "..", "/x", "x/y", "../x", "x/", "./x", "x\0"] {
            assert_eq!(inside(folder, name), None, "{name:?}");
        }
    }
}
