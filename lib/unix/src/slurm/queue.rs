//! The jobs of this user that SLURM knows, and new ones.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::ask::{answer, ask};
use super::{Answer, QUESTION_TIMEOUT, is_job_id, words_of};
use crate::text::quote;

/// How long a submission may take: a controller at work on thousands of jobs is slow.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(120);

/// A job in the queue, or at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// `123`, or `120_4` for a task of an array.
    pub id: String,
    /// As `squeue` names it: PENDING, RUNNING, COMPLETING and others.
    pub state: String,
    /// Why it waits: Priority, Dependency, JobHeldUser and others; None for one at work.
    pub reason: String,
}

impl Queued {
    /// Whether somebody must release it: its user or an administrator held it, or SLURM did after a failure.
    pub fn is_held(&self) -> bool {
        self.state == "PENDING" && self.reason.to_ascii_lowercase().contains("held")
    }

    /// Whether it waits for a job that has not succeeded, that is for ever.
    pub fn never_starts(&self) -> bool {
        self.state == "PENDING" && self.reason == "DependencyNeverSatisfied"
    }

    /// How it stands, and what to do where it is held.
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
    ask("scancel", &[id], QUESTION_TIMEOUT).and_then(Answer::success).map(drop)
}

/// All jobs of this user that have not ended, by one question.
pub fn queue() -> Result<Vec<Queued>, String> {
    let user = rustix::process::getuid().as_raw().to_string();
    let words = ["-h", "-r", "-u", &user, "-o", "%i|%T|%r"];
    let text = ask("squeue", &words, QUESTION_TIMEOUT).and_then(Answer::success)?;
    text.lines().filter(|line| !line.trim().is_empty()).map(queued).collect()
}

fn queued(line: &str) -> Result<Queued, String> {
    let parts: Vec<&str> = line.trim().splitn(3, '|').collect();
    match parts.as_slice() {
        // `120_[5-9%2]` is a part of an array that waits; squeue -r still writes some so
        [id, state, reason] if !state.is_empty() && id.bytes().next().is_some_and(is_digit) => {
            Ok(Queued { id: (*id).into(), state: (*state).into(), reason: (*reason).into() })
        }
        _ => Err(format!("squeue answered \"{}\", which is no job", quote(line))),
    }
}

/// Whether a job that is in the queue no more was cancelled, as far as SLURM still knows: `scontrol` does for
/// minutes, the accounting, where there is one, for ever.
pub fn was_cancelled(id: &str) -> bool {
    if !is_job_id(id) {
        return false;
    }
    let said = |program, words: &[&str]| {
        ask(program, words, QUESTION_TIMEOUT).and_then(Answer::success).unwrap_or_default()
    };
    let by_controller = said("scontrol", &["show", "job", "-o", id]);
    let states: Vec<&str> = words_of(&by_controller, "JobState").collect();
    if !states.is_empty() {
        return all_cancelled(&states);
    }
    // `CANCELLED by 1000`, a line for each task of an array
    let by_accounting = said("sacct", &["-n", "-X", "-P", "-j", id, "-o", "State"]);
    all_cancelled(&by_accounting.lines().collect::<Vec<_>>())
}

fn all_cancelled(states: &[&str]) -> bool {
    !states.is_empty() && states.iter().all(|state| state.trim().starts_with("CANCELLED"))
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

/// Runs `sbatch` (or what stands for it) with its words in `folder`; gives the id of the job. `variables`
/// are set for it beside what this process has. What it answers is that of `sbatch --parsable`, or of
/// `sbatch` alone.
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
    // What SLURM told this process of its own job is not for another one.
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
        _ => Err(format!("{program} answered \"{}\", which names no job", quote(text.trim()))),
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
            assert!(queued(line).unwrap_err().contains("no job"), "{line}");
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
