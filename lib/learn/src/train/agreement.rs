//! What the ranks of a run agree on: before it, whether all can begin; before each update, whether to stop
//! or save after it, so that all do at the same one.

use dist::Collective;
use serde::{Deserialize, Serialize};
use unix::{Error, Result};

/// What this rank has, if all ranks have theirs; else the error that all leave with, that of the lowest rank.
/// Rank 0 prints its error; the others print theirs if it is a different one. Errors: those of the ranks, and
/// of the only one.
pub fn all_or_none<T>(ranks: &dyn Collective, own: Result<T>) -> Result<Result<T, Error>> {
    if ranks.size() == 1 {
        return own.map(Ok);
    }
    let told = own.as_ref().err().map(|error| (error.exit as u8, error.to_string()));
    let all = ranks.gather(&serde_json::to_vec(&told).map_err(Error::bug)?)?;
    let all: Result<Vec<Option<(u8, String)>>, _> =
        all.iter().map(|told| serde_json::from_slice(told)).collect();
    let all = all.map_err(Error::bug)?;
    let first = all.iter().enumerate().find_map(|(rank, told)| Some((rank, told.as_ref()?)));
    let Some((rank, (exit, text))) = first else { return own.map(Ok) };
    if let Err(error) = own
        && (ranks.rank() == 0 || told != all[0])
    {
        unix::diagnostics::say(error);
    }
    let error = Error::new(super::opening::exit_of(*exit), text);
    Ok(Err(error.context(format_args!("rank {rank} on {}", ranks.host(rank)))))
}

/// Why a run stops; of several causes the last one here decides how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cause {
    /// A signal, the time or the budget.
    Asked,
    /// Saves fail.
    Unsaved,
    /// A machine errs.
    Machine,
    /// An input file changed; the exit status.
    Changed(u8),
    /// Another process has the run, or its directory was moved, removed or replaced; the exit status.
    Lost(u8),
}

/// A wish to stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    /// What kind of stop it is.
    pub cause: Cause,
    /// Why, in words.
    pub why: String,
}

/// What a rank, or all of them, want.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wish {
    /// To stop.
    pub stop: Option<Stop>,
    /// To save after this update.
    pub save: bool,
}

/// The wishes of all ranks as one: whoever wants to stop stops all.
pub fn agree(ranks: &dyn Collective, own: Wish) -> Result<Wish> {
    if ranks.size() == 1 {
        return Ok(own);
    }
    // Almost always nobody wants anything, which is told in no bytes.
    let told = match own == Wish::default() {
        true => Vec::new(),
        false => serde_json::to_vec(&own).map_err(Error::bug)?,
    };
    let mut all = Wish::default();
    for (rank, told) in ranks.gather(&told)?.iter().enumerate().filter(|(_, told)| !told.is_empty())
    {
        let wish: Wish = serde_json::from_slice(told).map_err(Error::bug)?;
        if let Some(mut stop) = wish.stop
            && all.stop.as_ref().is_none_or(|known| known.cause < stop.cause)
        {
            if rank > 0 {
                stop.why = format!("{} (rank {rank} on {})", stop.why, ranks.host(rank));
            }
            all.stop = Some(stop);
        }
        all.save |= wish.save;
    }
    Ok(all)
}
