//! Divides the samples of sources into training, validation and test splits.

use super::groups::{Divider, grouped, quotas, shuffled};
use super::{By, Divisible, GroupBy, Share, Source, SourceSamples, Split, SplitName, folder_of};
use crate::torch_order::randperm;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unix::relative::relative;
use unix::{Error, Result};

/// Options of [`divide`].
#[derive(Clone, Copy, Debug)]
pub struct DivideRequest<'a> {
    /// Samples at random ([`By::Trajectory`]), in their original order ([`By::Index`]) or in torch's order
    /// ([`By::Torch`]), whole regimes ([`By::Parameter`]), or whole sources ([`By::File`]).
    pub by: By,
    /// Which trajectories share a split; `None` for records, whose stores have groups.
    pub group_by: Option<GroupBy>,
    /// Shares of train, validation and test among the samples that are not `fixed`.
    pub shares: [Share; 3],
    /// Sources that go to one split as a whole.
    pub fixed: &'a [(PathBuf, SplitName)],
    /// Seed of the random assignment.
    pub seed: u64,
    /// Groups of texts with a distance below this also stay together.
    pub near: Option<f64>,
}

/// Merged groups, as a union-find structure: maps a group to another group that represents it.
#[derive(Clone, Debug, Default)]
pub struct SameGroup(HashMap<blake3::Hash, blake3::Hash>);

impl SameGroup {
    /// Returns the representative of `group`.
    fn of(&self, mut group: blake3::Hash) -> blake3::Hash {
        while let Some(other) = self.0.get(&group) {
            group = *other;
        }
        group
    }

    /// Merges two groups.
    pub fn join(&mut self, a: blake3::Hash, b: blake3::Hash) {
        let roots = [a, b].map(|group| self.of(group));
        if roots[0] != roots[1] {
            self.0.insert(roots[0], roots[1]);
        }
        // Path compression for later calls.
        for group in [a, b].into_iter().filter(|group| *group != roots[1]) {
            self.0.insert(group, roots[1]);
        }
    }
}

/// A sample: the index of its source, and its index in the source.
type Entry = (usize, usize);

/// Divides the samples of the sources at `paths`, and of those in `request.fixed`, for a manifest that will be saved at
/// `manifest`.
///
/// Errors: those of the sources; 65 when their contents are incompatible or a source is named twice, and when samples
/// that stay together leave a split empty; 2 for shares that cannot be met.
pub fn divide<C: Divisible>(
    request: &DivideRequest,
    paths: &[PathBuf],
    manifest: &Path,
) -> Result<Split<C>> {
    let DivideRequest { by, group_by, shares, fixed, seed, near } = *request;
    if near.is_some() && by != By::Trajectory {
        return Err(Error::usage(format!("--near: no effect on --by {by}, which ignores groups")));
    }
    if near.is_some() && !C::Source::HAS_DISTANCES {
        return Err(Error::usage("--near: only texts are compared by their distance"));
    }
    let mut sources: Vec<C::Source> = Vec::new();
    for path in paths.iter().chain(fixed.iter().map(|(path, _)| path)) {
        let source = C::Source::open(path)?;
        let same = sources.iter().find(|other| other.hash() == source.hash());
        let what = match same.map(|other| other.path().display()) {
            Some(other) => Some(format!("has the same content as {other}; name it once")),
            None => sources.first().and_then(|first| source.difference(first)),
        };
        if let Some(what) = what {
            return Err(Error::data(format!("{}: {what}", path.display())));
        }
        sources.push(source);
    }
    let (free, given) = sources.split_at_mut(paths.len());
    let Some(content) = free.first().map(Source::content) else {
        return Err(Error::usage(format!("no {}s to split", C::WORDS[0])));
    };
    let mut chosen = match by {
        By::Trajectory => at_random(request, free, &content)?,
        By::Parameter => {
            let mut units = Vec::new();
            for own in regimes(free) {
                let Some((_, values)) = free[own[0]].regime() else {
                    let what = "--by parameter: records have no parameter; use another unit";
                    return Err(Error::usage(what));
                };
                units.push((values, samples(free, own)));
            }
            units.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal));
            in_order(units.into_iter().map(|(_, unit)| unit).collect(), shares, "regime")?
        }
        By::File => {
            let random = shuffled(seed, free.len());
            let units = (0..free.len()).map(|place| samples(free, vec![random(place)]));
            in_order(units.collect(), shares, C::WORDS[0])?
        }
        By::Index | By::Torch if free.iter().any(|source| source.regime().is_some()) => {
            return Err(Error::usage(format!(
                "--by {by}: only records of arrays and texts are divided in an order"
            )));
        }
        By::Index | By::Torch => {
            let mut all = samples(free, (0..free.len()).collect());
            if by == By::Torch {
                all = randperm(all.len(), seed).into_iter().map(|i| all[i]).collect();
            }
            in_order(all.into_iter().map(|entry| [entry]).collect(), shares, C::WORDS[1])?
        }
    };
    for ((number, source), (_, split)) in (paths.len()..).zip(given).zip(fixed) {
        chosen[*split as usize].extend((0..source.len()).map(|sample| (number, sample)));
    }
    let path = |source: &C::Source| relative(source.path(), folder_of(manifest));
    let paths = sources.iter().map(path).collect::<Result<_>>()?;
    let (list, [train, validation, test]) = (C::list(&sources, paths), chosen.map(parts));
    Ok(Split { seed, by, group_by, shares, content, list, train, validation, test })
}

