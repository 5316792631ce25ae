//! The training loop. It owns the order of things and nothing else: it names no model, no loss and
//! no device.
//!
//! An update is a function of the state after the one before and of its number: samples, noise and
//! learning rate follow from (seed, update). So a run that was stopped or killed and goes on from
//! any of its checkpoints ends with the same bits as one that was never stopped.

mod agreement;
mod attempts;
mod check;
mod comparison;
mod compiled;
mod dry_run;
mod exchange;
mod failed;
mod inputs;
mod job;
mod keeper;
mod learner;
mod machine;
mod numerics;
mod opening;
mod origin;
mod passes;
mod portions;
mod progress;
mod reporter;
mod restart;
mod rewind;
mod save_failures;
mod session;
mod spent;
mod trouble;
mod under_way;
mod validation;
mod verify;
mod watch;

pub use agreement::all_or_none;
pub use check::{Report, check};
pub use dry_run::{Estimate, dry_run};
pub use failed::failed_start;
pub use job::{Job, Resume};
pub use learner::{Learner, Pending, Step};
pub use origin::Origin;
pub use progress::Progress;
pub use watch::{Spike, Watch};

use crate::checkpoint;
use agreement::{Cause, Stop, Wish};
use keeper::Keeper;
use opening::Start;
use passes::loader;
use reporter::Reporter;
use session::Session;
use std::path::Path;
use std::time::Instant;
use under_way::Course;
use unix::run_dir::RunDir;
use unix::{Error, Exit, Result};
use verify::Mismatch;

