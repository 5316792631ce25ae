//! Sample order of one or several sources, and threads that prepare batches in advance.

mod buckets;
mod mixture;
mod order;
mod prefetch;

pub use buckets::Buckets;
pub use mixture::Mixture;
pub use order::Order;
pub use prefetch::{Ahead, Prefetch};
