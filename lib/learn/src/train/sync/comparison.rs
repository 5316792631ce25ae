//! Checks that all ranks have the same parameters. For a checkpoint saved during training, this happens concurrently:
//! while rank 0 copies its tensors, the other ranks hash theirs. The hash of rank 0 comes from the thread that writes
//! the checkpoint, which hashes everything it writes.

use crate::checkpoint::{Condition, FileEntry};
use crate::params::hash_of;
use crate::train::TrainJob;
use dist::Collective;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use unix::{Error, Exit, Result};

/// Message about a rank with different parameters, set by the thread that writes checkpoints.
#[derive(Default)]
pub(in crate::train) struct Comparison(Arc<OnceLock<String>>);

/// Channel that sends the hashes of all ranks to the writing thread.
type HashSender = Sender<Vec<Vec<u8>>>;

/// Whether the parameters are compared across ranks.
pub(in crate::train) fn is_comparing(job: &TrainJob) -> bool {
    job.ranks.size() > 1 && job.task.config.training.hash_every > 0
}

/// Returns the host name of each rank.
pub(in crate::train) fn hosts(ranks: &dyn Collective) -> Vec<String> {
    (0..ranks.size()).map(|rank| ranks.host(rank)).collect()
}

/// Returns a message about the first rank whose hash differs from that of rank 0; None if all are equal.
pub(in crate::train) fn differing_rank(
    hashes: &[Vec<u8>],
    hosts: &[String],
    update: u64,
) -> Option<String> {
    let rank = hashes.iter().position(|theirs| *theirs != hashes[0])?;
    Some(format!(
        "machine, not data: after update {update} rank {rank} on {} has different parameters from rank 0 on {}; \
         resume on other machines and have both tested",
        hosts[rank], hosts[0]
    ))
}

impl Comparison {
    /// Returns the condition for publishing a checkpoint of update `update`, and the channel for sending it the hashes
    /// of all ranks, where that of rank 0 is empty. None when ranks are not compared.
    pub fn condition(&self, job: &TrainJob, update: u64) -> Option<(HashSender, Condition)> {
        if !is_comparing(job) {
            return None;
        }
        let (sender, hashes) = channel::<Vec<Vec<u8>>>();
        let (hashes, hosts, found) = (Mutex::new(hashes), hosts(job.ranks), Arc::clone(&self.0));
        let condition: Condition = Arc::new(move |files| {
            let hashes = hashes.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let mut all = hashes
                .map_err(|_| Error::bug("the hashes of the other ranks were not received"))?;
            all[0] = own(files)?.into_bytes();
            let Some(why) = differing_rank(&all, &hosts, update) else { return Ok(()) };
            // Only the first difference is kept.
            let _ = found.set(why.clone());
            Err(Error::new(Exit::Failure, why))
        });
        Some((sender, condition))
    }

    /// Returns the message about a differing rank, if one was found.
    pub fn found(&self) -> Option<String> {
        self.0.get().cloned()
    }
}

/// Returns the hash of the parameters as written to the checkpoint.
fn own(files: &[FileEntry]) -> Result<String> {
    let model = files.iter().find(|file| file.stem() == "model");
    let model = model.ok_or_else(|| Error::bug("the checkpoint has no parameters"))?;
    Ok(hash_of(model.tensors.iter().map(|tensor| tensor.blake3.as_str())))
}
