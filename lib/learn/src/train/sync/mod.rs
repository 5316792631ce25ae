//! Agreement between the ranks of a run on stops, saves and equal parameters.

mod comparison;
mod requests;

pub(super) use comparison::{Comparison, differing_rank, hosts, is_comparing};
pub(super) use requests::{Cause, RankRequest, Stop, reduce_requests};
pub use requests::{all_ok, broadcast, gather};
