//! Lists, submits and cancels the SLURM jobs of this user.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::command::{answer, run};
use super::{Answer, QUESTION_TIMEOUT, is_job_id, words_of};
use crate::text::quote;

/// Timeout of a submission: a controller with thousands of jobs takes long to answer.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(120);

/// A pending or running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Job id: `123`, or `120_4` for an array task.
    pub id: String,
    /// The state as reported by `squeue`: PENDING, RUNNING, COMPLETING and others.
    pub state: String,
    /// The reason why the job is pending: Priority, Dependency, JobHeldUser and others; `None` (the word) for a running
    /// job.
    pub reason: String,
}

impl Queued {
    /// Whether the job is held, by its user, by an administrator, or by SLURM after a failure, and must be released.
    pub fn is_held(&self) -> bool {
        self.state == "PENDING" && self.reason.to_ascii_lowercase().contains("held")
    }

    /// Whether the job waits for a job that did not succeed, and will therefore never start.
    pub fn never_starts(&self) -> bool {
        self.state == "PENDING" && self.reason == "DependencyNeverSatisfied"
    }

    /// Describes the state, and says what to do if the job is held.
    pub fn describe(&self) -> String {
        let Self { id, state, reason } = self;
        match reason.as_str() {
            _ if self.is_held() => format!(
                "job {id} is held in the queue ({reason}): read its output, then `scontrol release {id}`"
            ),
            "" | "None" => format!("in the queue: {state}"),
            _ => format!("in the queue: {state} ({reason})"),
        }
    }
}

/// Cancels a job.
pub fn cancel(id: &str) -> Result<(), String> {
    run("scancel", &[id], QUESTION_TIMEOUT).and_then(Answer::success).map(drop)
}

/// Returns all unfinished jobs of this user, from a single query.
pub fn queue() -> Result<Vec<Queued>, String> {
    let user = rustix::process::getuid().as_raw().to_string();
    let words = ["-h", "-r", "-u", &user, "-o", "%i|%T|%r"];
    let text = run("squeue", &words, QUESTION_TIMEOUT).and_then(Answer::success)?;
    text.lines().filter(|line| !line.trim().is_empty()).map(queued).collect()
}

fn queued(line: &str) -> Result<Queued, String> {
    let parts: Vec<&str> = line.trim().splitn(3, '|').collect();
    match parts.as_slice() {
        // `120_[5-9%2]` is the pending part of an array; even squeue -r prints some parts in this form
        [id, state, reason] if !state.is_empty() && id.bytes().next().is_some_and(is_digit) => {
            Ok(Queued { id: (*id).into(), state: (*state).into(), reason: (*reason).into() })
        }
        _ => Err(format!("squeue answered \"{}\", which is not a job", quote(line))),
    }
}

/// Whether a job that has left the queue was cancelled, according to SLURM: `scontrol` remembers jobs for minutes, and
/// the accounting database, if there is one, permanently.
pub fn was_cancelled(id: &str) -> bool {
    if !is_job_id(id) {
        return false;
    }
    let output_of = |program, words: &[&str]| {
        run(program, words, QUESTION_TIMEOUT).and_then(Answer::success).unwrap_or_default()
    };
    let by_controller = output_of("scontrol", &["show", "job", "-o", id]);
    let states: Vec<&str> = words_of(&by_controller, "JobState").collect();
    if !states.is_empty() {
        return all_cancelled(&states);
    }
    // `CANCELLED by 1000`, one line per array task
    let by_accounting = output_of("sacct", &["-n", "-X", "-P", "-j", id, "-o", "State"]);
    all_cancelled(&by_accounting.lines().collect::<Vec<_>>())
}

fn all_cancelled(states: &[&str]) -> bool {
    !states.is_empty() && states.iter().all(|state| state.trim().starts_with("CANCELLED"))
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

/// Runs `sbatch` (or a substitute) with its arguments in `folder` and returns the job id. `variables` are added to the
/// environment that the command inherits from this process, without this job's `SLURM_*` variables. Parses the output
/// of `sbatch --parsable` and of plain `sbatch`.
pub fn submit(
    words: &[String],
    folder: &Path,
    variables: &[(String, String)],
) -> Result<String, String> {
    let Some((program, words)) = words.split_first() else {
        return Err("no command to submit with".into());
    };
    let mut command = Command::new(program);
    command.args(words).current_dir(folder).envs(variables.iter().map(|(k, v)| (k, v)));
    // The variables of this process's own job do not apply to the new one.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("SLURM_") && name != "SLURM_CONF"
            || name == crate::budget::END_TIME_VARIABLE
        {
            command.env_remove(&name);
        }
    }
    let text = answer(program, command, SUBMIT_TIMEOUT).and_then(Answer::success)?;
    // `123`, `123;cluster`, or a sentence that ends with the number
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let id = last.split(';').next().unwrap_or_default().split_ascii_whitespace().last();
    match id {
        Some(id) if is_job_id(id) => Ok(id.into()),
        _ => {
            Err(format!("{program} answered \"{}\", which contains no job id", quote(text.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_squeue() {
        let job = |id: &str, state: &str, reason: &str| Queued {
            id: id.into(),
            state: state.into(),
            reason: reason.into(),
        };
        assert_eq!(queued("7|RUNNING|None").unwrap(), job("7", "RUNNING", "None"));
        let held = queued(" 120_4|PENDING|job requeued in held state ").unwrap();
        assert_eq!(held, job("120_4", "PENDING", "job requeued in held state"));
        for line in ["", "slurm_load_jobs error: x|y|z", "7", "7|RUNNING", "7||None"] {
            assert!(queued(line).unwrap_err().contains("not a job"), "{line}");
        }
    }

    #[test]
    fn jobs_that_wait_for_their_user() {
        let job = |reason: &str| Queued {
            id: "7".into(),
            state: "PENDING".into(),
            reason: reason.into(),
        };
        for reason in ["JobHeldUser", "job_requeued_in_held_state", "launch failed requeued held"] {
            assert!(job(reason).describe().contains("scontrol release 7"), "{reason}");
        }
        assert_eq!(job("Priority").describe(), "in the queue: PENDING (Priority)");
        let running = Queued { state: "RUNNING".into(), ..job("None") };
        assert_eq!(running.describe(), "in the queue: RUNNING");
        assert!(
            job("DependencyNeverSatisfied").never_starts() && !job("Dependency").never_starts()
        );
    }

    #[test]
    fn an_array_was_cancelled_when_all_of_it_was() {
        assert!(all_cancelled(&["CANCELLED by 1000", "CANCELLED"]));
        assert!(!all_cancelled(&["CANCELLED", "COMPLETED"]) && !all_cancelled(&[]));
        assert!(!was_cancelled("--all"));
    }

    #[test]
    fn the_id_of_a_submitted_job() {
        let here = Path::new("/");
        let of = |text: &str| submit(&["echo".into(), text.into()], here, &[]);
        assert_eq!(of("12").unwrap(), "12");
        assert_eq!(of("12;cluster").unwrap(), "12");
        assert_eq!(of("Submitted batch job 12").unwrap(), "12");
        assert!(of("").is_err() && of("sbatch: error").is_err());
        assert!(submit(&[], here, &[]).is_err());
        assert!(submit(&["false".into()], here, &[]).unwrap_err().contains("failed"));
    }
}
