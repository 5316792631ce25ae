//! Per-item losses of an evaluation, with which two models are compared item by item.

use super::bootstrap::{Stratum, bootstrap, interval};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use unix::{Error, Result, small};

/// Name of the loss file in the folder of an evaluation.
const FILE: &str = "losses.csv";
/// Maximum size of the loss file in bytes.
const MAX_BYTES: u64 = 4 << 30;
/// With fewer clusters, all differences have the same sign by chance in more than 5 % of cases.
const ENOUGH: usize = 6;

/// Loss and cluster of each item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Name of the loss.
    pub name: String,
    /// Loss of each item.
    pub values: Vec<f64>,
    /// Cluster number of each item.
    pub clusters: Vec<u64>,
}

/// Difference in mean loss between two models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Mean difference over items.
    pub mean: f64,
    /// 95 % bootstrap confidence interval of the mean, by resampling clusters of items.
    pub interval: [f64; 2],
    /// Number of clusters.
    pub clusters: usize,
}

impl Difference {
    /// Whether the interval excludes 0.
    pub fn is_clear(&self) -> bool {
        let [low, high] = self.interval;
        low > 0.0 || high < 0.0
    }

    /// Whether there are enough clusters for a meaningful interval.
    pub fn has_enough_clusters(&self) -> bool {
        self.clusters >= ENOUGH
    }
}

impl Losses {
    /// Creates an empty list of losses with this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Groups the items by cluster, in the order in which clusters first occur.
    fn by_cluster(&self) -> Vec<Vec<usize>> {
        let (mut places, mut all) = (HashMap::new(), Vec::<Vec<usize>>::new());
        for (item, cluster) in self.clusters.iter().enumerate() {
            let place = *places.entry(cluster).or_insert(all.len());
            if place == all.len() {
                all.push(Vec::new());
            }
            all[place].push(item);
        }
        all
    }

    /// Returns the mean of `of` over all items, with its 95 % confidence interval.
    pub fn mean_of(&self, of: impl Fn(usize) -> f64 + Sync) -> Difference {
        let clusters = self.by_cluster();
        let sum = |items: &Vec<usize>| items.iter().map(|item| of(*item)).sum::<f64>();
        let sums: Vec<(f64, usize)> =
            clusters.iter().map(|items| (sum(items), items.len())).collect();
        let mean = |all: &mut dyn Iterator<Item = (f64, usize)>| {
            let (sum, count) = all.fold((0.0, 0), |(sum, n), (more, of)| (sum + more, n + of));
            sum / count as f64
        };
        let stratum = Stratum { number: 0, clusters: sums.len() };
        let means = bootstrap(&[stratum], |draws| mean(&mut draws[0].iter().map(|at| sums[*at])));
        Difference {
            mean: mean(&mut sums.iter().copied()),
            interval: interval(means.into_iter()),
            clusters: sums.len(),
        }
    }

    /// Difference between these losses and those of `other` on the same items; `None` if the loss names or the clusters
    /// differ.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let is_same = (&self.name, &self.clusters) == (&other.name, &other.clusters);
        is_same.then(|| self.mean_of(|item| self.values[item] - other.values[item]))
    }

    /// Formats the losses as losses.csv.
    pub(super) fn csv(&self) -> String {
        let mut text = format!("item,cluster,{}\n", self.name);
        for (item, (loss, cluster)) in self.values.iter().zip(&self.clusters).enumerate() {
            let _ = writeln!(text, "{item},{cluster},{loss}"); // cannot fail
        }
        text
    }

    /// Reads the losses of an evaluation from its folder. Errors: 66 if the file is missing, 65 if it is damaged.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let bad = |line: usize| {
            Error::data(format!("{}:{line}: it is not a file of evaluate score", path.display()))
        };
        let bytes = small::read(&path, MAX_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| bad(1))?;
        let mut lines = text.lines();
        let name = lines.next().and_then(|line| line.strip_prefix("item,cluster,"));
        let mut losses = Self::new(name.ok_or_else(|| bad(1))?);
        for (item, line) in lines.enumerate() {
            let mut cells = line.splitn(3, ',');
            let mut next = || cells.next().unwrap_or_default();
            let found = (next().parse() == Ok(item)).then(|| (next().parse(), next().parse()));
            let Some((Ok(cluster), Ok(loss))) = found else { return Err(bad(item + 2)) };
            losses.clusters.push(cluster);
            losses.values.push(loss);
        }
        Ok(losses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_back_and_compared_item_by_item() {
        let of = |values: Vec<f64>| {
            let clusters = (0..values.len() as u64).map(|item| item / 2).collect();
            Losses { name: "nrmse".into(), values, clusters }
        };
        // The second model is better by 0.1 on every item, although losses vary far more between items.
        let first = of((0..40).map(|i| f64::from(i * i)).collect());
        let second = of(first.values.iter().map(|loss| loss - 0.1).collect());
        let found = second.difference(&first).unwrap();
        assert!((found.mean + 0.1).abs() < 1e-12 && found.is_clear(), "{found:?}");
        // Noise with mean 0 whose sign differs between clusters.
        let noisy = (0..40).map(|i| f64::from(i * i) + f64::from(i / 2 % 2) - 0.5).collect();
        assert!(!of(noisy).difference(&first).unwrap().is_clear());
        let other = Losses { clusters: vec![0; 40], ..first.clone() };
        assert_eq!(first.difference(&other), None);
        let folder = tempfile::tempdir().unwrap();
        let special = of(vec![0.1, f64::NAN, f64::INFINITY, -0.0, 1e-300, 2.0 / 3.0]);
        std::fs::write(folder.path().join(FILE), special.csv()).unwrap();
        let found = Losses::read(folder.path()).unwrap();
        let bits = |losses: &Losses| losses.values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((bits(&found), &found.clusters), (bits(&special), &special.clusters));
        std::fs::write(folder.path().join(FILE), "item,cluster,nrmse\n0,0,1\n2,0,1\n").unwrap();
        let error = Losses::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("losses.csv:3"), "{error}");
    }
}
