//! The interface to SLURM: the environment of a job (this module), running SLURM's commands (`command`), the jobs of a
//! user (`queue`), and requeueing the job of this process (`requeue`).
//!
//! Missing or invalid values are not errors; [`Slurm::notes`] lists what was ignored.

mod command;
mod queue;
mod requeue;

use std::time::Duration;

use serde::Serialize;

use crate::text::quote;
use crate::time::parse_limit;
use command::{Answer, run};
pub use queue::{Queued, cancel, queue, submit, was_cancelled};
pub use requeue::{Attempts, RequeueKind, requeue};

/// Timeout of a query: a busy controller answers within seconds or not at all.
pub const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The SLURM job that this process belongs to.
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
    /// SLURM_PROCID: rank of this task in its job step.
    pub rank: Option<u32>,
    /// SLURM_NTASKS: number of tasks in the step.
    pub tasks: Option<u32>,
    /// SLURM_JOB_END_TIME, seconds since 1970 (SLURM 23.02 and newer).
    pub end_time: Option<u64>,
    /// Whether this is the script of a batch job, rather than one of its steps or a shell opened by `salloc`. Only the
    /// batch script can have SLURM restart the job.
    #[serde(skip)]
    pub is_batch_script: bool,
    /// Messages about invalid variables that were ignored.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Slurm {
    /// Reads the environment; `None` outside a job.
    pub fn from_environment() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads the variables from the function `variable`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let job_id = variable("SLURM_JOB_ID").filter(|id| !id.is_empty())?;
        let mut notes = Vec::new();
        let mut number = |name: &str| -> Option<u64> {
            let text = variable(name).filter(|text| !text.is_empty())?;
            let value = text.trim().parse().ok();
            if value.is_none() {
                notes.push(format!("{name}={text:?} is not a number; ignored"));
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
            is_batch_script: variable("ENVIRONMENT").as_deref() == Some("BATCH")
                && variable("SLURM_STEP_ID").is_none(),
            notes,
        })
    }

    /// Returns the id that `scontrol` and `squeue` accept: `123`, or `120_4` for an array task (the bare array id would
    /// refer to the whole array).
    pub fn id(&self) -> String {
        match (&self.array_job_id, &self.array_task_id) {
            (Some(job), Some(task)) => format!("{job}_{task}"),
            _ => self.job_id.clone(),
        }
    }

    /// Returns the time left and the command that reported it: asks `squeue` once, then `scontrol` if that fails.
    /// `None` means that the job has no limit. Never call it in a loop or on every rank, because each call puts load on
    /// the cluster's controller.
    pub fn ask_time_left(
        &self,
        timeout: Duration,
    ) -> Result<(Option<Duration>, &'static str), String> {
        let id = self.id();
        if !is_job_id(&id) {
            return Err(format!("SLURM_JOB_ID={id:?} is not a job id"));
        }
        let by_squeue = run("squeue", &["-h", "-j", &id, "-o", "%L"], timeout)
            .and_then(Answer::success)
            .and_then(|text| time_left_of(&text));
        let squeue = match by_squeue {
            Ok(left) => return Ok((left, "squeue")),
            Err(problem) => problem,
        };
        let by_scontrol = run("scontrol", &["show", "job", "-o", &id], timeout)
            .and_then(Answer::success)
            .and_then(|text| time_left_of_job(&text));
        match by_scontrol {
            Ok(left) => Ok((left, "scontrol")),
            Err(scontrol) => Err(format!("{squeue}; {scontrol}")),
        }
    }
}

/// Parses the answer of `squeue -o %L`; `None` if the job has no limit.
pub fn time_left_of(answer: &str) -> Result<Option<Duration>, String> {
    // A heterogeneous job has one line per component, and the earliest end applies.
    let lines = answer.split_whitespace().map(parse_limit).collect::<Result<Vec<_>, _>>();
    match lines {
        Ok(lines) if !lines.is_empty() => Ok(lines.into_iter().flatten().min()),
        _ => Err(format!("squeue answered \"{}\", which is not a time", quote(answer.trim()))),
    }
}

/// Parses the output of `scontrol show job -o`, which reports the limit and the run time instead of the time left.
fn time_left_of_job(answer: &str) -> Result<Option<Duration>, String> {
    let (Some(limit), Some(run)) = (word_of(answer, "TimeLimit"), word_of(answer, "RunTime"))
    else {
        return Err("scontrol answered without TimeLimit and RunTime".into());
    };
    match (parse_limit(limit), parse_limit(run)) {
        (Ok(None), _) => Ok(None),
        (Ok(Some(limit)), Ok(Some(run))) => Ok(Some(limit.saturating_sub(run))),
        _ => Err(format!("scontrol answered TimeLimit={limit} RunTime={run}, which are not times")),
    }
}

/// Returns the value of `KEY=` in the output of `scontrol show job -o`.
fn word_of<'a>(answer: &'a str, key: &str) -> Option<&'a str> {
    words_of(answer, key).next()
}

/// Returns the values of `KEY=` for several jobs.
fn words_of<'a>(answer: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    let words = answer.split_ascii_whitespace();
    words.filter_map(move |word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Whether `text` has the form of a job id: `123` or `120_4`.
fn is_job_id(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('_').map_or_else(|| digits(text), |(job, task)| digits(job) && digits(task))
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
        assert_eq!(facts.notes, ["SLURM_JOB_END_TIME=\"soon\" is not a number; ignored"]);
    }

    #[test]
    fn job_ids_are_checked_before_they_reach_a_command() {
        for id in ["1", "123_4"] {
            assert!(is_job_id(id), "{id}");
        }
        for id in ["", "-1", "1_", "_1", "1;reboot", "--all", "1_2_3"] {
            assert!(!is_job_id(id), "{id}");
        }
        let error = job(&[("SLURM_JOB_ID", "--all")]).unwrap().ask_time_left(QUESTION_TIMEOUT);
        assert!(error.unwrap_err().contains("not a job id"));
    }

    #[test]
    fn the_script_of_a_batch_job_is_no_step_and_no_shell() {
        let is = |more: &[(&str, &str)]| {
            job(&[&[("SLURM_JOB_ID", "7")], more].concat()).unwrap().is_batch_script
        };
        assert!(is(&[("ENVIRONMENT", "BATCH")]));
        assert!(!is(&[]), "salloc");
        assert!(!is(&[("ENVIRONMENT", "BATCH"), ("SLURM_STEP_ID", "0")]), "srun");
    }

    #[test]
    fn time_left_by_what_scontrol_tells_of_a_job() {
        let of = |limit: &str| {
            time_left_of_job(&format!("JobId=7 RunTime=00:10:30 TimeLimit={limit} TimeMin=N/A"))
        };
        assert_eq!(of("01:00:00").unwrap(), Some(Duration::from_secs(2970)));
        assert_eq!(of("00:10:00").unwrap(), Some(Duration::ZERO));
        assert_eq!(of("UNLIMITED").unwrap(), None);
        assert!(of("Partition_Limit").unwrap_err().contains("Partition_Limit"));
        assert!(time_left_of_job("").is_err());
    }
}
