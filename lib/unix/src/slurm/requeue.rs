//! A job has itself started again.
//!
//! SLURM starts a job again only when it is asked to (`scontrol requeue`): a batch script that ends is
//! done, whatever its status, and before SLURM 24.05 so is one that saves and leaves in the grace of a
//! preemption. To ask twice, or when SLURM does it by itself too, is harmless.
//!
//! `requeue incomplete` passes over a job that is being ended: without that word, a job that its user
//! has cancelled would come back. One that its time limit ends is the exception.

use std::time::{Duration, Instant};

use super::ask::ask;
use super::{Answer, Slurm, is_job_id, word_of};

/// How long scontrol may take for one try; by itself it gives up after several of the controller's timeouts.
const TRY: Duration = Duration::from_secs(120);
/// Between two tries, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To start the job again.
    Again,
    /// To keep it in the queue, and start it when its user releases it.
    Held,
}

/// How it is asked.
pub struct Asking<'a> {
    /// What for.
    pub asked: Asked,
    /// Whether SLURM is ending the job by itself at present: it was sent TERM.
    pub is_ending: bool,
    /// Until when a controller that does not answer is asked again.
    pub until: Instant,
    /// Called between two tries with what went wrong.
    pub tell: &'a mut dyn FnMut(&str),
}

/// Asks SLURM to start the job of this process again. On success the job is about to be ended: stay until
/// then. Errors: why it will not be started again, for its user.
pub fn requeue(job: &Slurm, asking: Asking) -> Result<(), String> {
    let id = job.id();
    if !is_job_id(&id) {
        return Err(format!("SLURM_JOB_ID={id:?} is no job id"));
    }
    let verb = match asking.asked {
        Asked::Again => "requeue",
        Asked::Held => "requeuehold",
    };
    let over_time = asking.is_ending && is_over_time(&id);
    if asking.is_ending && !over_time && asking.asked == Asked::Held {
        // Cancelled, or put back into the queue by its user: then that is what its end comes from.
        return Err("SLURM is ending it for another reason".into());
    }
    let words: &[&str] = if over_time { &[verb, &id] } else { &[verb, "incomplete", &id] };
    let mut pause = PAUSE.0;
    loop {
        let fault = match ask("scontrol", words, TRY) {
            Ok(answer) if answer.is_success() => return Ok(()),
            Ok(answer) => match refusal(&answer.complained) {
                None => answer.success().err().unwrap_or_default(),
                Some(Refusal::Pending) => return Ok(()),
                Some(Refusal::Final(why)) => return Err(why.into()),
            },
            Err(fault) if fault.starts_with("scontrol: ") => {
                return Err(format!(
                    "{fault} (in a container? then timekeep belongs outside of it)"
                ));
            }
            Err(fault) => fault,
        };
        if Instant::now() + pause >= asking.until {
            return Err(fault);
        }
        (asking.tell)(&fault);
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// Whether SLURM is ending the job because its time is over.
fn is_over_time(id: &str) -> bool {
    let answer = ask("scontrol", &["show", "job", "-o", id], TRY).and_then(Answer::success);
    answer.is_ok_and(|text| word_of(&text, "Reason") == Some("TimeLimit"))
}

#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// It was asked before, by us or by SLURM.
    Pending,
    /// It will never be done.
    Final(&'static str),
}

/// What a complaint of scontrol means; nothing for one that may be another the next time. The words are
/// those of slurm_strerror (SLURM 22.05); others would be asked again until the time is over.
fn refusal(complained: &str) -> Option<Refusal> {
    let known = [
        ("pending execution", Refusal::Pending),
        (
            "presently disabled",
            Refusal::Final("SLURM does not start this job again (--no-requeue, or JobRequeue=0)"),
        ),
        ("Only batch jobs", Refusal::Final("it is no batch job")),
        ("Invalid job id", Refusal::Final("SLURM does not know the job any more")),
        ("permission denied", Refusal::Final("the job belongs to another user")),
        ("already finished", Refusal::Final("the job has ended for SLURM")),
    ];
    known.into_iter().find_map(|(words, meaning)| complained.contains(words).then_some(meaning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_of_scontrol() {
        let of = |text: &str| refusal(text);
        assert_eq!(of("Job is pending execution for job 12"), Some(Refusal::Pending));
        assert_eq!(of("6_2: Job is pending execution"), Some(Refusal::Pending));
        let disabled = of("Requested operation is presently disabled for job 3");
        assert!(matches!(disabled, Some(Refusal::Final(why)) if why.contains("--no-requeue")));
        for later in [
            "slurm_update error: Unable to contact slurm controller (connect failure)",
            "slurm_suspend error: Socket timed out on send/recv operation",
            "",
        ] {
            assert_eq!(of(later), None, "{later}");
        }
    }
}
