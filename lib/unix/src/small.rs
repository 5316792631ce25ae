//! Small input files, whole: a manifest, an index, a record of a run.
//!
//! A path may lead to anything: a pipe would be waited for, a folder has poor words, and a file of
//! gigabytes under the name of a small one would fill the memory. None of them is opened.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{Error, Result, memory};

/// Memory for each byte of a file that is parsed: `[0,0,0]` has a number of 8 bytes in each 2, in a list that
/// may double.
const PARSED: u64 = 16;

/// Reads a regular file of at most `limit` bytes.
///
/// Errors: 66 when it is missing, unreadable or no regular file, 65 when it is larger or does not fit into
/// memory when parsed, 74.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let bytes = require_file(path)?;
    let large = |bytes: u64| {
        let path = path.display();
        Error::data(format!("{path}: {bytes} bytes, more than {limit}: not such a file"))
    };
    if bytes > limit {
        return Err(large(bytes));
    }
    memory::ensure(&format_args!("reading {}", path.display()), bytes.checked_mul(PARSED))?;
    let file = open(path)?;
    let mut content = Vec::with_capacity(bytes as usize);
    // It may grow while it is read.
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut content);
    read.map_err(|cause| Error::io(path, cause))?;
    if content.len() as u64 > limit { Err(large(content.len() as u64)) } else { Ok(content) }
}

/// Opens a regular file to read, without waiting for the other end of a pipe. Errors: 66.
pub fn open(path: &Path) -> Result<File> {
    require_file(path)?;
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    opened.map_err(|cause| Error::open(path, cause))
}

/// The size of a regular file; opening anything else might never end. Errors: 66.
pub fn require_file(path: &Path) -> Result<u64> {
    let found = fs::metadata(path).map_err(|cause| Error::open(path, cause))?;
    match found.is_file() {
        true => Ok(found.len()),
        false if found.is_dir() => Err(Error::open(path, "it is a folder; a file is wanted")),
        false => Err(Error::open(path, "no regular file")),
    }
}

/// Opens a file or a pipe without waiting for a pipe's writer: a pipe that has none reads as empty.
///
/// Errors: 66.
pub fn open_pipe(path: &Path) -> Result<File> {
    let nonblocking = OFlags::NONBLOCK;
    let mut options = File::options();
    let opened = options.read(true).custom_flags(nonblocking.bits() as i32).open(path);
    let file = opened.map_err(|cause| Error::open(path, cause))?;
    // From a writer that has the pipe open everything is read, however slow it is.
    let flags = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - nonblocking));
    flags.map_err(|cause| Error::open(path, cause))?;
    Ok(file)
}

/// The file of a name that was read from a file, in the folder of that file: none for a name that
/// leads anywhere else. Every such name goes through here.
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
