//! Collectives for agreement between ranks: whether all of them can start, and before each update whether to stop or
//! save.

use dist::Collective;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use unix::{Error, Exit, Result};

/// Gathers the values of all ranks, in rank order. A collective call.
pub fn gather<T: Serialize + DeserializeOwned>(ranks: &dyn Collective, own: T) -> Result<Vec<T>> {
    if ranks.size() == 1 {
        return Ok(vec![own]);
    }
    let all = ranks.all_gather_bytes(&serde_json::to_vec(&own).map_err(Error::bug)?)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(Error::bug)).collect()
}

/// Returns the value of rank 0 on all ranks; the values of the other ranks are ignored. A collective call.
pub fn broadcast<T: Serialize + DeserializeOwned>(ranks: &dyn Collective, own: T) -> Result<T> {
    if ranks.size() == 1 {
        return Ok(own);
    }
    let value = ranks.broadcast(serde_json::to_vec(&own).map_err(Error::bug)?)?;
    serde_json::from_slice(&value).map_err(Error::bug)
}

/// Returns this rank's value if all ranks succeeded; otherwise all ranks get the error of the lowest rank that failed.
/// Rank 0 prints its own error; the others print theirs only if it differs. Errors: communication errors; with one
/// rank, its own error.
pub fn all_ok<T>(ranks: &dyn Collective, own: Result<T>) -> Result<Result<T, Error>> {
    if ranks.size() == 1 {
        return own.map(Ok);
    }
    let failed = own.as_ref().err().map(|error| (error.exit as u8, error.to_string()));
    let all = gather(ranks, failed.clone())?;
    let first = all.iter().enumerate().find_map(|(rank, failed)| Some((rank, failed.as_ref()?)));
    let Some((rank, (exit, text))) = first else { return own.map(Ok) };
    if let Err(error) = own
        && (ranks.rank() == 0 || failed != all[0])
    {
        unix::diagnostics::say(error);
    }
    let error = Error::new(Exit::of(*exit), text);
    Ok(Err(error.context(format_args!("rank {rank} on {}", ranks.host(rank)))))
}

/// Cause of a stop. If ranks have different causes, the last one in this order wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cause {
    /// A stop request: a signal, the time limit or the cost budget.
    Asked,
    /// Saves keep failing.
    Unsaved,
    /// Faulty hardware.
    Machine,
    /// An input file has changed; holds the exit status.
    Changed(u8),
    /// Another process holds the run, or its directory was moved, removed or replaced; holds the exit status.
    Lost(u8),
}

/// A request to stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    /// Cause of the stop.
    pub cause: Cause,
    /// Reason for the stop, as text for users.
    pub why: String,
}

impl Stop {
    /// Whether the run directory must no longer be written to.
    pub fn is_lost(&self) -> bool {
        matches!(self.cause, Cause::Lost(_))
    }
}

/// Requests of one rank, or of all ranks combined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankRequest {
    /// Stop before the next update.
    pub stop: Option<Stop>,
    /// Whether to save after the next update.
    pub save: bool,
}

/// Combines the requests of all ranks; a single rank can stop all of them.
pub fn reduce_requests(ranks: &dyn Collective, own: RankRequest) -> Result<RankRequest> {
    if ranks.size() == 1 {
        return Ok(own);
    }
    // Usually no rank has a request; it is then sent as an empty message.
    let own = match own == RankRequest::default() {
        true => Vec::new(),
        false => serde_json::to_vec(&own).map_err(Error::bug)?,
    };
    let mut all = RankRequest::default();
    for (rank, bytes) in
        ranks.all_gather_bytes(&own)?.iter().enumerate().filter(|(_, b)| !b.is_empty())
    {
        let request: RankRequest = serde_json::from_slice(bytes).map_err(Error::bug)?;
        if let Some(mut stop) = request.stop
            && all.stop.as_ref().is_none_or(|known| known.cause < stop.cause)
        {
            if rank > 0 {
                stop.why = format!("{} (rank {rank} on {})", stop.why, ranks.host(rank));
            }
            all.stop = Some(stop);
        }
        all.save |= request.save;
    }
    Ok(all)
}
