//! How training reads: the order of the samples, and a thread that prepares batches ahead.

mod order;
mod prefetch;

pub use order::Order;
pub use prefetch::Prefetch;