/// Lists the samples of some sources.
fn samples<S: Source>(sources: &[S], of: Vec<usize>) -> Vec<Entry> {
    of.into_iter().flat_map(|s| (0..sources[s].len()).map(move |i| (s, i))).collect()
}

/// Returns the sources of each regime, in order of first appearance. Records form a single regime.
fn regimes<S: Source>(sources: &[S]) -> Vec<Vec<usize>> {
    let name = |source: &S| source.regime().map_or(String::new(), |(name, _)| name);
    let keys = sources.iter().map(|source| blake3::hash(name(source).as_bytes()));
    grouped(keys.enumerate()).into_iter().map(|regime| regime.records).collect()
}

/// Assigns the first units to training and the last ones to the test. Errors: 2 when there are too few for the shares.
fn in_order<U: IntoIterator<Item = Entry>>(
    units: Vec<U>,
    shares: [Share; 3],
    unit: &str,
) -> Result<[Vec<Entry>; 3]> {
    let quotas = quotas(shares, units.len()).map_err(|why| {
        let plural = if units.len() == 1 { "" } else { "s" };
        Error::usage(format!("{} {unit}{plural}, {why}; lower the shares", units.len()))
    })?;
    let mut units = units.into_iter();
    Ok(quotas.map(|count| units.by_ref().take(count).flatten().collect()))
}

/// Divides samples at random. Samples of a group stay together, across sources and regimes. Every regime is divided in
/// the requested proportions, the smallest one first, because larger ones have more freedom to compensate.
fn at_random<C: Divisible>(
    request: &DivideRequest,
    sources: &mut [C::Source],
    content: &C,
) -> Result<[Vec<Entry>; 3]> {
    sources.iter_mut().try_for_each(|source| source.prepare(request.group_by))?;
    let sources = &*sources;
    let near = request.near.map(|distance| C::Source::near_groups(sources, distance));
    let same = near.unwrap_or_default();
    let mut regimes = regimes(sources);
    regimes.sort_by_key(|own| own.iter().map(|s| sources[*s].len()).sum::<usize>());
    let mut divider = Divider::new(request.shares, request.seed);
    for own in regimes {
        divide_regime(request, sources, own, &same, content, &mut divider)?;
    }
    Ok(divider.chosen)
}

