//! A folder of runs, and a fake SLURM made of scripts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{Captured, path_with, script, see, timekeep};

/// A folder with SLURM commands that answer as configured.
pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Place {
    /// With an empty queue, a SLURM that knows no past jobs, and an `sbatch` that returns job ids from 101 on and
    /// accepts everything.
    pub fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        place.queue("");
        for name in ["scontrol", "sacct"] {
            script(&place.path(name), "exit 1");
        }
        let submitted = place.path("submitted");
        let lines = format!(
            "sleep 0.2; echo \"$PWD $SITE $*\" >> {0}; echo $((100 + $(wc -l < {0})))",
            submitted.display()
        );
        script(&place.path("sbatch"), &lines);
        place
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn queue(&self, lines: &str) {
        script(&self.path("squeue"), &format!("printf '%b' '{lines}'"));
    }
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = timekeep(words);
        command.env("PATH", path_with(self.folder.path())).current_dir(self.folder.path());
        command
    }
    pub fn see(&self, words: &[&str]) -> Captured {
        see(&mut self.command(words))
    }
    pub fn records(&self, words: &[&str]) -> Vec<Value> {
        let output = self.see(&[words, &["--json"]].concat());
        assert_eq!(output.status, Some(0), "{words:?}: {}", output.stderr);
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
    /// The cron record of the run `a`.
    pub fn cron(&self) -> (String, String) {
        let record = self.records(&["cron", "a"]).remove(0);
        let text = |key: &str| record[key].as_str().unwrap().to_string();
        (text("done"), text("why"))
    }
    pub fn submissions(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("submitted")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }
    pub fn status(&self, run: &str, state: &str, update: u64) {
        self.start(run, state, update, 2);
    }
    pub fn start(&self, run: &str, state: &str, update: u64, attempt: u64) {
        fs::create_dir_all(self.path(run).join("ckpt")).unwrap();
        let status = json!({
            "task": "codec", "state": state, "update": update, "updates": 400, "attempt": attempt,
            "cost": {"hours": 1.0, "device_hours": 8.0}, "reason": "signal SIGUSR1",
        });
        fs::write(self.path(run).join("status.json"), status.to_string()).unwrap();
    }
}
