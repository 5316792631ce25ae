//! Collectives: what the ranks of one training run say to each other.
//!
//! The loop is written against [`Collective`] alone. Whatever could differ from rank to rank (to
//! stop, to skip an update, to save) is decided on rank 0 and broadcast. Sums over ranks are taken in
//! one fixed tree (`sum`), so that they have the same bits on every rank, in every run, and however
//! the ranks are spread over hosts.
//!
//! A rank that dies, is stopped or never comes ends the job with a line that names it: no method here
//! waits for ever ([`Collective::watch`]).

mod launch;
#[cfg(feature = "mpi")]
mod mpi;
mod solo;
#[cfg(feature = "mpi")]
mod sum;
mod threads;

pub use solo::Solo;
pub use threads::threads;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tensor::{Device, Tensor};
use unix::{Error, Exit, Result};

/// The ranks of a run, seen from one of them. Every rank calls the same methods in the same order.
///
/// Errors: the ranks did not make the same call, or the network failed. A rank that is gone is no
/// error of a call: it ends the process ([`Collective::watch`]).
pub trait Collective: Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Number of this rank among those of its host: which GPU is its own.
    fn local_rank(&self) -> usize;

    /// Name of the host of a rank, for messages.
    fn host(&self, rank: usize) -> String;

    /// All ranks get the bytes of rank 0; those of the others are not looked at.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// All ranks get the bytes of all, by rank; they may differ in length.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Each tensor becomes that of the rank named with it. The list is the same on all ranks.
    fn share(&self, owned: &mut [(usize, &mut Tensor)]) -> Result<()>;

    /// Whether [`Collective::reducer`] sums tensors on `device` in the fixed tree; NCCL has an order of
    /// its own.
    fn sums_in_tree(&self, device: Device) -> bool;

    /// What sums gradients beside the backward pass: for tensors on `device`, in buckets of so many
    /// elements (f32). Made once a run, by all ranks. Errors: no NCCL for tensors on a GPU.
    fn reducer(&self, device: Device, buckets: &[usize]) -> Result<Box<dyn Reducer>>;

    /// Begins to watch the other ranks closely. When one is gone, stopped, or has not come to a
    /// collective for 25 s (and 20 times the longest time between two of ours, so that slow work is
    /// no alarm), this process says which and where, and ends the job with the status that was given to
    /// [`open`]. Before this call, only ranks that are gone or stopped, or come ten minutes late, do so.
    fn watch(&self);

    /// For as long as the value lives, the others wait this long for this rank: for work that not all
    /// ranks do, such as writing a checkpoint.
    fn busy(&self, at_most: Duration) -> Busy<'_>;

    /// The regular end, by all ranks together; nothing else may be called afterwards. A process that
    /// ends without it (with an error) takes the job down.
    fn close(&self) -> Result<()>;

    /// The end after an error of this rank alone: prints it and ends all ranks with its exit status, so that
    /// the others do not report a lost rank instead. With one rank it returns the error.
    fn abort(&self, error: Error) -> Error;
}

/// Sums gradients over ranks beside the backward pass: on a thread of its own (host), or a stream of its
/// own (GPU). The order of buckets is the same on all ranks.
pub trait Reducer: Send {
    /// Tensors of these shapes, of arbitrary content, in the memory in which a bucket is summed, where there is
    /// such memory: gradients that are made there need no copy. Each is given with the bucket or dropped before.
    /// Waits until no rank reads the sum of the round before. Errors: a room or a sum of the bucket is still held.
    fn rooms(&mut self, _bucket: usize, _shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// Begins to sum a bucket: its tensors (f32), whose elements together are those of the bucket. Errors: a
    /// room that is not among them, or a sum of the bucket, is still held.
    fn give(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()>;

    /// Waits for a bucket that was given: its sum, in tensors of the shapes that were given. All ranks may read
    /// one memory: they are to be dropped before rooms of the bucket are asked for, or it is given again.
    fn take(&mut self, bucket: usize) -> Result<Vec<Tensor>>;

    /// What it took since the last call.
    fn times(&mut self) -> Times;
}

/// Time for sums over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Communication in all, from the moment when every rank has given.
    pub busy: Duration,
    /// How long [`Reducer::take`] waited: what was not hidden behind the backward pass.
    pub waited: Duration,
}

/// See [`Collective::busy`].
#[must_use = "it ends when it is dropped"]
#[derive(Debug)]
pub struct Busy<'a>(Option<&'a AtomicU64>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(patience) = self.0 {
            patience.store(0, Ordering::Relaxed);
        }
    }
}

/// The ranks that the launcher (`srun`, `mpirun`) started together with this process; without a
/// launcher [`Solo`], and MPI is not touched. Handlers of signals that are set before stand afterwards.
///
/// When a rank is lost, or the ranks do not find each other within LONGHAUL_START_LIMIT, the job ends with
/// the status that `lost` then gives: `Again` when a checkpoint stands.
///
/// Errors: this program was built without MPI; or the launcher started several tasks and MPI knows of
/// one only, which would be as many runs that overwrite each other.
pub fn open(lost: impl Fn() -> Exit + Send + Sync + 'static) -> Result<Box<dyn Collective>> {
    match launch::started() {
        launch::Started::Alone => Ok(Box::new(Solo)),
        #[cfg(feature = "mpi")]
        launch::Started::Tasks(tasks) => {
            Ok(Box::new(mpi::Ranks::open(tasks, std::sync::Arc::new(lost))?))
        }
        #[cfg(not(feature = "mpi"))]
        launch::Started::Tasks(tasks) => {
            drop(lost);
            Err(launch::without_mpi(tasks))
        }
    }
}
