//! Which trajectories, regimes or files go into which split.

use super::Share;
use crate::fields::parameter::Parameter;
use crate::fields::split::{GroupBy, Part, Source, SplitName};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use tensor::random::{Permutation, Philox, Purpose};
use unix::{Error, Result};

/// What the user asks for.
pub(super) struct Request<'a> {
    /// Of train, validation and test.
    pub shares: [Share; 3],
    pub seed: u64,
    /// The files, as the user names them.
    pub files: &'a [PathBuf],
    pub group_by: GroupBy,
    /// What trajectories with equal keys have in common, for errors.
    pub in_common: &'static str,
}

/// The chosen samples of each file, for each split.
type Chosen = [BTreeMap<usize, Vec<usize>>; 3];

impl Request<'_> {
    /// Divides the trajectories of every regime in the same proportion. Trajectories with equal `keys` share a
    /// split, across files and regimes.
    ///
    /// The smallest regime chooses first: what is left for a larger one can make up for it.
    pub fn trajectories(
        &self,
        sources: &[Source],
        keys: &[Vec<blake3::Hash>],
    ) -> Result<[Vec<Part>; 3]> {
        let count = |files: &Vec<usize>| files.iter().map(|f| sources[*f].trajectories).sum();
        let mut regimes = regimes(sources);
        regimes.sort_by_key(|files| -> usize { count(files) });
        let mut chosen = Chosen::default();
        let mut splits: HashMap<blake3::Hash, usize> = HashMap::new();
        for files in &regimes {
            let regime = Regime::new(files, &sources[files[0]].parameter, keys);
            let quotas = quotas(self.shares, regime.trajectories).map_err(|what| {
                let (count, name) = (regime.trajectories, regime.parameter);
                Error::usage(format!(
                    "{}: {count} trajector{} of {name}, {what}; lower the shares, give them as counts, or \
                     divide whole regimes with --by parameter",
                    self.names(files),
                    if count == 1 { "y" } else { "ies" }
                ))
            })?;
            let placed = self.place(&regime, quotas, &mut splits, &mut chosen);
            self.require(&regime, quotas, placed, files)?;
        }
        Ok(parts(chosen))
    }

    /// Assigns the groups of a regime to splits, and counts its trajectories in each.
    ///
    /// A group of an earlier regime keeps its split. The others are taken in random order, large ones first,
    /// into the first split that has room. The last and smallest ones are reserved for splits that would stay
    /// empty although they have a share.
    fn place(
        &self,
        regime: &Regime,
        quotas: [usize; 3],
        splits: &mut HashMap<blake3::Hash, usize>,
        chosen: &mut Chosen,
    ) -> [usize; 3] {
        let (known, new): (Vec<&Group>, Vec<&Group>) =
            regime.groups.iter().partition(|group| splits.contains_key(&group.key));
        let random = keyed(self.seed, new.len());
        let mut new: Vec<&Group> = (0..new.len()).map(|i| new[random(i)]).collect();
        new.sort_by_key(|group| Reverse(group.members.len()));
        let everything = quotas.iter().sum::<usize>() == regime.trajectories;
        let mut placed = [0; 3];
        let left = (1..=new.len()).rev();
        let known = known.into_iter().map(|group| (group, usize::MAX));
        for (group, left) in known.chain(new.into_iter().zip(left)) {
            let size = group.members.len();
            let has_room = |split: &usize| placed[*split] + size <= quotas[*split];
            let counted = |split: &usize| matches!(self.shares[*split], Share::Count(_));
            let split = match splits.get(&group.key) {
                Some(split) => Some(*split).filter(|split| has_room(split) || !counted(split)),
                None => {
                    let is_empty = |split: &usize| {
                        placed[*split] == 0 && quotas[*split] > 0 && !counted(split)
                    };
                    let empty: Vec<usize> = (0..3).filter(is_empty).collect();
                    let reserved = empty.len() >= left;
                    let open = if reserved { empty } else { vec![0, 1, 2] };
                    open.iter().copied().find(has_room).or_else(|| {
                        let room = |split: &usize| quotas[*split].saturating_sub(placed[*split]);
                        let uncounted = open.into_iter().rev().filter(|split| !counted(split));
                        let roomiest = uncounted.max_by_key(|s| (room(s), quotas[*s]));
                        roomiest.filter(|_| everything || reserved)
                    })
                }
            };
            let Some(split) = split else { continue };
            splits.insert(group.key, split);
            placed[split] += size;
            for (file, sample) in &group.members {
                chosen[split].entry(*file).or_default().push(*sample);
            }
        }
        placed
    }

    /// Refuses (65) a split that gets nothing, or another number than was asked for, because of groups.
    fn require(
        &self,
        regime: &Regime,
        quotas: [usize; 3],
        placed: [usize; 3],
        files: &[usize],
    ) -> Result<()> {
        let wrong = |split: &usize| match self.shares[*split] {
            Share::Count(count) => placed[*split] != count,
            Share::Fraction(part) => part > 0.0 && placed[*split] == 0,
        };
        let Some(split) = (0..3).find(wrong) else { return Ok(()) };
        let Regime { parameter, trajectories, groups } = regime;
        let in_common = self.in_common;
        let reason = match groups.len() {
            1 => format!("all {trajectories} trajectories of {parameter} share {in_common}"),
            count => {
                let largest = groups.iter().map(|group| group.members.len()).max().unwrap_or(0);
                format!(
                    "the {trajectories} trajectories of {parameter} form {count} groups that share \
                     {in_common} (the largest has {largest})"
                )
            }
        };
        let advice = match self.group_by {
            GroupBy::State => "--group-by content keeps only identical trajectories together",
            GroupBy::Content => "remove the copies",
        };
        Err(Error::data(format!(
            "{}: {reason} and stay in one split, so {} gets {} of {} trajectories; {advice}, or choose other \
             shares",
            self.names(files),
            SplitName::ALL[split],
            placed[split],
            quotas[split]
        )))
    }

    /// The files, the first three by name.
    fn names(&self, files: &[usize]) -> String {
        let names: Vec<String> =
            files.iter().take(3).map(|file| self.files[*file].display().to_string()).collect();
        match files.len() {
            0..=3 => names.join(", "),
            count => format!("{} and {} more files", names.join(", "), count - 3),
        }
    }

    /// Divides whole regimes, those with the largest values for the test.
    pub fn regimes(&self, sources: &[Source]) -> Result<[Vec<Part>; 3]> {
        let mut units = regimes(sources);
        let values = |files: &Vec<usize>| -> Vec<f64> {
            sources[files[0]].parameter.iter().map(|(_, value)| value).collect()
        };
        units.sort_by(|a, b| values(a).partial_cmp(&values(b)).unwrap_or(Ordering::Equal));
        self.whole(sources, units, "regime")
    }

    /// Divides whole files, at random.
    pub fn files(&self, sources: &[Source]) -> Result<[Vec<Part>; 3]> {
        let random = keyed(self.seed, sources.len());
        self.whole(sources, (0..sources.len()).map(|i| vec![random(i)]).collect(), "file")
    }

    /// Divides `units`, each some files, in their order.
    fn whole(
        &self,
        sources: &[Source],
        units: Vec<Vec<usize>>,
        unit: &str,
    ) -> Result<[Vec<Part>; 3]> {
        let quotas = quotas(self.shares, units.len()).map_err(|what| {
            let plural = if units.len() == 1 { "" } else { "s" };
            Error::usage(format!("{} {unit}{plural}, {what}; lower the shares", units.len()))
        })?;
        let mut units = units.into_iter();
        let mut chosen = Chosen::default();
        for (split, quota) in chosen.iter_mut().zip(quotas) {
            let files = units.by_ref().take(quota).flatten();
            split.extend(files.map(|file| (file, (0..sources[file].trajectories).collect())));
        }
        Ok(parts(chosen))
    }
}