/// Why the loop ended.
enum End {
    Finished(&'static str),
    Stopped(String),
    /// Another start would meet the same.
    Failed(String),
    /// What this machine computes cannot be trusted.
    Machine(String),
    /// Checkpoints cannot be saved any more.
    Unsaved(String),
    /// An input file is not what was recorded.
    Refused(Exit, String),
    /// It must stop before its input files are verified.
    Unverified,
    /// The run directory is not ours any more: nothing is written there.
    Lost(Exit, String),
}

/// Trains a task to its end or to where it must stop. Exit 0 when finished, 75 when stopped with a
/// checkpoint or on a machine that errs, 1 when it diverged or spiked too often. Errors, among others:
/// 75 when another process has the run, 73 or 74 when too many saves failed.
pub fn train(job: &Job) -> Result<Exit> {
    tensor::parallel::inside(|| start_to_end(job))
}

fn start_to_end(job: &Job) -> Result<Exit> {
    let (mut session, mut reporter) = match opening::open(job)? {
        Start::Leave(exit) => return Ok(exit),
        Start::Go(both) => *both,
    };
    let end = run(job, &mut session, &mut reporter)
        .and_then(|end| trusted(job, &mut session, &mut reporter, end));
    let end = match end {
        Ok(end) => end,
        // As for `End::Lost`, when it shows in the middle of an update.
        Err(error) if error.exit == Exit::Again => return Err(session.lost_run(error)),
        Err(error) => {
            reporter.failed(&session.progress, &error.to_string());
            return Err(error);
        }
    };
    let exit = conclude(job, &mut session, &mut reporter, end);
    let exit = exit.map_err(|error| session.lost_run(error));
    if job.ranks.size() == 1 {
        return exit;
    }
    // How the files of the run ended counts for all.
    let own = exit.unwrap_or_else(|error| {
        unix::diagnostics::say_error(&error);
        error.exit
    });
    let told = job.ranks.broadcast(vec![own as u8])?;
    Ok(told.first().map_or(own, |number| opening::exit_of(*number)))
}

/// How the run ends after all: no checkpoint is written when parameters differ between ranks or an input file
/// changed, and a changed file may also be why a run diverged.
fn trusted(job: &Job, session: &mut Session, reporter: &mut Reporter, end: End) -> Result<End> {
    let (saves, stopping) = match &end {
        End::Finished(_) => (true, false),
        End::Stopped(_) if !session.is_saved() => (true, true),
        End::Failed(_) => (false, false),
        _ => return Ok(end),
    };
    if saves && let Some(why) = session.ranks_differ(job)? {
        return Ok(End::Machine(why));
    }
    Ok(session.verify_inputs(job, reporter, stopping)?.unwrap_or(end))
}

/// Saves and says how the run ended.
fn conclude(job: &Job, session: &mut Session, reporter: &mut Reporter, end: End) -> Result<Exit> {
    match end {
        End::Finished(why) => {
            session.progress.finished = true;
            if let Err(error) = session.save_and_wait(job, reporter) {
                return Err(lost(session, reporter, error));
            }
            reporter.finished(&session.progress, why);
            Ok(Exit::Done)
        }
        End::Stopped(why) => {
            if let Err(error) = session.save_and_wait(job, reporter) {
                let is_lost = error.exit == Exit::Again || session.still_ours().is_err();
                if is_lost || !has_checkpoint(&job.run)? {
                    return Err(lost(session, reporter, error));
                }
                // It can go on from an older one, and that is what 75 says.
                reporter.unsaved(&session.progress, &error);
            }
            reporter.stopped(&session.progress, &why);
            Ok(Exit::Again)
        }
        End::Machine(why) => {
            // What was computed since the last checkpoint may be wrong; from that one another machine
            // goes on rightly, and the scheduler that reads 75 can give one.
            end_save(job, session, reporter)?;
            reporter.say(&why);
            if has_checkpoint(&job.run)? {
                reporter.stopped(&session.progress, &why);
                return Ok(Exit::Again);
            }
            reporter.failed(&session.progress, &why);
            Ok(Exit::Failure)
        }
        End::Unsaved(why) => {
            end_save(job, session, reporter)?;
            if let Some(error) = session.keeper.as_ref().and_then(Keeper::cannot_save) {
                reporter.failed(&session.progress, &error.to_string());
                return Err(error);
            }
            // A save that was still in flight succeeded.
            reporter.stopped(&session.progress, &why);
            Ok(Exit::Again)
        }
        End::Refused(exit, why) => {
            end_save(job, session, reporter)?;
            reporter.refused(&session.progress, &why);
            Ok(exit)
        }
        End::Unverified => {
            end_save(job, session, reporter)?;
            let why = "stopped before all input files were verified (hashed), so no checkpoint was written; the \
                       next attempt verifies those that are left, and needs a longer time limit if one of them \
                       takes longer to hash than this attempt lasted";
            reporter.say(why);
            reporter.stopped(&session.progress, why);
            Ok(Exit::Again)
        }
        // Rank 0 reports it.
        End::Lost(exit, _) if session.keeper.is_none() => Ok(exit),
        End::Lost(exit, why) => Err(Error::new(exit, why)),
        End::Failed(why) => {
            // Nothing new is saved: the last checkpoint is better than what there is now.
            end_save(job, session, reporter)?;
            reporter.held(&session.progress, &why);
            reporter.say(&why);
            Ok(Exit::Failure)
        }
    }
}

/// Whether there is a checkpoint to go on from.
fn has_checkpoint(run: &Path) -> Result<bool> {
    let folder = RunDir::open(run)?.checkpoints();
    Ok(checkpoint::list(&folder)?.iter().any(checkpoint::Entry::is_good))
}

/// What a run ends with when it loses a rank, for [`dist::open`]: 75 where it has a checkpoint to go on
/// from, else 1.
pub fn lost_a_rank(run: &Path) -> Exit {
    match has_checkpoint(run) {
        Ok(true) => Exit::Again,
        _ => Exit::Failure,
    }
}

/// The end of a run whose last state is on no disk; the error is told by whoever gets it.
fn lost(session: &Session, reporter: &mut Reporter, error: Error) -> Error {
    if error.exit != Exit::Again {
        reporter.failed(&session.progress, &format!("checkpoint not saved: {error}"));
    }
    error
}

/// Waits for the save that runs, for an end that does not depend on it. Errors: 75 when the run is
/// somebody else's.
fn end_save(job: &Job, session: &mut Session, reporter: &mut Reporter) -> Result<()> {
    match session.finish_save(job, reporter) {
        Err(error) if error.exit == Exit::Again => Err(error),
        Err(error) => {
            reporter.unsaved(&session.progress, &error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn run(job: &Job, session: &mut Session, reporter: &mut Reporter) -> Result<End> {
    let training = &job.task.config.training;
    let mut batches = loader(job, session)?;
    loop {
        session.look_at_save(reporter);
        if session.progress.update == training.updates {
            return Ok(End::Finished("all updates are done"));
        }
        if training.patience.is_some_and(|p| session.progress.validations_since_best > p) {
            return Ok(End::Finished("no improvement for as long as training.patience allows"));
        }
        let Wish { mut stop, save: asked } = session.agree(job, reporter)?;
        // Before outcomes in flight are logged.
        let lost = stop.take_if(|stop| matches!(stop.cause, Cause::Lost(_)));
        if let Some(stop) = lost {
            return Ok(end_of(stop));
        }
        let started = Instant::now();
        let mismatch = match stop {
            None => session.give(job, &mut batches)?,
            Some(_) => None,
        };
        let given = session.next_update();
        // Of the update just given nobody asks, unless what comes now depends on it.
        let at_rest = stop.is_some() || mismatch.is_some() || asked || session.must_know(job);
        match session.settle(job, reporter, usize::from(!at_rest))? {
            Course::On => {}
            // A machine that errs may have made the spike, too.
            Course::Back if mismatch.is_some() => {}
            Course::Back => {
                batches = loader(job, session)?;
                continue;
            }
            Course::Failed(why) => return Ok(End::Failed(why)),
        }
        if let Some(stop) = stop {
            return Ok(end_of(stop));
        }
        if let Some((rank, mismatch)) = mismatch {
            return Ok(distrust(job, given + 1, rank, &mismatch, reporter));
        }
        let mut save = false;
        if at_rest {
            if let Some(why) = session.tell_hash(job, reporter)? {
                return Ok(End::Machine(why));
            }
            match judge(job, session, reporter, asked, started)? {
                Ok(due) => save = due,
                Err(end) => return Ok(end),
            }
        } else {
            session.note_update(started.elapsed());
        }
        if save {
            session.try_save(job, reporter)?;
        }
    }
}

/// How a run ends that all ranks agreed to stop.
fn end_of(Stop { cause, why }: Stop) -> End {
    match cause {
        Cause::Asked => End::Stopped(why),
        Cause::Unsaved => End::Unsaved(why),
        Cause::Machine => End::Machine(why),
        Cause::Changed(exit) => End::Refused(opening::exit_of(exit), why),
        Cause::Lost(exit) => End::Lost(opening::exit_of(exit), why),
    }
}

/// Validates where that is due after an update; whether a checkpoint is due as well, or how the run ends
/// because of its input files. `update_started` is when the update was begun.
fn judge(
    job: &Job,
    session: &mut Session,
    reporter: &mut Reporter,
    asked: bool,
    update_started: Instant,
) -> Result<Result<bool, End>> {
    let (training, rules) = (&job.task.config.training, &job.task.config.checkpoint);
    let done = session.progress.update;
    let started = Instant::now();
    let is_due = done.is_multiple_of(training.validate_every) || done == training.updates;
    let metrics = is_due.then(|| session.measure(job)).transpose()?;
    let took = started.elapsed();
    // Without the wait for the input files, which no later update repeats.
    session.note_update(update_started.elapsed());
    let saves = done.is_multiple_of(rules.every) || asked;
    if (is_due || saves)
        && let Some(end) = session.verify_inputs(job, reporter, false)?
    {
        return Ok(Err(end));
    }
    let best = match metrics {
        Some(metrics) => session.record_validation(job, metrics, took, reporter)?,
        None => false,
    };
    Ok(Ok((saves || best) && done < training.updates))
}

/// Ends a run on a machine that errs.
fn distrust(
    job: &Job,
    update: u64,
    rank: usize,
    mismatch: &Mismatch,
    reporter: &mut Reporter,
) -> End {
    let host = job.ranks.host(rank);
    reporter.machine(update, rank, &host, mismatch);
    let by = if job.ranks.size() > 1 { format!("by rank {rank} ") } else { String::new() };
    let Mismatch { of, gradients, verdict, device } = mismatch;
    End::Machine(format!(
        "machine, not data: update {update} computed twice {by}on {host} ({device}) gave different bits \
         ({of}, {gradients} gradients), and {verdict}; go on elsewhere and have {host} tested"
    ))
}
