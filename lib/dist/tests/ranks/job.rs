//! Jobs under mpirun.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time after which anything counts as hanging; the machine may have other load.
const PATIENCE: Duration = Duration::from_secs(300);

/// The program of `examples/ranks`, which `cargo test -p dist` builds along with the tests, without the environment of
/// a job in which they may run. `cargo test --test ranks` alone does not rebuild it.
pub fn program(words: &[&str]) -> Command {
    let here = std::env::current_exe().unwrap();
    let mut command = Command::new(here.ancestors().nth(2).unwrap().join("examples/ranks"));
    clean(&mut command);
    command.args(words);
    command
}

fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["SLURM_", "OMPI_", "PMI", "LONGHAUL_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}

/// A running job.
pub struct Job {
    child: Child,
    lines: Receiver<String>,
    stdout: String,
    stderr: std::thread::JoinHandle<String>,
    ranks: usize,
    pids: BTreeMap<usize, i32>,
}

/// The outcome of a job.
pub struct Seen {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// The process ids of the ranks that printed theirs.
    pub pids: BTreeMap<usize, i32>,
}

impl Job {
    /// Starts that many ranks. `None` where mpirun is missing and the test may be skipped.
    pub fn start(ranks: usize, shared: Option<&str>, words: &[&str]) -> Option<Job> {
        let setting = shared.map(|shared| ("LONGHAUL_SHARED_MEMORY", shared));
        Self::start_with(ranks, setting, words)
    }

    /// With variables in the environment.
    pub fn start_with<'a>(
        ranks: usize,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
        words: &[&str],
    ) -> Option<Job> {
        if !test_support::require_program("mpirun", &["--version"]) {
            return None;
        }
        let program = program(words);
        let mut command = Command::new("mpirun");
        clean(&mut command);
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
        command.arg(program.get_program()).args(program.get_args());
        command.envs(settings);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
        });
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let pids = BTreeMap::new();
        Some(Job { child, lines, stdout: String::new(), stderr, ranks, pids })
    }

    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["ready", rank, pid] = words[..] {
            self.pids.insert(rank.parse().unwrap(), pid.parse().unwrap());
        }
        self.stdout += line;
        self.stdout.push('\n');
    }

    /// Waits until all ranks have reported that they are ready.
    pub fn ready(&mut self) -> &BTreeMap<usize, i32> {
        while self.pids.len() < self.ranks {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.note(&line),
                Err(why) => panic!("ranks are not ready ({why}): {}", self.stdout),
            }
        }
        &self.pids
    }

    /// Sends a signal to some ranks, at a moment chosen by the seed of the test.
    pub fn signal(&mut self, ranks: &[usize], signal: Signal) {
        self.ready();
        let delay = test_support::Random(test_support::seed()).below(500_000);
        std::thread::sleep(Duration::from_micros(delay as u64));
        for rank in ranks {
            kill_process(pid(self.pids[rank]), signal).unwrap();
        }
    }

    /// Waits for the job to end.
    pub fn end(mut self) -> Seen {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                for number in self.pids.values() {
                    let _ = kill_process(pid(*number), Signal::KILL);
                }
                let _ = self.child.kill();
                let _ = self.child.wait();
                let stderr = self.stderr.join().unwrap_or_default();
                panic!("the job runs after {PATIENCE:?}: {}{stderr}", self.stdout);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        while let Ok(line) = self.lines.recv() {
            self.note(&line);
        }
        let stderr = self.stderr.join().unwrap();
        Seen { status: status.code(), stdout: self.stdout, stderr, pids: self.pids }
    }
}

impl Seen {
    /// Asserts that no process of the job is left after a short while.
    pub fn nobody_is_left(&self) {
        let deadline = Instant::now() + PATIENCE;
        for number in self.pids.values() {
            while test_kill_process(pid(*number)).is_ok() {
                assert!(Instant::now() < deadline, "process {number} is left: {}", self.stderr);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}
