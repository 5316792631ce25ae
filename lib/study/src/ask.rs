//! Ask and tell: another program requests parameters, runs the trial itself and reports its values.

use crate::claim::Claim;
use crate::pruners::Pruner;
use crate::record::{EndRecord, Outcome, Record, StartRecord};
use crate::study::Study;
use crate::worker::command::write_params;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use unix::lease::Lease;
use unix::log::Log;
use unix::run_dir::RunDir;
use unix::{Error, Exit, Result};

/// A trial handed out to another program.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    /// Number of the trial.
    pub trial: u64,
    /// Parameters by name.
    pub params: BTreeMap<String, Value>,
    /// Seed of the trial.
    pub seed: u64,
    /// Folder of the trial.
    pub folder: PathBuf,
}

/// A report about a trial.
pub enum Told {
    /// The value of the metric at a step.
    Step(u64, f64),
    /// The end of the trial.
    End(EndRecord),
}

/// Starts a new trial, or a retried one that no worker has picked up. Errors: 1 if all trials have been started; 75
/// while the next round waits for trials of the previous one; 73, 74.
pub fn ask(study: &mut Study) -> Result<Asked> {
    let wait = |study: &Study, round: usize| {
        let name = &study.rounds()[round].name;
        Error::new(Exit::Again, format!("round {name} has trials that have not ended"))
    };
    for round in 0..study.rounds().len() {
        let Some(space) = study.begin_round(round)? else { return Err(wait(study, round - 1)) };
        for number in study.numbers_of(round, &space) {
            if study.records().get(&number).is_some_and(|record| !record.waits_for_retry()) {
                continue;
            }
            let claim = Claim::take_free(study, number, &|| false, Record::waits_for_retry)?;
            let Some(mut claim) = claim else { continue };
            let start = match claim.record.clone() {
                Some(record) => record.start,
                None => study.start_of(number, round, &space)?,
            };
            let start = StartRecord { asked: true, ..start };
            let folder = study.trial_folder(number);
            write_params(study.config(), &study.rounds()[round].fidelity, &start, &folder)?;
            claim.start(&start)?;
            study.save_snapshot();
            return Ok(Asked { trial: number, params: start.params, seed: start.seed, folder });
        }
        if !study.has_ended(round, &space) && round + 1 < study.rounds().len() {
            return Err(wait(study, round));
        }
    }
    Err(Error::failure("all trials of the study have been started"))
}

/// Records a report about a trial; returns whether the pruner ends the trial. Errors: 2 for a trial that has not been
/// started or has ended; 75 if another process is reporting on it.
pub fn tell(study: &mut Study, number: u64, told: Told) -> Result<bool> {
    // Rereads the journal, because our copy may be older than the caller's `ask`.
    let Some(record) = study.read_now(number)? else {
        return Err(Error::usage(format!("trial {number} has not been started")));
    };
    if record.has_ended() {
        return Err(Error::usage(format!("trial {number} has ended")));
    }
    if !record.start.asked {
        return log_for_worker(study, number, told).map(|()| false);
    }
    let Some(mut claim) = Claim::take(study, number, &|| false)? else {
        return Err(Error::new(
            Exit::Again,
            format!("another process is reporting on trial {number}"),
        ));
    };
    // Another process may have ended the trial before we took the lease.
    if claim.record.as_ref().is_none_or(Record::has_ended) {
        return Err(Error::usage(format!("trial {number} has ended")));
    }
    match told {
        Told::End(ended) => {
            claim.end(&ended)?;
            study.refresh()?;
            crate::results::write_ended(study).map(|()| false)
        }
        Told::Step(step, value) => {
            claim.value(step, value)?;
            Ok(prunes(study, &claim)?.unwrap_or(false))
        }
    }
}

/// Returns whether the pruner ends a claimed trial after its last value; `None` without a pruner.
pub(crate) fn prunes(study: &mut Study, claim: &Claim) -> Result<Option<bool>> {
    let round = study.round_of(claim.number).unwrap_or(0);
    let pruner = study.config().pruner(&study.rounds()[round]).clone();
    if pruner == Pruner::None {
        return Ok(None);
    }
    let (Some(own), Some(space)) = (claim.read()?, study.space_of(round)?) else {
        return Ok(None);
    };
    let (first, sign) = (study.first_of(round), study.config().direction.sign());
    study.refresh()?;
    let own = own.trial(&space, first, sign);
    let mut others = study.trials(round, &space);
    others.retain(|other| other.number != own.number);
    Ok(Some(pruner.prunes(study.name(), &own, &others)))
}

/// Appends a value to the run's log, which the worker that started the caller reads.
fn log_for_worker(study: &Study, number: u64, told: Told) -> Result<()> {
    let metric = &study.config().metric;
    let (kind, record) = match told {
        Told::Step(step, value) => ("validation", json!({ "update": step, (metric): value })),
        Told::End(EndRecord { value: Some(value), .. }) => ("final", json!({ (metric): value })),
        Told::End(EndRecord { state: Outcome::Diverged, .. }) => {
            ("final", json!({ (metric): null }))
        }
        Told::End(_) => {
            return Err(Error::usage(format!(
                "a worker runs trial {number} and takes its state from the command's exit status; report values only"
            )));
        }
    };
    let run = RunDir::open(&study.trial_folder(number))?;
    let lease = Lease::take(&run.lease(), || Ok(1), &|| false)?;
    let mut log = Log::open(&run.log(), lease.attempt())?;
    log.write(kind, &record)?;
    log.sync()
}
