//! Agreement between the ranks of a run: on stops, saves, and equal parameters.

mod comparison;
mod requests;

pub(super) use comparison::{Comparison, differing_rank, hosts, is_comparing};
pub use requests::all_ok;
pub(super) use requests::{Cause, Request, Stop, broadcast, gather, reduce_requests};
