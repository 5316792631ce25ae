//! The cache folder: private to the user, verified, bounded in size, and shared by any number of processes.
//!
//! There is no lock. Files are published atomically by a rename, the last of several writers wins (they
//! all write the same content), and readers verify the hash at the start of each file; a damaged file counts as
//! missing. The cached machine code runs with this user's rights, so the folder must belong to the user.

use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use unix::publish::{TEMPORARY_PREFIX, publish_bytes};
use unix::{Error, Exit, Result};

/// Granularity of the time of last use, so that a thousand readers do not write at every start.
const NOTED: Duration = Duration::from_secs(24 * 3600);
/// Age after which a temporary file must belong to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Length of the BLAKE3 hash of name and content.
const HASH: usize = blake3::OUT_LEN;

/// A folder of named files that evicts the least recently used ones.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Maximum total size of all files, in bytes.
    bound: u64,
}

impl Folder {
    /// Opens the folder, creating it if necessary. Errors: it cannot be created, belongs to another user, or is
    /// writable by others.
    pub fn open(path: &Path, bound: u64) -> Result<Self> {
        let refused = |why: &str| {
            let path = path.display();
            Error::new(Exit::CannotCreate, format!("kernel cache {path} is not used: {why}"))
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|why| refused(&why.to_string()))?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                return Err(refused(&why.to_string()));
            }
            _ => {}
        }
        let found = fs::metadata(path).map_err(|why| refused(&why.to_string()))?;
        let user = geteuid().as_raw();
        if !found.is_dir() {
            return Err(refused("it is not a directory"));
        }
        if found.uid() != user {
            return Err(refused(&format!(
                "it belongs to user {}, not to {user}; set LONGHAUL_KERNEL_CACHE to another folder",
                found.uid()
            )));
        }
        if found.mode() & 0o022 != 0 {
            return Err(refused("others can write to it; run chmod 700 on it"));
        }
        Ok(Self { path: path.to_path_buf(), bound })
    }

    /// Returns the content stored under a name; `None` if it is missing or damaged.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let mut file = File::open(self.path.join(name)).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let (hash, content) = bytes.split_at_checked(HASH)?;
        if hash != hash_of(name, content) {
            return None;
        }
        let now = SystemTime::now();
        let used = file.metadata().and_then(|found| found.modified()).unwrap_or(now);
        if now.duration_since(used).is_ok_and(|age| age > NOTED) {
            // If this fails, the file is only evicted earlier.
            let _ = file.set_modified(now);
        }
        bytes.drain(..HASH);
        Some(bytes)
    }

    /// Returns the content of the newest undamaged file whose name is `start` followed by a version.
    pub fn read_any(&self, start: &str) -> Option<Vec<u8>> {
        let entries = fs::read_dir(&self.path).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(start)).collect();
        // 13.10 is newer than 13.9.
        names.sort_by_cached_key(|name| {
            let version = name[start.len()..].split(|c: char| !c.is_ascii_digit());
            version.map(|number| number.parse().unwrap_or(0)).collect::<Vec<u64>>()
        });
        names.iter().rev().find_map(|name| self.read(name))
    }

    /// Stores content under a name atomically, then evicts files down to the bound. Errors: it cannot be written.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let bytes = [hash_of(name, content).as_slice(), content].concat();
        publish_bytes(&self.path.join(name), &bytes)?;
        self.prune(name)
    }

    /// Removes the least recently used files until the rest is within the bound, but never `kept`. Concurrent removal
    /// by another process is harmless.
    fn prune(&self, kept: &str) -> Result<()> {
        let failed = |why: io::Error| Error::io(&self.path, why);
        let now = SystemTime::now();
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(found) = entry.metadata() else { continue };
            let (path, used) = (entry.path(), found.modified().unwrap_or(now));
            let name = entry.file_name();
            if name.to_string_lossy().starts_with(TEMPORARY_PREFIX) {
                if now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(path);
                }
            } else if found.is_file() {
                files.push((name == kept, used, path, found.len()));
            }
        }
        files.sort();
        let mut sum: u64 = files.iter().map(|(.., bytes)| bytes).sum();
        for (kept, _, path, bytes) in files {
            if sum <= self.bound || kept {
                break;
            }
            let _ = fs::remove_file(path);
            sum -= bytes;
        }
        Ok(())
    }
}

