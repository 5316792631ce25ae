//! How training reads: the order of the samples of one source or of several, and threads that prepare
//! batches ahead.

mod mixture;
mod order;
mod prefetch;

pub use mixture::Mixture;
pub use order::Order;
pub use prefetch::{Ahead, Prefetch};
