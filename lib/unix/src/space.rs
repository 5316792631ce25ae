//! Checks free disk space and inodes before a large file is written, and whether a file system is writable.

use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::{Error, Result};

/// Fails (73) if the file system of `path` has less than 1.2 times `bytes` free for this user. A file system that does
/// not report its size is trusted; exceeded quotas show only when writing.
pub fn ensure_space(path: &Path, bytes: u64) -> Result<()> {
    let Ok(found) = rustix::fs::statvfs(nearest(path)) else { return Ok(()) };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let wanted = bytes.saturating_add(bytes / 5);
    if found.f_blocks == 0 || wanted <= free {
        return Ok(());
    }
    let [bytes, wanted, free] = [bytes, wanted, free].map(human_bytes);
    let why = format!("it takes {bytes} and needs {wanted} free, the file system has {free}");
    Err(Error::create(path, why))
}

/// Fails (73) if the file system of `path` has fewer than 1.2 times `files` free inodes.
pub fn ensure_files(path: &Path, files: u64) -> Result<()> {
    let Ok(found) = rustix::fs::statvfs(nearest(path)) else { return Ok(()) };
    let wanted = files.saturating_add(files.div_ceil(5));
    if found.f_files == 0 || wanted <= found.f_favail {
        return Ok(());
    }
    let has = found.f_favail;
    Err(Error::create(path, format!("it needs {wanted} inodes, the file system has {has}")))
}

/// Whether files cannot be created in `folder`, because permission is missing or its file system is mounted read-only.
pub fn is_read_only(folder: &Path) -> bool {
    matches!(access(folder, Access::WRITE_OK), Err(Errno::ROFS | Errno::ACCESS | Errno::PERM))
}

/// Returns the nearest existing ancestor of `path`; missing directories will be created on its file system.
fn nearest(path: &Path) -> &Path {
    let mut folder = parent(path);
    while !folder.exists() && folder != parent(folder) {
        folder = parent(folder);
    }
    folder
}

/// Returns the directory that contains `path`: `.` for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Formats a size for people: `3.4 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} PiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_disk_holds_is_refused_before_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        ensure_space(&path, 1).unwrap();
        let error = ensure_space(&path, u64::MAX / 2).unwrap_err();
        assert_eq!(error.exit, crate::Exit::CannotCreate);
        assert!(error.to_string().contains("large"), "{error}");
        // The parent directories need not exist yet.
        assert_eq!(nearest(&folder.path().join("a/b/c")), folder.path());
        assert_eq!(nearest(Path::new("no-such/a")), Path::new("."));
        assert!(ensure_space(&folder.path().join("a/b/c"), u64::MAX / 2).is_err());
    }

    #[test]
    fn sizes_read_well() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
            (1 << 60, "1024.0 PiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }
}
