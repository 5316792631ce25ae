//! The process that holds a lease, and whether it is still alive.

use std::fmt;
use std::fs;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::slurm::Slurm;
use crate::{cli, host, time};

/// Interval between heartbeats unless [`HEARTBEAT_VARIABLE`] sets a different one.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Environment variable with the interval between heartbeats in seconds.
pub const HEARTBEAT_VARIABLE: &str = "LONGHAUL_HEARTBEAT";

/// The process that holds a lease, as stored in the lease file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owner {
    /// Name of the program.
    pub program: String,
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, which distinguishes processes with the same id.
    pub started: Option<u64>,
    /// Boot id and PID namespace in which `pid` is valid. A host name is not enough: containers on the same host share
    /// it but have separate process ids.
    pub machine: Option<String>,
    /// SLURM job id; `120_4` for an array task.
    pub job: Option<String>,
    /// Number of times that SLURM has restarted the job.
    pub restarts: u32,
    /// Time at which the lease was taken, UTC.
    pub since: String,
    /// Interval between heartbeats in seconds.
    pub heartbeat: f64,
    /// Time at which the lease was released, UTC.
    pub released: Option<String>,
}

impl Owner {
    /// Returns the owner that describes this process.
    pub fn this_process() -> Self {
        let job = Slurm::from_environment();
        let pid = std::process::id();
        Self {
            program: cli::program().name,
            host: host::name(),
            pid,
            started: stat(pid).map(|stat| stat.started),
            machine: machine(),
            restarts: job.as_ref().map_or(0, |job| job.restart_count),
            job: job.map(|job| job.id()),
            since: time::now_utc(),
            heartbeat: heartbeat().as_secs_f64(),
            released: None,
        }
    }

    /// Returns the interval between heartbeats of this owner.
    pub fn beat(&self) -> Duration {
        Duration::try_from_secs_f64(self.heartbeat).unwrap_or(HEARTBEAT).max(MIN_HEARTBEAT)
    }

    /// Whether the process ran on the same machine as `me` and certainly no longer exists.
    pub fn is_gone(&self, me: &Owner) -> bool {
        self.machine.is_some() && self.machine == me.machine && !lives(self.pid, self.started)
    }

    /// Whether the process belongs to an earlier attempt of the same job as `me`: SLURM restarts a job only after the
    /// previous attempt has ended or its node was lost.
    pub fn is_earlier_attempt_of(&self, me: &Owner) -> bool {
        self.job.is_some() && self.job == me.job && self.restarts < me.restarts
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.job {
            Some(job) => write!(f, "job {job}, process {} on {}", self.pid, self.host),
            None => write!(f, "process {} on {}", self.pid, self.host),
        }
    }
}

/// Minimum interval between heartbeats, including in tests.
const MIN_HEARTBEAT: Duration = Duration::from_millis(20);

fn heartbeat() -> Duration {
    let wanted = std::env::var(HEARTBEAT_VARIABLE).ok().and_then(|text| text.parse().ok());
    let wanted = wanted.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    wanted.unwrap_or(HEARTBEAT).max(MIN_HEARTBEAT)
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    state: char,
    threads: u64,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character. proc(5) counts fields from 1, and the state is field 3.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        threads: number(20)?,
        started: number(22)?,
    })
}

/// Returns false only if the process certainly no longer exists.
fn lives(pid: u32, started: Option<u64>) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    // /proc may hide processes of other users, but kill(2) does not.
    if test_kill_process(id) == Err(Errno::SRCH) {
        return false;
    }
    let Some(now) = stat(pid) else { return true };
    let ended = matches!(now.state, 'Z' | 'X') && now.threads <= 1;
    !ended && started.is_none_or(|started| started == now.started)
}

fn machine() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_is_gone() {
        let me = Owner::this_process();
        assert!(me.machine.is_some() && me.started.is_some());
        assert!(!me.is_gone(&me));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut owner = Owner { pid: child.id(), ..me.clone() };
        owner.started = stat(owner.pid).map(|stat| stat.started);
        assert!(!owner.is_gone(&me));
        child.kill().unwrap();
        while stat(owner.pid).is_some_and(|stat| stat.state != 'Z') {
            std::thread::yield_now();
        }
        assert!(owner.is_gone(&me), "a zombie writes nothing");
        child.wait().unwrap();
        assert!(owner.is_gone(&me));
    }

    #[test]
    fn a_process_id_that_is_used_again_is_another_process() {
        let me = Owner::this_process();
        let before = Owner { started: me.started.map(|at| at - 1), ..me.clone() };
        assert!(before.is_gone(&me));
    }

    #[test]
    fn of_another_machine_nothing_is_known() {
        let me = Owner::this_process();
        // No process has this id.
        let gone = Owner { pid: 0x7fff_fffe, ..me.clone() };
        assert!(gone.is_gone(&me));
        assert!(!Owner { machine: Some("another".into()), ..gone.clone() }.is_gone(&me));
        assert!(!Owner { machine: None, ..gone }.is_gone(&Owner { machine: None, ..me }));
    }

    #[test]
    fn a_job_that_was_started_again_has_ended_before() {
        let me = Owner { job: Some("7".into()), restarts: 2, ..Owner::this_process() };
        assert!(Owner { restarts: 1, ..me.clone() }.is_earlier_attempt_of(&me));
        assert!(!me.is_earlier_attempt_of(&me));
        assert!(
            !Owner { job: Some("8".into()), restarts: 1, ..me.clone() }.is_earlier_attempt_of(&me)
        );
        let none = Owner { job: None, ..me.clone() };
        assert!(!Owner { restarts: 1, ..none.clone() }.is_earlier_attempt_of(&none));
    }
}
