//! Lists the checkpoints of a run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use unix::{Error, Result};

use super::manifest::{self, Manifest};
use super::problem::Problem;
use super::tensor_file::check_size;

/// A checkpoint directory, checked only by its manifest and file sizes.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path of the checkpoint directory.
    pub path: PathBuf,
    /// The update number in the directory's name.
    pub step: u64,
    /// Modification time of the manifest.
    pub modified: Option<SystemTime>,
    manifest: Option<Manifest>,
    problem: Option<Problem>,
}

impl Entry {
    /// The manifest; None when it cannot be read.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Reason why the checkpoint cannot be used; None if the quick check found no problem.
    pub fn problem(&self) -> Option<String> {
        self.problem.as_ref().map(Problem::to_string)
    }

    /// Whether the quick check found no problem.
    pub fn is_good(&self) -> bool {
        self.problem.is_none()
    }

    /// Whether the checkpoint is intact but has a newer format than this program can read.
    pub fn is_newer_format(&self) -> bool {
        matches!(self.problem, Some(Problem::Newer(_)))
    }

    /// Name of the checkpoint directory.
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn look(path: PathBuf, step: u64) -> Self {
        let modified = std::fs::metadata(path.join(manifest::NAME)).and_then(|m| m.modified()).ok();
        let (manifest, problem) = match Manifest::read(&path) {
            Ok(manifest) => {
                let sizes = manifest.files.iter().try_for_each(|file| check_size(&path, file));
                (Some(manifest), sizes.err())
            }
            Err(problem) => (None, Some(problem)),
        };
        Self { path, step, modified, manifest, problem }
    }
}

/// Lists the checkpoints in `folder` (RUN/ckpt), newest last; empty when the directory does not exist.
///
/// Checkpoints are ordered by attempt, then by update, because a run that rewound continues from an earlier update.
/// Checkpoints with an unreadable manifest come last. Errors: 66 when the directory cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Entry>> {
    let found = match std::fs::read_dir(folder) {
        Ok(found) => found,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::open(folder, cause)),
    };
    let mut entries = Vec::new();
    for item in found {
        let path = item.map_err(|cause| Error::open(folder, cause))?.path();
        let step = path.file_name().and_then(|name| name.to_str()).and_then(step_of);
        if let Some(step) = step.filter(|_| path.is_dir()) {
            entries.push(Entry::look(path, step));
        }
    }
    entries.sort_by_key(|entry| {
        (entry.manifest.as_ref().map_or(u64::MAX, |manifest| manifest.attempt), entry.step)
    });
    Ok(entries)
}

/// The directory name for an update, e.g. `step-00001200`.
pub(super) fn folder_name(update: u64) -> String {
    format!("step-{update:08}")
}

/// Returns an unused name next to `target` for the same update, made by inserting zeros.
pub(super) fn free_name(target: &Path) -> PathBuf {
    let mut path = target.to_path_buf();
    while path.symlink_metadata().is_ok() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let longer = format!("step-0{}", name.trim_start_matches("step-"));
        path = path.with_file_name(longer);
    }
    path
}

fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_of_the_same_update() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join(folder_name(12));
        for _ in 0..3 {
            let free = free_name(&target);
            assert_eq!(free.file_name().and_then(|name| step_of(name.to_str()?)), Some(12));
            std::fs::create_dir(&free).unwrap();
        }
        assert_eq!(list(folder.path()).unwrap().len(), 3);
    }

    #[test]
    fn names_of_folders() {
        for step in [0, 1200, 99_999_999, 123_456_789_012] {
            assert_eq!(step_of(&folder_name(step)), Some(step));
        }
        for name in
            ["step-", "step-1a", "step-+1", ".tmp-step-1", "step-99999999999999999999", "latest"]
        {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
