//! Lets a job ask SLURM to requeue it.
//!
//! SLURM restarts a job only on request (`scontrol requeue`): a job whose batch script exits is complete, whatever its
//! status. Before SLURM 24.05, this is also true of a job that saves and exits within the grace time of a preemption.
//! Repeating the request is harmless, even if SLURM requeues the job by itself.
//!
//! `requeue incomplete` skips a job that SLURM is already ending, but still reports success; this prevents a job that
//! its user cancelled from coming back. Whether a request took effect is therefore determined from the restart count of
//! the job. The exception is a job that reached its time limit: it is requeued without `incomplete`.
//!
//! The controller may be down for longer than the job has time left. Nothing ends the job meanwhile, so the request is
//! repeated until the controller answers or SLURM kills this process.

use std::time::Duration;

use super::command::run;
use super::{Answer, Slurm, is_job_id, word_of};

/// Timeout of one scontrol call: scontrol itself gives up only after several times the controller's timeout.
const TRY: Duration = Duration::from_secs(120);
/// Initial and maximum pause between two requests.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequeueKind {
    /// Requeue the job.
    Requeue,
    /// Requeue the job in held state: it starts when its user releases it.
    Hold,
}

/// A request and how to repeat it.
pub struct Attempts<'a> {
    /// The kind of request.
    pub request: RequeueKind,
    /// Whether SLURM is ending the job: it has sent TERM.
    pub is_ending: bool,
    /// Called before each repetition with the problem and the duration of the pause; makes the pause and returns
    /// whether SLURM has begun to end the job.
    pub wait: &'a mut dyn FnMut(&str, Duration) -> bool,
}

/// Why a request had no effect.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// A repetition may succeed.
    Later(String),
    /// A repetition cannot succeed.
    Final(String),
}

/// Asks SLURM to requeue the job of this process, until SLURM answers. On success, SLURM is about to end the job: wait
/// for that. Errors: the reason why the job will not be requeued, as a message to its user.
pub fn requeue(job: &Slurm, attempts: Attempts) -> Result<(), String> {
    let id = job.id();
    if !is_job_id(&id) {
        return Err(format!("SLURM_JOB_ID={id:?} is not a job id"));
    }
    let (mut is_ending, mut pause) = (attempts.is_ending, PAUSE.0);
    loop {
        match try_once(job, &id, attempts.request, is_ending) {
            Ok(()) => return Ok(()),
            Err(Refusal::Final(why)) => return Err(why),
            Err(Refusal::Later(problem)) => is_ending |= (attempts.wait)(&problem, pause),
        }
        pause = (2 * pause).min(PAUSE.1);
    }
}

/// Sends one request and checks whether it took effect.
fn try_once(job: &Slurm, id: &str, request: RequeueKind, is_ending: bool) -> Result<(), Refusal> {
    let is_over_time = is_ending && word_of(&show(id)?, "Reason") == Some("TimeLimit");
    let ended = || Refusal::Final("SLURM is ending it for another reason, such as scancel".into());
    if is_ending && !is_over_time && request == RequeueKind::Hold {
        return Err(ended());
    }
    let verb = match request {
        RequeueKind::Requeue => "requeue",
        RequeueKind::Hold => "requeuehold",
    };
    let words: &[&str] = if is_over_time { &[verb, id] } else { &[verb, "incomplete", id] };
    let answer = scontrol(words)?;
    if !answer.is_success() {
        return match meaning(&answer.stderr) {
            Some(Meaning::Requeued) => Ok(()),
            Some(Meaning::Never(why)) => Err(Refusal::Final(why.into())),
            None => Err(Refusal::Later(answer.success().err().unwrap_or_default())),
        };
    }
    // If the controller does not report the restart count, trust its answer.
    let restarts = show(id).ok().and_then(|text| word_of(&text, "Restarts")?.parse::<u32>().ok());
    match restarts.filter(|restarts| *restarts <= job.restart_count) {
        None => Ok(()),
        Some(_) if is_ending => Err(ended()),
        Some(_) => Err(Refusal::Later("SLURM did not requeue the job".into())),
    }
}

/// Returns the controller's record of a job.
fn show(id: &str) -> Result<String, Refusal> {
    scontrol(&["show", "job", "-o", id])?.success().map_err(Refusal::Later)
}

fn scontrol(words: &[&str]) -> Result<Answer, Refusal> {
    run("scontrol", words, TRY).map_err(|problem| match problem.starts_with("scontrol: ") {
        true => Refusal::Final(format!("{problem} (in a container? Run timekeep outside of it)")),
        false => Refusal::Later(problem),
    })
}

impl Slurm {
    /// Delays the next start of this job, which has just been requeued. The processes of the job receive TERM
    /// meanwhile, which scontrol must survive.
    pub fn start_later(&self, delay: Duration) -> Result<(), String> {
        let (job, start) =
            (format!("JobId={}", self.id()), format!("StartTime=now+{}", delay.as_secs()));
        let script = "trap '' TERM; exec scontrol update \"$@\"";
        run("sh", &["-c", script, "sh", &job, &start], TRY)?.success().map(drop)
    }

    /// Whether the controller answers a query about this job.
    pub fn controller_answers(&self) -> bool {
        is_job_id(&self.id()) && show(&self.id()).is_ok()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// The job was already requeued, by us or by SLURM.
    Requeued,
    /// The job can never be requeued.
    Never(&'static str),
}

/// Interprets the stderr of scontrol; `None` if another request may succeed. The strings are those of slurm_strerror
/// (SLURM 22.05); after any other message, the request is repeated.
fn meaning(stderr: &str) -> Option<Meaning> {
    let known = [
        ("pending execution", Meaning::Requeued),
        (
            "presently disabled",
            Meaning::Never("SLURM does not start this job again (--no-requeue, or JobRequeue=0)"),
        ),
        ("Only batch jobs", Meaning::Never("it is not a batch job")),
        ("Invalid job id", Meaning::Never("SLURM does not know the job any more")),
        ("permission denied", Meaning::Never("the job belongs to another user")),
        ("already finished", Meaning::Never("SLURM considers the job finished")),
    ];
    known.into_iter().find_map(|(words, meaning)| stderr.contains(words).then_some(meaning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_of_scontrol() {
        let of = |text: &str| meaning(text);
        assert_eq!(of("Job is pending execution for job 12"), Some(Meaning::Requeued));
        assert_eq!(of("6_2: Job is pending execution"), Some(Meaning::Requeued));
        let disabled = of("Requested operation is presently disabled for job 3");
        assert!(matches!(disabled, Some(Meaning::Never(why)) if why.contains("--no-requeue")));
        for later in [
            "slurm_update error: Unable to contact slurm controller (connect failure)",
            "slurm_suspend error: Socket timed out on send/recv operation",
            "",
        ] {
            assert_eq!(of(later), None, "{later}");
        }
    }
}
