//! Assigns trajectories, regimes or files to splits.

use crate::fields::split::{GroupBy, Part, Source, SplitName, regimes};
use crate::split::{Divider, Group, Share, grouped, quotas, shuffled};
use std::cmp::Ordering;
use std::path::PathBuf;
use unix::{Error, Result};

/// The user's request.
pub(super) struct Request<'a> {
    /// For train, validation and test.
    pub shares: [Share; 3],
    pub seed: u64,
    /// The files, under the paths that the user gave.
    pub files: &'a [PathBuf],
    pub group_by: GroupBy,
    /// What trajectories with equal keys have in common, for errors.
    pub in_common: &'static str,
}

impl Request<'_> {
    /// Divides the trajectories of every regime in the same proportions. Trajectories with equal `keys` share a split,
    /// across files and regimes.
    ///
    /// The smallest regime is assigned first, because larger ones have more freedom to compensate.
    pub fn trajectories(
        &self,
        sources: &[Source],
        keys: &[Vec<blake3::Hash>],
    ) -> Result<[Vec<Part>; 3]> {
        let count = |files: &[usize]| files.iter().map(|f| sources[*f].trajectories).sum::<usize>();
        let of_file = |&file: &usize| {
            keys[file].iter().enumerate().map(move |(sample, key)| ((file, sample), *key))
        };
        let mut regimes = regimes(sources);
        regimes.sort_by_key(|files| count(files));
        let mut divider = Divider::new(self.shares, self.seed);
        for files in &regimes {
            let (count, parameter) = (count(files), &sources[files[0]].parameter);
            let groups = grouped(files.iter().flat_map(of_file));
            let quotas = quotas(self.shares, count).map_err(|what| {
                Error::usage(format!(
                    "{}: {count} trajector{} of {parameter}, {what}; lower the shares, give them as counts, or \
                     divide whole regimes with --by parameter",
                    self.names(files),
                    if count == 1 { "y" } else { "ies" }
                ))
            })?;
            let placed = divider.stratum(&groups, quotas);
            let regime = format!("{count} trajectories of {parameter}");
            self.require(&regime, &groups, quotas, placed, files)?;
        }
        Ok(parts(divider.chosen))
    }

    /// Refuses (65) a split that, because of groups, gets nothing or not the requested number.
    fn require(
        &self,
        regime: &str,
        groups: &[Group<(usize, usize)>],
        quotas: [usize; 3],
        placed: [usize; 3],
        files: &[usize],
    ) -> Result<()> {
        let wrong = |split: &usize| match self.shares[*split] {
            Share::Count(count) => placed[*split] != count,
            Share::Fraction(part) => part > 0.0 && placed[*split] == 0,
        };
        let Some(split) = (0..3).find(wrong) else { return Ok(()) };
        let in_common = self.in_common;
        let reason = match groups.len() {
            1 => format!("all {regime} share {in_common}"),
            count => {
                let largest = groups.iter().map(|group| group.records.len()).max().unwrap_or(0);
                let size = format!("the largest has {largest}");
                format!("the {regime} form {count} groups that share {in_common} ({size})")
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

    /// The files as text; only the first three are named.
    fn names(&self, files: &[usize]) -> String {
        let names: Vec<String> =
            files.iter().take(3).map(|file| self.files[*file].display().to_string()).collect();
        match files.len() {
            0..=3 => names.join(", "),
            count => format!("{} and {} more files", names.join(", "), count - 3),
        }
    }

    /// Divides whole regimes; those with the largest parameter values go to the test split.
    pub fn regimes(&self, sources: &[Source]) -> Result<[Vec<Part>; 3]> {
        let mut units = regimes(sources);
        let values = |files: &Vec<usize>| -> Vec<f64> {
            sources[files[0]].parameter.iter().map(|(_, value)| value).collect()
        };
        units.sort_by(|a, b| values(a).partial_cmp(&values(b)).unwrap_or(Ordering::Equal));
        self.whole(sources, units, "regime")
    }

    /// Divides whole files at random.
    pub fn files(&self, sources: &[Source]) -> Result<[Vec<Part>; 3]> {
        let random = shuffled(self.seed, sources.len());
        self.whole(sources, (0..sources.len()).map(|i| vec![random(i)]).collect(), "file")
    }

    /// Divides `units`, each a list of files, in the given order.
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
        let mut chosen: [Vec<(usize, usize)>; 3] = Default::default();
        for (split, quota) in chosen.iter_mut().zip(quotas) {
            let files = units.by_ref().take(quota).flatten();
            split.extend(
                files.flat_map(|file| (0..sources[file].trajectories).map(move |i| (file, i))),
            );
        }
        Ok(parts(chosen))
    }
}

fn parts(chosen: [Vec<(usize, usize)>; 3]) -> [Vec<Part>; 3] {
    chosen.map(|mut split| {
        split.sort_unstable();
        let of_file = |of_file: &[(usize, usize)]| Part {
            file: of_file[0].0,
            samples: of_file.iter().map(|(_, sample)| *sample).collect(),
        };
        split.chunk_by(|a, b| a.0 == b.0).map(of_file).collect()
    })
}
