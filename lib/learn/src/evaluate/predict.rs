//! The prediction loop.

use super::{stopped, stopped_with, unless_stopped};
use crate::train::{broadcast, gather};
use dist::Collective;
use serde::Serialize;
use serde::de::DeserializeOwned;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Result, note};

/// Predicts items in blocks from a source, with a sink that takes the outputs in the same order.
///
/// Rank 0 reads blocks of inputs and writes outputs; each rank predicts one block at a time.
pub trait Predictor {
    /// A block of inputs, or a description that identifies it.
    type Input: Serialize + DeserializeOwned;
    /// Predictions for a block; empty if each rank writes its own.
    type Output: Serialize + DeserializeOwned;

    /// Noun for the items, e.g. `records`.
    fn noun(&self) -> &'static str {
        "samples"
    }

    /// Number of items; `None` if unknown before the inputs end.
    fn items(&self) -> Option<u64> {
        None
    }

    /// Number of items stored by an earlier attempt, which are not predicted again.
    fn done(&self) -> u64 {
        0
    }

    /// Whether the same command would continue after the items that are done, and not begin again.
    fn resumes(&self) -> bool {
        true
    }

    /// Reads the next block of inputs and returns it with its number of items; `None` after the last one. Called on
    /// rank 0.
    fn read(&mut self) -> Result<Option<(Self::Input, u64)>>;

    /// Predicts a block. Called on any rank.
    fn predict(&self, input: Self::Input) -> Result<Self::Output>;

    /// Writes the predictions for one or more blocks, after which the first `done` items are complete. Called on rank
    /// 0.
    fn write(&mut self, outputs: Vec<Self::Output>, done: u64) -> Result<()>;

    /// Publishes the output once it is complete. Called on rank 0.
    fn publish(&mut self) -> Result<()> {
        Ok(())
    }

    /// Number of items, among those that are done, for which the output has an error instead of a prediction. Called on
    /// rank 0.
    fn failed(&self) -> u64 {
        0
    }
}

/// What was predicted; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicted {
    /// Number of items.
    pub items: u64,
    /// How many of them have an error instead of a prediction.
    pub failed: u64,
    /// Noun for the items.
    pub noun: &'static str,
}

/// Type-erased interface to a [`Predictor`].
pub trait Prediction {
    /// Predicts all items; see [`predict`].
    fn run(&mut self, ranks: &dyn Collective, signals: Signals) -> Result<Predicted>;
}

impl<P: Predictor> Prediction for P {
    fn run(&mut self, ranks: &dyn Collective, signals: Signals) -> Result<Predicted> {
        let items = predict(self, ranks, signals)?;
        let failed = broadcast(ranks, self.failed())?;
        Ok(Predicted { items, failed, noun: self.noun() })
    }
}

/// Predicts all items and returns their number.
///
/// Errors: errors of the predictor; 75 after a stop signal, with all complete blocks stored.
pub fn predict<P: Predictor>(
    predictor: &mut P,
    ranks: &dyn Collective,
    signals: Signals,
) -> Result<u64> {
    let leads = ranks.rank() == 0;
    let (mut done, resumes) = broadcast(ranks, (predictor.done(), predictor.resumes()))?;
    let (noun, all) = (predictor.noun(), predictor.items());
    if leads && done > 0 {
        note!("resuming after {done} {noun}");
    }
    // No progress bar for a stream, because its length is unknown.
    let mut progress = all.filter(|_| leads).map(|all| Progress::new(noun, all));
    progress.iter_mut().for_each(|progress| progress.resume_at(done));
    loop {
        // One block for each rank.
        let (mut blocks, mut counts) = (Vec::new(), Vec::new());
        while leads && blocks.len() < ranks.size() {
            let Some((block, items)) = predictor.read()? else { break };
            counts.push(items);
            blocks.push(Some(block));
        }
        let mut blocks: Vec<Option<P::Input>> = broadcast(ranks, blocks)?;
        if blocks.is_empty() {
            break;
        }
        let own = blocks.get_mut(ranks.rank()).and_then(Option::take);
        let found = unless_stopped(own.map(|block| predictor.predict(block)))?;
        let stops = signals.stop_requested().is_some();
        // In JSON, an output without content is like none.
        let is_complete = found.is_some();
        let every: Vec<(Option<P::Output>, bool, bool)> =
            gather(ranks, (found, is_complete, stops))?;
        let stops = every.iter().any(|(.., stops)| *stops);
        if leads {
            let complete = every.iter().take_while(|(_, is_complete, _)| *is_complete).count();
            done += counts[..complete].iter().sum::<u64>();
            let found = every.into_iter().take(complete).filter_map(|(found, ..)| found);
            predictor.write(found.collect(), done)?;
            progress.iter_mut().for_each(|progress| progress.set(done));
        }
        if stops {
            return Err(match resumes {
                true => stopped(signals),
                false => stopped_with(signals, || {
                    "the same command begins again: output to stdout, and input from stdin, are not resumed".into()
                }),
            });
        }
    }
    drop(progress);
    if leads {
        predictor.publish()?;
    }
    Ok(done)
}
