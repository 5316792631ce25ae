//! What the ranks of a run agree on: before it, whether all can begin; before each update, whether to stop
//! or save after it, so that all do at the same one.

use dist::Collective;
use serde::{Deserialize, Serialize};
use unix::{Error, Exit, Result};

/// What this rank has, if all ranks have theirs; else the status that all leave with. Rank 0 says what it
/// ran into; others say only what is not the same. Errors: those of the ranks, and of the only one.
pub fn all_or_none<T>(ranks: &dyn Collective, own: Result<T>) -> Result<Result<T, Exit>> {
    if ranks.size() == 1 {
        return own.map(Ok);
    }
    let told = own.as_ref().err().map(|error| (error.exit as u8, error.to_string()));
    let all = ranks.gather(&serde_json::to_vec(&told).map_err(Error::bug)?)?;
    let all: Result<Vec<Option<(u8, String)>>, _> =
        all.iter().map(|told| serde_json::from_slice(told)).collect();
    let all = all.map_err(Error::bug)?;
    let Some((exit, _)) = all.iter().flatten().next() else { return own.map(Ok) };
    if let Err(error) = own
        && (ranks.rank() == 0 || told != all[0])
    {
        unix::diagnostics::say(error);
    }
    Ok(Err(super::opening::exit_of(*exit)))
}

/// What a rank, or all of them, want.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wish {
    /// To stop, and why.
    pub stop: Option<String>,
    /// Whether that is because a machine errs.
    pub machine: bool,
    /// The exit status, when that is because an input file changed.
    pub changed: Option<u8>,
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
        let named = |why: String| match rank {
            0 => why,
            _ => format!("{why} (rank {rank} on {})", ranks.host(rank)),
        };
        all.stop = all.stop.or_else(|| wish.stop.map(named));
        all.machine |= wish.machine;
        all.changed = all.changed.or(wish.changed);
        all.save |= wish.save;
    }
    Ok(all)
}
