//! What is divided, and which unit goes where.

use super::Share;
use crate::parameter::Parameter;
use crate::split::{By, Part, Source, SplitName};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use tensor::random::{Permutation, Philox, Purpose};
use unix::{Error, Result};

/// Trajectories that stay together, as (file, sample).
type Unit = Vec<(usize, usize)>;

/// Units that are divided by themselves, in the proportion of the shares.
struct Stratum {
    /// What it is and how many it has, in words.
    name: String,
    units: Vec<Unit>,
    /// Whether the units are taken in their order rather than in that of a keyed permutation.
    ordered: bool,
    /// The files of a regime that shares trajectories with one before it: those went where that one put
    /// them, which counts, and a split may get none of the rest, though its share is not 0.
    sharing: Option<Vec<usize>>,
}

/// Divides every stratum; `states` tell what trajectories begin with.
pub(super) fn choose(
    by: By,
    sources: &[Source],
    states: &[Vec<blake3::Hash>],
    shares: [Share; 3],
    seed: u64,
) -> Result<[Vec<Part>; 3]> {
    let all = |file: usize| (0..sources[file].trajectories).map(move |sample| (file, sample));
    let strata = match by {
        By::Trajectory => by_regime(sources, states),
        By::File => {
            let units: Vec<Unit> = (0..sources.len()).map(|file| all(file).collect()).collect();
            vec![Stratum {
                name: format!("there are {} files", units.len()),
                units,
                ordered: false,
                sharing: None,
            }]
        }
        By::Parameter => {
            let mut units: Vec<Unit> = regimes(sources)
                .iter()
                .map(|files| files.iter().flat_map(|file| all(*file)).collect())
                .collect();
            let values = |unit: &Unit| -> Vec<f64> {
                sources[unit[0].0].parameter.iter().map(|(_, value)| value).collect()
            };
            units.sort_by(|a, b| {
                values(a).partial_cmp(&values(b)).unwrap_or(std::cmp::Ordering::Equal)
            });
            vec![Stratum {
                name: format!("there are {} regimes", units.len()),
                units,
                ordered: true,
                sharing: None,
            }]
        }
    };
    let mut chosen: [BTreeMap<usize, Vec<usize>>; 3] = Default::default();
    for Stratum { name, units, ordered, sharing } in strata {
        let mut shares = shares;
        for (share, split) in shares.iter_mut().zip(&chosen) {
            if let (Share::Count(count), Some(files)) = (share, &sharing) {
                let there = files.iter().filter_map(|file| split.get(file)).map(Vec::len);
                *count = count.saturating_sub(there.sum());
            }
        }
        let permutation = Permutation::keyed(Philox::new(seed, Purpose::Split), units.len() as u64);
        let cuts = cuts(shares, units.len(), &name, sharing.is_some())?;
        for (split, range) in
            chosen.iter_mut().zip([0..cuts[0], cuts[0]..cuts[1], cuts[1]..cuts[2]])
        {
            for position in range {
                let at = if ordered { position } else { permutation.get(position as u64) as usize };
                units[at]
                    .iter()
                    .for_each(|(file, sample)| split.entry(*file).or_default().push(*sample));
            }
        }
    }
    Ok(chosen.map(|split| {
        let part = |(file, mut samples): (usize, Vec<usize>)| {
            samples.sort_unstable();
            Part { file, samples }
        };
        split.into_iter().map(part).collect()
    }))
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

/// A stratum for each regime. Trajectories that begin alike are a unit, which belongs to the regime that
/// comes first.
fn by_regime(sources: &[Source], states: &[Vec<blake3::Hash>]) -> Vec<Stratum> {
    let mut places: HashMap<blake3::Hash, (usize, usize)> = HashMap::new();
    let mut strata: Vec<Stratum> = Vec::new();
    for (regime, files) in regimes(sources).iter().enumerate() {
        let mut units: Vec<Unit> = Vec::new();
        let mut all = 0;
        for &file in files {
            for (sample, state) in states[file].iter().enumerate() {
                all += 1;
                match places.entry(*state) {
                    Entry::Vacant(place) => {
                        place.insert((regime, units.len()));
                        units.push(vec![(file, sample)]);
                    }
                    Entry::Occupied(place) => {
                        let (of, unit) = *place.get();
                        let units = if of == regime { &mut units } else { &mut strata[of].units };
                        units[unit].push((file, sample));
                    }
                }
            }
        }
        let parameter = &sources[files[0]].parameter;
        let (name, sharing) = match units.len() == all {
            true => (format!("regime {parameter} has {all} trajectories"), None),
            false => {
                let count = units.len();
                (
                    format!("regime {parameter} has {count} trajectories that begin like no other"),
                    Some(files.clone()),
                )
            }
        };
        strata.push(Stratum { name, units, ordered: false, sharing });
    }
    strata
}

/// Ends of the three splits of `total` units, which are `of`. Fractions are rounded at their
/// ends, so they always add up.
fn cuts(shares: [Share; 3], total: usize, of: &str, may_be_few: bool) -> Result<[usize; 3]> {
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
        return Err(Error::usage(format!("{of}, {wanted} are asked for; lower the shares")));
    }
    for ((count, share), name) in counts.iter().zip(shares).zip(SplitName::ALL) {
        if *count == 0 && !may_be_few && matches!(share, Share::Fraction(part) if part > 0.0) {
            return Err(Error::usage(format!("{of}, too few for {name}; give a count")));
        }
    }
    Ok([counts[0], counts[0] + counts[1], wanted])
}