fn hash_of(name: &str, content: &[u8]) -> [u8; HASH] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes()).update(content);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    fn folder(bound: u64) -> (tempfile::TempDir, Folder) {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::open(&parent.path().join("a/kernels"), bound).unwrap();
        (parent, folder)
    }

    fn names(folder: &Folder) -> Vec<String> {
        let entries = fs::read_dir(&folder.path).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_written_is_read_under_its_name_only() {
        let (_parent, folder) = folder(1 << 20);
        assert_eq!(fs::metadata(&folder.path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(folder.read("a-1"), None);
        folder.write("a-1", b"one").unwrap();
        folder.write("a-2", b"two").unwrap();
        assert_eq!(folder.read("a-1").unwrap(), b"one");
        assert_eq!(folder.read_any("a-").unwrap(), b"two");
        assert_eq!(folder.read_any("b-"), None);
        folder.write("c-13.9", b"old").unwrap();
        folder.write("c-13.10.1", b"new").unwrap();
        assert_eq!(folder.read_any("c-").unwrap(), b"new");
        fs::rename(folder.path.join("a-1"), folder.path.join("a-3")).unwrap();
        assert_eq!(folder.read("a-3"), None);
        assert_eq!(folder.read_any("a-").unwrap(), b"two");
    }

    #[test]
    fn every_damage_is_seen_and_written_over() {
        let (_parent, folder) = folder(1 << 20);
        folder.write("a", b"kernel").unwrap();
        let path = folder.path.join("a");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(folder.read("a"), None, "the first {at} bytes");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(&path, flipped).unwrap();
            assert_eq!(folder.read("a"), None, "byte {at}");
        }
        folder.write("a", b"kernel").unwrap();
        assert_eq!(folder.read("a").unwrap(), b"kernel");
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let (_parent, folder) = folder(300);
        let age = |name: &str, days: u64| {
            let file = File::open(folder.path.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600)).unwrap();
        };
        for (name, days) in [("a", 4), ("b", 3), ("c", 2)] {
            folder.write(name, &[0; 50]).unwrap();
            age(name, days);
        }
        File::create(folder.path.join(".tmp-killed")).unwrap();
        age(".tmp-killed", 1);
        File::create(folder.path.join(".tmp-at-work")).unwrap();
        assert!(folder.read("a").is_some());
        folder.write("d", &[0; 50]).unwrap();
        assert_eq!(names(&folder), [".tmp-at-work", "a", "c", "d"], "b was not used for longest");
        folder.write("e", &[0; 400]).unwrap();
        assert_eq!(names(&folder), [".tmp-at-work", "e"], "the newest stays even when too large");
    }

    #[test]
    fn a_folder_that_is_not_private_is_refused() {
        let (_parent, folder) = folder(1);
        fs::set_permissions(&folder.path, fs::Permissions::from_mode(0o770)).unwrap();
        let error = Folder::open(&folder.path, 1).unwrap_err().to_string();
        assert!(error.contains("others can write"), "{error}");
        fs::set_permissions(&folder.path, fs::Permissions::from_mode(0o700)).unwrap();
        // A folder owned by another user: our folder after chown or, if only root can do that, a folder owned by root.
        let foreign = match chown(&folder.path, Some(65534), None) {
            Ok(()) => &folder.path,
            Err(_) => Path::new("/usr"),
        };
        let error = Folder::open(foreign, 1).unwrap_err().to_string();
        assert!(error.contains("it belongs to user"), "{error}");
        let error = Folder::open(Path::new("/proc/kernels"), 1).unwrap_err().to_string();
        assert!(error.contains("/proc/kernels is not used"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_is_told() {
        let (_parent, folder) = folder(1 << 20);
        folder.write("a", b"one").unwrap();
        // Not even root can create a file inside a file.
        let broken = Folder { path: folder.path.join("a"), bound: 1 };
        assert_eq!(broken.write("b", b"two").unwrap_err().exit, Exit::CannotCreate);
        assert_eq!(broken.read("b"), None);
        assert_eq!(broken.read_any("b"), None);
    }
}
