//! What the ranks of a run agree on.

mod comparison;
mod requests;

pub(super) use comparison::{Comparison, differing_rank, hosts, is_comparing};
pub use requests::all_ok;
pub(super) use requests::{Cause, Request, Stop, reduce_requests};
