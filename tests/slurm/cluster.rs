//! Runs a cluster with `cluster.sh` for the lifetime of a value, and queries it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Captured, shell};

/// Maximum duration of a job, on a machine under load.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// A real SLURM on this machine.
pub struct Cluster {
    process: Child,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts a cluster; `None` if SLURM is not installed.
    pub fn start() -> Option<Self> {
        let path = std::env::var("PATH").unwrap() + ":/usr/sbin:/sbin";
        let has = |name: &str| path.split(':').any(|folder| Path::new(folder).join(name).exists());
        if !["slurmctld", "slurmd", "sbatch", "srun"].iter().all(|name| has(name)) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm/cluster.sh");
        let mut process = Command::new("sh")
            .arg(script)
            .arg(folder.path().join("slurm"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the cluster did not start: see above");
        Some(Self { process, folder })
    }

    /// Stops the controller; jobs and their nodes continue.
    pub fn stop_controller(&self) {
        let controller = || processes(&[&self.conf(), "slurmctld"]);
        let found = controller();
        assert_eq!(found.len(), 1, "{found:?}");
        let id = rustix::process::Pid::from_raw(found[0]).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        super::common::run::wait_until(|| controller().is_empty());
    }

    /// Restarts the controller with its saved state.
    pub fn start_controller(&self) {
        let start = "PATH=$PATH:/usr/sbin:/sbin; setsid slurmctld -D >/dev/null 2>&1 &";
        self.stdout(self.folder.path(), start);
    }

    fn conf(&self) -> String {
        format!("SLURM_CONF={}", self.folder.path().join("slurm/slurm.conf").display())
    }

    /// A directory for one scenario, removed together with the cluster.
    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    /// Runs a script with this build's programs and this cluster's commands.
    pub fn shell(&self, folder: &Path, script: &str) -> Captured {
        let conf = self.folder.path().join("slurm/slurm.conf");
        let root = env!("CARGO_MANIFEST_DIR");
        // Keep the default margin, which is meant for hours, from affecting these short runs.
        let before =
            format!("export SLURM_CONF={} SLURM={root}/slurm LONGHAUL_MARGIN=5s\n", conf.display());
        shell(folder, &(before + script))
    }

    /// The same for a script that must succeed; returns its stdout without the last newline.
    pub fn stdout(&self, folder: &Path, script: &str) -> String {
        let seen = self.shell(folder, script);
        assert_eq!(seen.status, Some(0), "{script}\n{}{}", seen.stdout, seen.stderr);
        seen.stdout.trim_end().into()
    }

    /// A field of `scontrol show job`; empty if SLURM does not know the job.
    pub fn field(&self, job: &str, key: &str) -> String {
        let seen = self.shell(self.folder.path(), &format!("scontrol show job -o {job}"));
        let words = seen.stdout.split_ascii_whitespace();
        let value = words.filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).next();
        value.unwrap_or_default().into()
    }

    /// Waits until the job is in one of these states, and returns the state.
    pub fn wait_for(&self, job: &str, states: &[&str]) -> String {
        let started = Instant::now();
        loop {
            let state = self.field(job, "JobState");
            if states.contains(&state.as_str()) {
                return state;
            }
            assert!(
                started.elapsed() < TIMEOUT,
                "job {job} is {state}, not one of {states:?}: {}",
                self.shell(self.folder.path(), &format!("scontrol show job {job}")).stdout
            );
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Waits until the job has completed successfully.
    pub fn wait_for_success(&self, job: &str, folder: &Path) {
        let failed = ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"];
        let (started, mut ended) = (Instant::now(), None);
        loop {
            let state = self.field(job, "JobState");
            if state == "COMPLETED" {
                return;
            }
            // A job that is being requeued is briefly shown in its final state.
            let since =
                if failed.contains(&&*state) { ended.or(Some(Instant::now())) } else { None };
            ended = since;
            let is_over = since.is_some_and(|since| since.elapsed() > Duration::from_secs(60));
            let is_late = started.elapsed() > TIMEOUT;
            assert!(!is_over && !is_late, "job {job} is {state}: {}", output(folder, job));
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// Ends the daemons and all remaining jobs.
impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.process.stdin.take() {
            let _ = stdin.flush(); // closing it ends the cluster
        }
        let _ = self.process.wait();
    }
}

/// The output of a job of `train.sbatch`.
pub fn output(folder: &Path, job: &str) -> String {
    std::fs::read_to_string(folder.join(format!("slurm-{job}.out"))).unwrap_or_default()
}

/// Processes that have all of these marks in their environment or on their command line; daemons have them on the
/// command line.
pub fn processes(marks: &[&str]) -> Vec<i32> {
    let of = |id: i32| {
        let read = |name: &str| std::fs::read(format!("/proc/{id}/{name}")).unwrap_or_default();
        let has =
            |text: &[u8], mark: &str| text.split(|b| *b == 0).any(|part| part == mark.as_bytes());
        let (environment, command) = (read("environ"), read("cmdline"));
        // longhaul's programs read HDF5 files in a separate process.
        !has(&command, "--read-hdf5")
            && marks.iter().all(|mark| has(&environment, mark) || has(&command, mark))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| of(*id)).collect()
}
