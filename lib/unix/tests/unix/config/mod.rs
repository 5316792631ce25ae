//! Loading configurations: what is accepted, what is refused with which message, and what is written.

mod layers;
mod random;
mod types;
mod violations;
mod written;

use std::path::{Path, PathBuf};

use unix::Result;
use unix::config::{Loaded, load};

use types::Run;

/// Configuration files in a temporary folder, and how they load.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn load(&self, files: &[&str], overrides: &[&str]) -> Result<Loaded<Run>> {
        let files: Vec<PathBuf> = files.iter().map(|name| self.path().join(name)).collect();
        let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
        load::<Run>(&files, &overrides, &environment, &Run::violations)
    }

    /// The lines of the error, without the folder's name.
    pub(crate) fn violations(&self, files: &[&str], overrides: &[&str]) -> Vec<String> {
        let error = self.load(files, overrides).expect_err("a fault");
        assert_eq!(error.exit, unix::Exit::Config, "{error}");
        let folder = format!("{}/", self.path().display());
        error.to_string().replace(&folder, "").lines().map(String::from).collect()
    }
}

fn environment(name: &str) -> Option<String> {
    match name {
        "SCRATCH" => Some("/scratch/me".into()),
        "STEPS" => Some("1_200".into()),
        "TRACKER_TOKEN" => Some("hunter2-sesame".into()),
        "DOOR_PASSWORD" => Some("7341".into()),
        _ => None,
    }
}

/// The smallest valid configuration.
pub(crate) const SMALL: &str = "
steps: 100
model: {kind: plain}
data: {files: [a.h5]}
";