/// Divides the samples of the sources `own`. Every stratum is divided in the same proportions, as far as groups and the
/// size of the stratum permit, the smallest one first.
fn divide_regime<C: Divisible>(
    request: &DivideRequest,
    sources: &[C::Source],
    own: Vec<usize>,
    same: &SameGroup,
    content: &C,
    divider: &mut Divider<Entry>,
) -> Result<()> {
    let shares = request.shares;
    let (names, regime) = match sources[own[0]].regime() {
        Some((regime, _)) => (format!("{}: ", names(sources, &own)), format!(" of {regime}")),
        None => (String::new(), String::new()),
    };
    let keyed = |entries: Vec<Entry>| {
        grouped(entries.into_iter().map(|(s, i)| ((s, i), same.of(sources[s].group(i)))))
    };
    let all = samples(sources, own);
    let unit = C::WORDS[if all.len() == 1 { 1 } else { 2 }];
    let what = format!("{} {unit}{regime}", all.len());
    let wanted = quotas(shares, all.len()).map_err(|why| {
        let others = match regime.is_empty() {
            true => "",
            false => ", give them as counts, or divide whole regimes with --by parameter",
        };
        Error::usage(format!("{names}{what}, {why}; lower the shares{others}"))
    })?;
    let entries = all.iter().copied();
    let mut strata = grouped(entries.map(|(s, i)| ((s, i), sources[s].stratum(i))));
    strata.sort_by_key(|stratum| stratum.records.len());
    let (mut left, mut rest, mut placed) = (wanted, all.len(), [0; 3]);
    for stratum in strata {
        let size = stratum.records.len();
        let own = divider.stratum(&keyed(stratum.records), proportional(left, size, rest));
        rest -= size;
        for split in 0..3 {
            left[split] = left[split].saturating_sub(own[split]);
            placed[split] += own[split];
        }
    }
    // Counts of trajectories must be met exactly, counts of records as far as groups permit.
    let is_wrong = |split: &usize| match shares[*split] {
        Share::Count(count) if !regime.is_empty() => placed[*split] != count,
        share => placed[*split] == 0 && !share.is_zero(),
    };
    let Some(split) = (0..3).find(is_wrong) else { return Ok(()) };
    let sizes: Vec<usize> = keyed(all).iter().map(|group| group.records.len()).collect();
    let (reason, advice) = reason_and_advice(&what, &sizes, request.group_by, content);
    Err(Error::data(format!(
        "{names}{reason}, and a group is never divided, so {} gets {} of {} {}; {advice}choose other shares",
        SplitName::ALL[split],
        placed[split],
        wanted[split],
        C::WORDS[2]
    )))
}

/// Returns the reason why shares are missed, and advice besides choosing other shares. `what` names the divided
/// samples, whose groups have these `sizes`.
fn reason_and_advice<C: Divisible>(
    what: &str,
    sizes: &[usize],
    group_by: Option<GroupBy>,
    content: &C,
) -> (String, &'static str) {
    let reason = match (sizes, content.in_common(group_by)) {
        ([_], in_common) => format!("all {what} share {}", in_common.unwrap_or("a group")),
        (_, in_common) => format!(
            "the {what} form {} groups{} (the largest has {})",
            sizes.len(),
            in_common.map_or(String::new(), |what| format!(" that share {what}")),
            sizes.iter().max().unwrap_or(&0)
        ),
    };
    let advice = match group_by {
        Some(GroupBy::State) => {
            "--group-by content keeps only identical trajectories together, or "
        }
        Some(GroupBy::Content) => "remove the copies, or ",
        None => "",
    };
    (reason, advice)
}

/// Lists the paths of some sources; only the first three are named.
fn names<S: Source>(sources: &[S], of: &[usize]) -> String {
    let names = of.iter().take(3).map(|s| sources[*s].path().display().to_string());
    let names: Vec<String> = names.collect();
    match of.len() {
        0..=3 => names.join(", "),
        count => format!("{} and {} more files", names.join(", "), count - 3),
    }
}

/// Computes the quotas of a stratum of `size` samples when `rest` samples are left, of which the splits still need
/// `wanted`. Cumulative proportions are rounded.
fn proportional(wanted: [usize; 3], size: usize, rest: usize) -> [usize; 3] {
    let (mut sum, mut rounded) = (0, 0);
    wanted.map(|wanted| {
        sum += wanted;
        let end = (sum as f64 * size as f64 / rest as f64).round() as usize;
        let own = end - rounded;
        rounded = end;
        own
    })
}

/// Sorts entries and collects them by source.
fn parts(mut entries: Vec<Entry>) -> Vec<SourceSamples> {
    entries.sort_unstable();
    let part = |own: &[Entry]| SourceSamples {
        file: own[0].0,
        samples: own.iter().map(|(_, sample)| *sample).collect(),
    };
    entries.chunk_by(|a, b| a.0 == b.0).map(part).collect()
}
