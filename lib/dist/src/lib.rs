//! Collective communication between the ranks of one training run.
//!
//! The training loop uses only [`Collective`]. Rank 0 makes and broadcasts every decision on which ranks could disagree
//! (stopping, skipping an update, saving). On the host, sums over ranks follow one fixed tree (`sum`): the result has
//! the same bits on every rank, in every run, and for every distribution of the ranks over hosts. NCCL sums have the
//! same bits on every rank.
//!
//! If a rank dies, is suspended or never reaches a collective, the job ends with a message that names the rank: no
//! method here blocks forever ([`Collective::watch`]).

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
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Exit, Result};

/// The ranks of a run, as seen from one of them. Every rank calls the same methods in the same order.
///
/// Errors: the ranks did not make the same call, or the network failed. A lost rank is not reported as an error: it
/// ends the process ([`Collective::watch`]).
pub trait Collective: Send + Sync {
    /// Number of this rank, starting at 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Index of this rank among those on its host, which selects its GPU.
    fn local_rank(&self) -> usize;

    /// Name of the host of a rank, for messages.
    fn host(&self, rank: usize) -> String;

    /// Sends the bytes of rank 0 to all ranks; the arguments of the other ranks are ignored.
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>>;

    /// All-gather: every rank gets the bytes of all ranks, in rank order. Ranks may pass different lengths.
    fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// All-gather of tensors: replaces each tensor, in place, by the one on the rank listed with it. The list is the
    /// same on all ranks, and its tensors are on one device. Blocks only for work on the host: kernels launched later
    /// see the new values.
    fn all_gather(&self, owned: &mut [(usize, &mut Tensor)]) -> Result<()>;

    /// All-reduce of a small f64 tensor that has the same length on all ranks: every rank gets the sum over all ranks,
    /// computed in rank order on the host and in NCCL's order on a GPU.
    fn all_reduce(&self, tensor: &mut Tensor) -> Result<()>;

    /// Whether NCCL sums tensors on `device`, in its own order. Otherwise [`Collective::reducer`] sums along the fixed
    /// tree.
    fn uses_nccl(&self, device: Device) -> bool;

    /// Creates the reducer that sums gradients concurrently with the backward pass, for tensors on `device`, grouped
    /// into `buckets` of f32 tensors. Called once per run by all ranks. Errors: NCCL is missing for tensors on a GPU;
    /// without NCCL, a bucket is to be summed in a dtype other than f32.
    fn reducer(&self, device: Device, buckets: &[Bucket]) -> Result<Box<dyn Reducer>>;

    /// Starts to watch the other ranks closely. When a rank is gone, suspended or late for a collective, this process
    /// reports the rank and its host, and ends the job with the exit status returned by the `lost` function passed to
    /// [`open`]. A rank is late after 25 s, or after 20 times this rank's longest time between two collectives if that
    /// is more, so that slow work raises no alarm. Before this call, a rank is late after ten minutes.
    fn watch(&self);

    /// Makes the other ranks wait up to `at_most` for this rank while the returned guard lives. For work that not all
    /// ranks do, such as writing a checkpoint.
    fn busy(&self, at_most: Duration) -> Busy<'_>;

    /// Shuts down cleanly; called by all ranks together, and no other method may be called afterwards. A process that
    /// exits without it (with an error) ends the job.
    fn close(&self) -> Result<()>;

    /// Aborts after an error on this rank only: prints the error and ends all ranks with its exit status, so that the
    /// others do not report a lost rank instead. With a single rank it returns the error.
    fn abort(&self, error: Error) -> Error;
}

/// Tensors that are summed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Total number of elements in these tensors.
    pub elements: usize,
    /// The only rank that uses the sum, if there is one: NCCL then sends the sum only to that rank, which halves the
    /// traffic. On the other ranks the result is undefined.
    pub owner: Option<usize>,
    /// The dtype in which NCCL sums the tensors.
    pub dtype: Dtype,
}

impl From<usize> for Bucket {
    fn from(elements: usize) -> Self {
        Self { elements, owner: None, dtype: Dtype::F32 }
    }
}

/// Sums gradients over ranks concurrently with the backward pass: on a separate thread (host) or a separate stream
/// (GPU). The order of buckets is the same on all ranks.
pub trait Reducer: Send {
    /// Returns uninitialised tensors with `shapes` in the memory in which a bucket is summed, or `None` if the reducer
    /// has no such memory. Gradients written there need no copy. Each tensor must be submitted with the bucket or
    /// dropped before the bucket is submitted. Waits until no rank reads the sum of the previous round. Errors: a
    /// buffer or a sum of the bucket is still held.
    fn buffers(&mut self, _bucket: usize, _shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// Starts to sum a bucket. Its tensors (f32) must have as many elements in total as the bucket. Errors: a sum of
    /// the bucket, or a buffer of the bucket that is not among `gradients`, is still held.
    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()>;

    /// Waits for a submitted bucket and returns its sum, as tensors of the submitted shapes. All ranks may read the
    /// same memory: drop the tensors before requesting buffers of the bucket or submitting it again.
    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>>;

    /// Returns the times since the last call, and resets them.
    fn take_times(&mut self) -> Times;
}

/// Time spent on sums over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Total communication time, measured from the moment at which every rank has submitted its gradients.
    pub busy: Duration,
    /// Time blocked in [`Reducer::wait`]: communication that the backward pass did not hide.
    pub waited: Duration,
}

/// Guard returned by [`Collective::busy`].
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

/// Connects to the ranks that the launcher (`srun`, `mpirun`) started together with this process. Without a launcher it
/// returns [`Solo`] and does not touch MPI. Signal handlers installed before the call remain in place.
///
/// When a rank is lost, or the ranks do not connect within LONGHAUL_START_LIMIT, the job ends with the exit status that
/// `lost` returns: `Again` if there is a checkpoint.
///
/// Errors: this program was built without MPI; or the launcher started several tasks but MPI sees only one, so that
/// several independent runs would overwrite each other.
pub fn open(lost: impl Fn() -> Exit + Send + Sync + 'static) -> Result<Box<dyn Collective>> {
    match launch::detect() {
        launch::Launch::Alone => Ok(Box::new(Solo)),
        #[cfg(feature = "mpi")]
        launch::Launch::Tasks(tasks) => {
            Ok(Box::new(mpi::Ranks::open(tasks, std::sync::Arc::new(lost))?))
        }
        #[cfg(not(feature = "mpi"))]
        launch::Launch::Tasks(tasks) => {
            drop(lost);
            Err(launch::without_mpi(tasks))
        }
    }
}
