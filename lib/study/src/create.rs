//! Creating a study.

use crate::config::StudyConfig;
use crate::study::Study;
use serde_json::Value;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use unix::config::{KeySchema, load, to_yaml};
use unix::publish::{TEMPORARY_PREFIX, create_folder, publish_bytes, publish_new};
use unix::{Error, Exit, Result, text};

impl Study {
    /// Creates a study from a configuration file. A study with the same configuration is left as it is, so several
    /// processes may create the same one at once.
    ///
    /// Errors: 66, 78 with every violation; 73 if the folder holds another study or other files.
    pub fn create(
        folder: &Path,
        file: &Path,
        overrides: &[String],
        schema: impl FnOnce(&str, &str) -> Result<Value>,
    ) -> Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let validate = StudyConfig::violations;
        let mut config =
            load::<StudyConfig>(&[file.to_path_buf()], overrides, &environment, &validate)?.config;
        let default_name = || {
            let whole = std::path::absolute(folder).unwrap_or_default();
            whole.file_name().map_or("study".into(), |name| name.to_string_lossy().into_owned())
        };
        config.name = Some(config.name.take().unwrap_or_else(default_name));
        let directory = config.directory.take().unwrap_or(PathBuf::from("."));
        let directory = directory.canonicalize().map_err(|cause| Error::open(&directory, cause))?;
        config.directory = Some(directory);
        let schema = config.task().map(|task| schema(&config.command[0], task)).transpose()?;
        Self::create_with(folder, config, schema, &file.display().to_string())
    }

    /// Creates a study with a configuration that comes from `source`, for a task with this schema of its keys.
    pub(crate) fn create_with(
        folder: &Path,
        config: StudyConfig,
        schema: Option<Value>,
        source: &str,
    ) -> Result<Self> {
        if let Some(schema) = &schema {
            check_keys(&config, schema, source)?;
        }
        let yaml = to_yaml(&serde_json::to_value(&config).map_err(Error::bug)?)?;
        let own = folder.join("study.yaml");
        if !own.exists() {
            // Another process may have created a study meanwhile.
            if has_other_files(folder) && !own.exists() {
                return Err(Error::create(folder, "it is not empty; choose another folder"));
            }
            create_folder(&folder.join("trials"))?;
            // The first process decides.
            publish_new(&own, yaml.as_bytes())?;
        }
        let study = Self::open(folder)?;
        if study.config() != &config {
            let cause = "it is another study, or of another directory; choose another folder";
            return Err(Error::create(&own, cause));
        }
        if let Some(schema) = schema {
            write_keys(&folder.join("schema.json"), &schema)?;
        }
        Ok(study)
    }
}

/// Compares the parameters with the configuration keys of the task. Errors: 78.
fn check_keys(config: &StudyConfig, schema: &Value, source: &str) -> Result<()> {
    let wrong = config.key_violations(&KeySchema::new(schema));
    if wrong.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = wrong.iter().map(|(key, text)| format!("{key}: {text}")).collect();
    let task = config.task().unwrap_or_default();
    let first = format!("{source}: does not match the configuration of {task}");
    Err(Error::list(Exit::Config, first, &lines))
}

/// Whether a folder has files other than those that `hpo new` leaves behind if it is killed.
fn has_other_files(folder: &Path) -> bool {
    let is_left = |entry: DirEntry| match entry.file_name().to_str() {
        Some("trials") => fs::read_dir(entry.path()).is_ok_and(|mut inner| inner.next().is_none()),
        Some("schema.json") => true,
        name => name.is_some_and(|name| name.starts_with(TEMPORARY_PREFIX)),
    };
    // The folder may be missing.
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    !entries.all(is_left)
}

fn write_keys(path: &Path, schema: &Value) -> Result<()> {
    let text = text::json_pretty(schema)?;
    match fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        true => Ok(()),
        false => publish_bytes(path, text.as_bytes()),
    }
}
