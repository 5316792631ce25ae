//! Collectives: what the ranks of one training run say to each other.
//!
//! The loop is written against [`Collective`] alone. Whatever could differ from rank to rank (to
//! stop, to skip an update, to save) is decided on rank 0 and broadcast.

mod solo;

pub use solo::Solo;

use tensor::Tensor;
use unix::Result;

/// The ranks of a run, seen from one of them. Every rank calls the same methods in the same order.
pub trait Collective: Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Each tensor becomes the sum of those of all ranks.
    fn all_reduce(&self, tensors: &mut [Tensor]) -> Result<()>;

    /// All ranks get what rank 0 gives.
    fn broadcast(&self, value: u64) -> Result<u64>;

    /// Waits until all ranks are here.
    fn barrier(&self) -> Result<()>;
}