/// Trajectories with the same parameters.
struct Regime<'a> {
    parameter: &'a Parameter,
    trajectories: usize,
    groups: Vec<Group>,
}

/// Trajectories of a regime that share a split, as (file, sample).
struct Group {
    key: blake3::Hash,
    members: Vec<(usize, usize)>,
}

impl<'a> Regime<'a> {
    fn new(files: &[usize], parameter: &'a Parameter, keys: &[Vec<blake3::Hash>]) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        let mut numbers: HashMap<blake3::Hash, usize> = HashMap::new();
        let mut trajectories = 0;
        for &file in files {
            trajectories += keys[file].len();
            for (sample, &key) in keys[file].iter().enumerate() {
                let number = *numbers.entry(key).or_insert_with(|| {
                    groups.push(Group { key, members: Vec::new() });
                    groups.len() - 1
                });
                groups[number].members.push((file, sample));
            }
        }
        Self { parameter, trajectories, groups }
    }
}

/// A random order of `count` units.
fn keyed(seed: u64, count: usize) -> impl Fn(usize) -> usize {
    let permutation = Permutation::keyed(Philox::new(seed, Purpose::Split), count as u64);
    move |place| permutation.get(place as u64) as usize
}

/// The files of each regime, in the order in which regimes appear.
fn regimes(sources: &[Source]) -> Vec<Vec<usize>> {
    let mut regimes: Vec<(&Parameter, Vec<usize>)> = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        match regimes.iter_mut().find(|(p, _)| p.is_same_regime(&source.parameter)) {
            Some((_, files)) => files.push(file),
            None => regimes.push((&source.parameter, vec![file])),
        }
    }
    regimes.into_iter().map(|(_, files)| files).collect()
}

fn parts(chosen: Chosen) -> [Vec<Part>; 3] {
    chosen.map(|split| {
        let part = |(file, mut samples): (usize, Vec<usize>)| {
            samples.sort_unstable();
            Part { file, samples }
        };
        split.into_iter().map(part).collect()
    })
}

/// How many of `total` units each split gets. Fractions are rounded at their ends, so they always add up.
/// Errors say which request cannot be met.
fn quotas(shares: [Share; 3], total: usize) -> Result<[usize; 3], String> {
    let mut counts = [0; 3];
    let (mut fraction, mut rounded) = (0.0, 0);
    for (count, share) in counts.iter_mut().zip(shares) {
        *count = match share {
            Share::Count(count) => count,
            Share::Fraction(part) => {
                fraction += part;
                let end = (fraction * total as f64).round() as usize;
                let count = end - rounded;
                rounded = end;
                count
            }
        };
    }
    let wanted = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if wanted > total {
        return Err(format!("{wanted} are requested"));
    }
    for ((count, share), name) in counts.iter().zip(shares).zip(SplitName::ALL) {
        if *count == 0 && !share.is_zero() {
            return Err(format!("too few for {name}"));
        }
    }
    Ok(counts)
}
