//! What SLURM tells a job: its environment, and at most one question to `squeue`.
//!
//! Whatever is absent or garbage is survived; [`Slurm::notes`] says what was passed over.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use crate::time::{parse_limit, unix_seconds};

/// How long `squeue` may take; a busy controller answers in seconds or not at all.
pub const SQUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// The facts of the job around this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Slurm {
    /// SLURM_JOB_ID.
    pub job_id: String,
    /// SLURM_ARRAY_JOB_ID, in an array.
    pub array_job_id: Option<String>,
    /// SLURM_ARRAY_TASK_ID, in an array.
    pub array_task_id: Option<String>,
    /// SLURM_RESTART_COUNT; unset means the first attempt, 0.
    pub restart_count: u32,
    /// SLURM_JOB_NODELIST as written, e.g. `n[001-003,7]`.
    pub node_list: Option<String>,
    /// SLURM_JOB_PARTITION.
    pub partition: Option<String>,
    /// SLURM_PROCID: rank of this task in its step.
    pub rank: Option<u32>,
    /// SLURM_NTASKS: tasks of the step.
    pub tasks: Option<u32>,
    /// SLURM_JOB_END_TIME, seconds since 1970 (SLURM 23.02 and newer).
    pub end_time: Option<u64>,
    /// What was wrong with a variable and is left out.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Slurm {
    /// The facts from the environment; nothing outside a job.
    pub fn from_environment() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The facts from any source of variables.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let job_id = variable("SLURM_JOB_ID").filter(|id| !id.is_empty())?;
        let mut notes = Vec::new();
        let mut number = |name: &str| -> Option<u64> {
            let text = variable(name).filter(|text| !text.is_empty())?;
            let value = text.trim().parse().ok();
            if value.is_none() {
                notes.push(format!("{name}={text:?} is no number, ignored"));
            }
            value
        };
        let small = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
        Some(Self {
            restart_count: small(number("SLURM_RESTART_COUNT")).unwrap_or(0),
            rank: small(number("SLURM_PROCID")),
            tasks: small(number("SLURM_NTASKS")),
            end_time: number("SLURM_JOB_END_TIME").filter(|time| *time > 0),
            job_id,
            array_job_id: variable("SLURM_ARRAY_JOB_ID"),
            array_task_id: variable("SLURM_ARRAY_TASK_ID"),
            node_list: variable("SLURM_JOB_NODELIST"),
            partition: variable("SLURM_JOB_PARTITION"),
            notes,
        })
    }

    /// The id that `scontrol` and `squeue` understand: `123`, or `120_4` for a task of an array
    /// (the bare array id would mean the whole array).
    pub fn id(&self) -> String {
        match (&self.array_job_id, &self.array_task_id) {
            (Some(job), Some(task)) => format!("{job}_{task}"),
            _ => self.job_id.clone(),
        }
    }

    /// Time left by one `squeue` call; no value means that the job has no limit.
    /// Never call it in a loop, nor on every rank: each call loads the cluster's controller.
    pub fn ask_time_left(&self, timeout: Duration) -> Result<Option<Duration>, String> {
        let id = self.id();
        if !is_job_id(&id) {
            return Err(format!("SLURM_JOB_ID={id:?} is no job id"));
        }
        let answer = answer_of("squeue", &["-h", "-j", &id, "-o", "%L"], timeout)?;
        time_left_of(&answer)
    }

    /// End of the job in seconds since 1970, from what is left now.
    pub fn end_from_left(left: Duration) -> u64 {
        unix_seconds().saturating_add(left.as_secs())
    }
}

/// What `squeue -o %L` answered: no value when the job has no limit.
pub fn time_left_of(answer: &str) -> Result<Option<Duration>, String> {
    // A heterogeneous job has a line for each component: the first to end counts.
    let lines = answer.split_whitespace().map(parse_limit).collect::<Result<Vec<_>, _>>();
    match lines {
        Ok(lines) if !lines.is_empty() => Ok(lines.into_iter().flatten().min()),
        _ => {
            let shown: String = answer.trim().chars().take(80).collect();
            Err(format!("squeue answered {shown:?}, which is no time"))
        }
    }
}

/// `123` or `120_4`.
fn is_job_id(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('_').map_or_else(|| digits(text), |(job, task)| digits(job) && digits(task))
}

/// Runs a short command and returns its stdout; the command and its children are killed when late.
fn answer_of(program: &str, words: &[&str], timeout: Duration) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|cause| format!("{program}: {cause}"))?;
    let (send, receive) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stdout.take(1 << 16).read_to_end(&mut text);
            let _ = send.send(String::from_utf8_lossy(&text).into_owned());
        });
    }
    let deadline = Instant::now() + timeout;
    let answer = receive.recv_timeout(timeout).ok();
    match (wait_until(&mut child, deadline), answer) {
        (Some(status), Some(text)) if status.success() => Ok(text),
        (Some(status), Some(_)) => Err(format!("{program} failed: {status}")),
        _ => Err(format!("{program} did not answer within {} s", timeout.as_secs_f32())),
    }
}

fn wait_until(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> Option<Slurm> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
        Slurm::from_variables(|name| find(name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn outside_a_job_there_is_nothing() {
        assert_eq!(job(&[("SLURM_JOB_END_TIME", "1795211617")]), None);
        assert_eq!(job(&[("SLURM_JOB_ID", "")]), None);
    }

    #[test]
    fn a_task_of_an_array_has_a_compound_id() {
        let array = [("SLURM_ARRAY_JOB_ID", "120"), ("SLURM_ARRAY_TASK_ID", "4")];
        let facts = job(&[&array[..], &[("SLURM_JOB_ID", "124")]].concat()).unwrap();
        assert_eq!(facts.id(), "120_4");
        assert_eq!(job(&[("SLURM_JOB_ID", "7")]).unwrap().id(), "7");
    }

    #[test]
    fn garbage_is_ignored_and_told() {
        let facts = job(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_END_TIME", "soon")]).unwrap();
        assert_eq!((facts.end_time, facts.restart_count), (None, 0));
        assert_eq!(facts.notes, ["SLURM_JOB_END_TIME=\"soon\" is no number, ignored"]);
    }

    #[test]
    fn job_ids_are_checked_before_they_reach_a_command() {
        for id in ["1", "123_4"] {
            assert!(is_job_id(id), "{id}");
        }
        for id in ["", "-1", "1_", "_1", "1;reboot", "--all", "1_2_3"] {
            assert!(!is_job_id(id), "{id}");
        }
        let error = job(&[("SLURM_JOB_ID", "--all")]).unwrap().ask_time_left(SQUEUE_TIMEOUT);
        assert!(error.unwrap_err().contains("no job id"));
    }

    #[test]
    fn commands_that_fail_or_hang_are_survived() {
        let start = Instant::now();
        let short = Duration::from_millis(200);
        let late = answer_of("sh", &["-c", "sleep 60 & sleep 60"], short).unwrap_err();
        assert!(late.contains("did not answer"), "{late}");
        assert!(start.elapsed() < Duration::from_secs(5));
        let failed = answer_of("sh", &["-c", "exit 3"], SQUEUE_TIMEOUT).unwrap_err();
        assert!(failed.contains("failed"), "{failed}");
        assert!(answer_of("no-such-command", &[], short).is_err());
        assert_eq!(answer_of("echo", &["1:00"], SQUEUE_TIMEOUT).unwrap(), "1:00\n");
    }
}
