//! The trajectories or records that a data set was made from. They are identified independently of file names, so that
//! overlapping training and validation data can be refused.

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Trajectories of one data file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// BLAKE3 hash of the file.
    pub blake3: String,
    /// Indices of the trajectories in it.
    pub samples: Vec<usize>,
}

/// Finds a trajectory that is in both sets. Returns the BLAKE3 hash of its file and its index in the file.
pub fn shared<'a>(ours: &'a [Provenance], theirs: &[Provenance]) -> Option<(&'a str, usize)> {
    let mut known: HashMap<&str, HashSet<usize>> = HashMap::new();
    for Provenance { blake3, samples } in theirs {
        known.entry(blake3).or_default().extend(samples);
    }
    ours.iter().find_map(|Provenance { blake3, samples }| {
        let known = known.get(blake3.as_str())?;
        let sample = samples.iter().find(|sample| known.contains(sample))?;
        Some((blake3.as_str(), *sample))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trajectory_is_identified_by_its_file_and_index() {
        let of = |parts: &[(&str, &[usize])]| -> Vec<Provenance> {
            let part = |(blake3, samples): &(&str, &[usize])| Provenance {
                blake3: blake3.to_string(),
                samples: samples.to_vec(),
            };
            parts.iter().map(part).collect()
        };
        let train = of(&[("a", &[0, 2]), ("b", &[1])]);
        assert_eq!(shared(&train, &of(&[("a", &[1]), ("b", &[0, 2])])), None);
        assert_eq!(shared(&train, &of(&[("c", &[1]), ("b", &[0]), ("b", &[1])])), Some(("b", 1)));
    }
}
