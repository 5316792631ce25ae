//! Whether all ranks have the same parameters. Of a checkpoint in the midst of training it is found out
//! beside training: while the first rank copies its tensors, the others hash theirs; what the first has,
//! the thread that writes the checkpoint knows, since it hashes all that it writes.

use super::job::Job;
use super::learner::hash_of;
use crate::checkpoint::{Condition, FileEntry};
use dist::Collective;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use unix::{Error, Exit, Result};

/// What the thread that writes checkpoints has found: which rank differs.
#[derive(Default)]
pub(super) struct Comparison(Arc<OnceLock<String>>);

/// Takes the hashes of all ranks.
type Told = Sender<Vec<Vec<u8>>>;

/// Whether ranks are compared.
pub(super) fn is_wanted(job: &Job) -> bool {
    job.ranks.size() > 1 && job.task.config.training.hash_every > 0
}

/// The hosts of all ranks.
pub(super) fn hosts(ranks: &dyn Collective) -> Vec<String> {
    (0..ranks.size()).map(|rank| ranks.host(rank)).collect()
}

/// The first rank, in words, whose hash is not that of rank 0.
pub(super) fn differ(hashes: &[Vec<u8>], hosts: &[String], update: u64) -> Option<String> {
    let rank = hashes.iter().position(|theirs| *theirs != hashes[0])?;
    Some(format!(
        "machine, not data: after update {update} rank {rank} on {} has other parameters than rank 0 on {}; \
         go on elsewhere and have both tested",
        hosts[rank], hosts[0]
    ))
}

impl Comparison {
    /// What a save after `update` must wait for, and what it wants to be told: the hashes of all ranks, that
    /// of the first left out. None where ranks are not compared.
    pub fn condition(&self, job: &Job, update: u64) -> Option<(Told, Condition)> {
        if !is_wanted(job) {
            return None;
        }
        let (tell, told) = channel::<Vec<Vec<u8>>>();
        let (told, hosts, found) = (Mutex::new(told), hosts(job.ranks), Arc::clone(&self.0));
        let condition = Condition::new(move |files| {
            let told = told.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let mut all = told.map_err(|_| Error::bug("ranks were not compared"))?;
            all[0] = own(files)?.into_bytes();
            let Some(why) = differ(&all, &hosts, update) else { return Ok(()) };
            // The first finding counts.
            let _ = found.set(why.clone());
            Err(Error::new(Exit::Failure, why))
        });
        Some((tell, condition))
    }

    /// Which rank was found to differ, in words.
    pub fn found(&self) -> Option<String> {
        self.0.get().cloned()
    }
}

/// The hash of the parameters as they were written.
fn own(files: &[FileEntry]) -> Result<String> {
    let model = files.iter().find(|file| file.stem() == "model");
    let model = model.ok_or_else(|| Error::bug("a checkpoint without parameters"))?;
    Ok(hash_of(model.tensors.iter().map(|tensor| tensor.blake3.as_str())))
}
