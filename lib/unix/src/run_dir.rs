//! The directory of a run: the paths of its files, and a record of every attempt.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::publish::{TEMPORARY_PREFIX, create_folder, publish_bytes};
use crate::slurm::Slurm;
use crate::{Error, Result, cli, host, small, text, time, warn};

/// Maximum size of `env.json` in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum size of `config.yaml` in bytes.
const MAX_CONFIG: u64 = 16 << 20;

/// A run directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// Opens a run directory, creating it and `ckpt/` if they are absent. Errors: 73.
    pub fn create_or_open(root: &Path) -> Result<Self> {
        let run = Self { root: root.to_path_buf() };
        create_folder(&run.checkpoints())?;
        Ok(run)
    }

    /// Opens an existing run directory. Errors: 66.
    pub fn open(root: &Path) -> Result<Self> {
        if !root.is_dir() {
            return Err(Error::open(root, "no such run directory"));
        }
        Ok(Self { root: root.to_path_buf() })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.root
    }
    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.yaml")
    }
    /// Reads the resolved configuration. Errors: 65 for a damaged one, 66, 74.
    pub fn read_config(&self) -> Result<Value> {
        let path = self.config();
        serde_yaml::from_slice(&small::read(&path, MAX_CONFIG)?)
            .map_err(|cause| Error::data(format!("{}: {cause}", path.display())))
    }
    /// One entry per attempt: versions, host, devices, SLURM ids.
    pub fn env(&self) -> PathBuf {
        self.root.join("env.json")
    }
    /// The current state of the run ([`crate::status`]).
    pub fn status(&self) -> PathBuf {
        self.root.join("status.json")
    }
    /// The event log ([`crate::log`]).
    pub fn log(&self) -> PathBuf {
        self.root.join("log.jsonl")
    }
    /// The lease of the process that works on the run ([`crate::lease`]).
    pub fn lease(&self) -> PathBuf {
        self.root.join("lease")
    }
    /// The command that submits the run to SLURM, and its jobs ([`crate::timekeep::submit`]).
    pub fn submission(&self) -> PathBuf {
        self.root.join("submit.json")
    }
    /// The stamp of a pipeline step ([`crate::timekeep::pipeline::step`]).
    pub fn step(&self) -> PathBuf {
        self.root.join("step.json")
    }
    /// The lease of the process that is submitting the run.
    pub fn submitting(&self) -> PathBuf {
        self.root.join("submit.lease")
    }
    /// Hashes of the verified input files, with their metadata.
    pub fn inputs(&self) -> PathBuf {
        self.root.join("inputs.json")
    }
    /// The directory of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("ckpt")
    }

    /// Removes the temporary files of attempts that were killed. Only the holder of the run's lease may call it,
    /// because it is the only process that writes these files.
    pub fn remove_leftovers(&self) {
        let own = [self.config(), self.env(), self.status(), self.inputs()];
        let names = own.iter().filter_map(|path| path.file_name()?.to_str());
        let prefixes: Vec<String> =
            names.map(|name| format!("{TEMPORARY_PREFIX}{name}-")).collect();
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if prefixes.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                let _ = std::fs::remove_file(entry.path()); // the next attempt tries again
            }
        }
    }

    /// Returns the number of the newest attempt in `env.json`; 0 if there is none.
    pub fn last_attempt(&self) -> Result<u64> {
        let entries = self.starts()?;
        let number = |entry: &Value| entry.get("attempt").and_then(Value::as_u64);
        Ok(entries.iter().filter_map(number).max().unwrap_or(entries.len() as u64))
    }

    /// Adds an entry for this attempt to `env.json`. Only the holder of the run's lease may call it.
    ///
    /// `facts` are additional fields of the caller (devices, libraries). Only the SLURM variables of the environment
    /// are recorded, because others may contain secrets. A damaged file is moved aside instead of being overwritten.
    pub fn record_start(&self, attempt: u64, facts: &impl Serialize) -> Result<()> {
        let mut entries = self.starts()?;
        let program = cli::program();
        let mut entry = Map::new();
        for (name, value) in [
            ("attempt", json!(attempt)),
            ("time", json!(time::now_utc())),
            ("program", json!(program.name)),
            ("version", json!(program.version)),
            ("commit", json!(program.commit)),
            ("host", json!(host::name())),
            ("cpu", json!(host::cpu_model())),
            ("threads", json!(host::threads())),
            ("slurm", json!(Slurm::from_environment())),
        ] {
            entry.insert(name.into(), value);
        }
        match serde_json::to_value(facts).map_err(Error::bug)? {
            Value::Object(fields) => entry.extend(fields),
            Value::Null => {}
            other => return Err(Error::bug(format!("env.json: {other} is not a JSON object"))),
        }
        entries.push(Value::Object(entry));
        publish_bytes(&self.env(), text::json_pretty(&entries)?.as_bytes())
    }

    /// Returns the entries of `env.json`, oldest first.
    pub fn starts(&self) -> Result<Vec<Value>> {
        let path = self.env();
        if std::fs::symlink_metadata(&path).is_err() {
            return Ok(Vec::new());
        }
        let text = small::read(&path, MAX_BYTES)?;
        serde_json::from_slice(&text).or_else(|cause| {
            let aside = path.with_file_name(format!("env.json.damaged-{}", time::unix_seconds()));
            warn!("{}: {cause}; moved to {}", path.display(), aside.display());
            std::fs::rename(&path, &aside).map_err(|cause| Error::io(&path, cause))?;
            Ok(Vec::new())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    #[test]
    fn every_start_is_an_entry_and_an_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("runs/a");
        let run = RunDir::create_or_open(&root).unwrap();
        assert!(run.checkpoints().is_dir());
        assert_eq!(run.last_attempt().unwrap(), 0);
        run.record_start(1, &json!({"device": "cpu"})).unwrap();
        let again = RunDir::create_or_open(&root).unwrap();
        again.record_start(4, &json!({"device": "cuda:0"})).unwrap();
        assert_eq!(again.last_attempt().unwrap(), 4);
        let entries = again.starts().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1]["device"], "cuda:0");
        assert!(entries[0]["threads"].as_u64().unwrap() >= 1);
        assert!(entries[0]["host"].is_string() && entries[0]["commit"].is_string());
    }

    #[test]
    fn the_environment_is_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::create_or_open(folder.path()).unwrap();
        run.record_start(1, &()).unwrap();
        let text = std::fs::read_to_string(run.env()).unwrap();
        let path = std::env::var("PATH").unwrap();
        assert!(!text.contains(&path), "{text}");
    }

    #[test]
    fn a_damaged_file_is_kept_aside() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::create_or_open(folder.path()).unwrap();
        std::fs::write(run.env(), "[{").unwrap();
        run.record_start(1, &()).unwrap();
        assert_eq!(run.starts().unwrap().len(), 1);
        let names = std::fs::read_dir(folder.path()).unwrap();
        let aside = names.map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(aside.filter(|name| name.starts_with("env.json.damaged-")).count(), 1);
    }

    #[test]
    fn leftovers_of_the_owner_alone_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDir::create_or_open(folder.path()).unwrap();
        for name in ["env.json-a-1-0", "status.json-a-1-0", "step.json-a-1-0", "report"] {
            std::fs::write(folder.path().join(format!(".tmp-{name}")), "").unwrap();
        }
        run.remove_leftovers();
        let names = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> =
            names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, [".tmp-report", ".tmp-step.json-a-1-0", "ckpt"]);
    }

    #[test]
    fn opening_what_is_not_there_is_a_missing_input() {
        assert_eq!(RunDir::open(Path::new("/no/such/run")).unwrap_err().exit, Exit::NoInput);
    }
}
