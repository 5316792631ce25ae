//! Writes the files of an export: appends to or replaces its own files and never touches other files.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use unix::publish::{create_folder, publish_bytes};
use unix::{Error, Result, small};

/// Number of bytes at the beginning of a file that are searched for the mark of an export.
const HEAD: u64 = 1024;

/// The files of one run.
#[derive(Clone, Debug)]
pub struct Files {
    /// Paths below the output folder, with content. The first file is the main one.
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
    /// Bytes near the beginning of the main file that show that it is an export of the same run.
    pub(super) mark: Vec<u8>,
    /// Substring of file names that must not occur next to the main file, because readers would merge such files.
    pub(super) alone: Option<&'static str>,
    /// Whether readers follow the main file while it grows.
    pub(super) grows: bool,
}

impl Files {
    /// Returns the path of the main file.
    pub fn main(&self, folder: &Path) -> PathBuf {
        folder.join(&self.files[0].0)
    }

    /// Refuses to replace files that are not an earlier export of the same run. Errors: 73.
    pub fn refuse_foreign(&self, folder: &Path) -> Result<()> {
        let advice = "choose another folder, or overwrite it with --force";
        let main = self.main(folder);
        if let Some(part) = self.alone {
            let entries = fs::read_dir(main.parent().unwrap_or(folder)).into_iter().flatten();
            let mut others = entries.flatten().map(|entry| entry.path());
            let is_other = |path: &PathBuf| {
                *path != main
                    && path.file_name().is_some_and(|n| n.to_string_lossy().contains(part))
            };
            if let Some(other) = others.find(is_other) {
                let why = "is in the same folder and would be shown as the same run";
                let text = format!("{} {why}; choose another folder", other.display());
                return Err(Error::create(&main, text));
            }
        }
        if is_there(&main) {
            let mut head = Vec::new();
            let read = small::open(&main)?.take(HEAD).read_to_end(&mut head);
            read.map_err(|cause| Error::io(&main, cause))?;
            return match head.windows(self.mark.len()).any(|part| part == self.mark) {
                true => Ok(()),
                false => Err(Error::create(
                    &main,
                    format!("it exists and is not an export of the same run; {advice}"),
                )),
            };
        }
        let mut others = self.files[1..].iter().map(|(path, _)| folder.join(path));
        match others.find(|path| is_there(path)) {
            Some(path) => Err(Error::create(&path, format!("it already exists; {advice}"))),
            None => Ok(()),
        }
    }

    /// Writes the files that do not exist yet. If the old content of the main file is the beginning of the new one and
    /// readers follow it, the rest is appended; an interrupted write is continued the same way. All other files that
    /// differ are replaced atomically. Errors: 73, 74.
    pub fn write(&self, folder: &Path) -> Result<()> {
        for (number, (path, bytes)) in self.files.iter().enumerate() {
            let path = folder.join(path);
            create_folder(path.parent().unwrap_or(folder))?;
            let mut old = Vec::new();
            if is_there(&path) {
                let read = small::open(&path)?.read_to_end(&mut old);
                read.map_err(|cause| Error::io(&path, cause))?;
            }
            match bytes.strip_prefix(&old[..]) {
                Some([]) if !old.is_empty() => {}
                Some(rest) if number == 0 && self.grows && !old.is_empty() => append(&path, rest)?,
                _ => publish_bytes(&path, bytes)?,
            }
        }
        Ok(())
    }
}

fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = OpenOptions::new().append(true).open(path);
    let mut file = file.map_err(|cause| Error::create(path, cause))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    written.map_err(|cause| Error::io(path, cause))
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
