//! Near-duplicate texts: MinHash (Broder 1997) finds candidates, whose similarity is then computed exactly.
//!
//! The similarity of two texts is the Jaccard index of their sets of character 5-grams, in lower case and with white
//! space collapsed.

use super::similar_images;
use super::{TextSet, TextStore};
use crate::split::check::{CheckReport, ProblemKind};
use crate::split::{SameGroup, Source};
use rayon::prelude::*;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of characters in an n-gram.
const NGRAM_CHARS: usize = 5;
/// A pair is a candidate if one of `BANDS` groups of `ROWS` minima agrees. A pair with similarity s is missed with
/// probability (1 - s⁴)³², which is 5e-8 at 0.8 and 1e-4 at 0.7.
const BANDS: usize = 32;
const ROWS: usize = 4;

/// Returns the sorted hashes of the n-grams of a text.
fn runs(text: &str) -> Vec<u64> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let characters: Vec<char> = words.join(" ").chars().collect();
    let mut found: Vec<u64> = characters
        .windows(NGRAM_CHARS.min(characters.len()).max(1))
        .map(|run| {
            let mut hasher = DefaultHasher::new();
            run.hash(&mut hasher);
            hasher.finish()
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The finaliser of SplitMix64, a bijection that mixes all bits.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Computes the hash of the minima of each band.
fn bands(runs: &[u64]) -> [u64; BANDS] {
    std::array::from_fn(|band| {
        (0..ROWS).fold(0, |hash, row| {
            let key = mix((band * ROWS + row) as u64 + 1);
            let least = runs.iter().map(|run| mix(run ^ key)).min().unwrap_or(0);
            mix(hash ^ least)
        })
    })
}

/// Computes |a ∩ b| / |a ∪ b| of sorted lists.
fn jaccard(a: &[u64], b: &[u64]) -> f64 {
    let (mut i, mut j, mut common) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => (i, j, common) = (i + 1, j + 1, common + 1),
        }
    }
    common as f64 / (a.len() + b.len() - common).max(1) as f64
}

/// An index of texts that finds similar ones.
pub struct Similar {
    /// One text for each set of n-grams: its number and its n-grams.
    texts: Vec<(usize, Vec<u64>)>,
    /// Numbers in `texts`, by band and hash of its minima.
    bands: HashMap<(usize, u64), Vec<usize>>,
}

impl Similar {
    /// Builds an index of texts. Empty texts are similar to nothing.
    pub fn new<T: AsRef<str> + Sync>(texts: &[T]) -> Self {
        let all: Vec<Vec<u64>> = texts.par_iter().map(|text| runs(text.as_ref())).collect();
        let mut first: HashMap<Vec<u64>, usize> = HashMap::new();
        for (number, runs) in all.into_iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
            first.entry(runs).or_insert(number);
        }
        let mut texts: Vec<(usize, Vec<u64>)> =
            first.into_iter().map(|(runs, number)| (number, runs)).collect();
        texts.sort_unstable_by_key(|(number, _)| *number);
        let minima: Vec<[u64; BANDS]> = texts.par_iter().map(|(_, runs)| bands(runs)).collect();
        let mut bands: HashMap<(usize, u64), Vec<usize>> = HashMap::new();
        for (at, minima) in minima.iter().enumerate() {
            for key in minima.iter().copied().enumerate() {
                bands.entry(key).or_default().push(at);
            }
        }
        Self { texts, bands }
    }

    /// Returns the text most similar to `text` and its similarity, if that is at least `threshold`; ties go to the
    /// first text.
    pub fn nearest(&self, text: &str, threshold: f64) -> Option<(usize, f64)> {
        let mut best: Option<(usize, f64)> = None;
        for (number, similarity) in self.all(text, threshold) {
            if best.is_none_or(|(_, most)| similarity > most) {
                best = Some((number, similarity));
            }
        }
        best
    }

    /// Returns the texts with a similarity to `text` of at least `threshold`, ascending by number, with their
    /// similarities; of texts with equal n-grams only the first.
    fn all(&self, text: &str, threshold: f64) -> Vec<(usize, f64)> {
        let own = runs(text);
        if own.is_empty() {
            return Vec::new();
        }
        let keys = bands(&own).into_iter().enumerate();
        let mut candidates: Vec<usize> =
            keys.filter_map(|key| self.bands.get(&key)).flatten().copied().collect();
        candidates.sort_unstable();
        candidates.dedup();
        let similar = |at: usize| {
            let (number, runs) = &self.texts[at];
            let similarity = jaccard(&own, runs);
            (similarity >= threshold).then_some((*number, similarity))
        };
        candidates.into_iter().filter_map(similar).collect()
    }
}

/// The text of a record; none if it has images, which decide how similar it is.
fn text_of(store: &TextStore, i: usize) -> String {
    if store.images(i).is_empty() { store.all_texts(i) } else { String::new() }
}

/// Merges groups that resemble each other, directly or through other groups: they contain texts with a similarity of at
/// least `threshold`.
pub(super) fn near_groups(stores: &[TextStore], threshold: f64) -> SameGroup {
    let records: Vec<(&TextStore, usize)> =
        stores.iter().flat_map(|store| (0..store.len()).map(move |i| (store, i))).collect();
    let texts: Vec<String> = records.par_iter().map(|(store, i)| text_of(store, *i)).collect();
    let index = Similar::new(&texts);
    let found: Vec<Vec<(usize, f64)>> =
        texts.par_iter().map(|text| index.all(text, threshold)).collect();
    let groups: Vec<blake3::Hash> = records.iter().map(|(store, i)| store.group(*i)).collect();
    let mut same = SameGroup::default();
    for (group, near) in groups.iter().zip(found) {
        near.into_iter().for_each(|(other, _)| same.join(*group, groups[other]));
    }
    for (own, other, _) in similar_images::pairs(&records, threshold) {
        same.join(groups[own], groups[other]);
    }
    same
}

/// Reports the texts of each set that resemble a text of an earlier set with a different name, with a similarity of at
/// least `threshold`, but are not equal to it; exact comparison reports equal texts.
pub fn near_leaks(sets: &[TextSet], threshold: f64, report: &mut CheckReport) {
    let mut report_pair = |[(set, i), (other, first)]: [(&TextSet, usize); 2], similarity: f64| {
        if set.name() == other.name() || set.input_hash(i) == other.input_hash(first) {
            return;
        }
        let ((file, record), (other_file, other_record)) = (set.origin(i), other.origin(first));
        let what = format!(
            "resembles record {other_record} of {}, in splits {} and {}, with a similarity of {similarity:.2}; \
             ds-prep split --near {:.2} keeps such records in one split, or remove one of them",
            other_file.display(),
            set.name(),
            other.name(),
            1.0 - threshold
        );
        report.add_record(ProblemKind::NearDuplicate, file, Some(record), what);
    };
    let places: Vec<(&TextSet, usize)> =
        sets.iter().flat_map(|set| (0..set.len()).map(move |i| (set, i))).collect();
    let records: Vec<(&TextStore, usize)> = places.iter().map(|(set, i)| set.locate(*i)).collect();
    for (own, other, similarity) in similar_images::pairs(&records, threshold) {
        report_pair([places[own], places[other]], similarity);
    }
    let texts = |set: &TextSet| -> Vec<String> {
        let text = |i: usize| {
            let (store, record) = set.locate(i);
            text_of(store, record)
        };
        (0..set.len()).map(text).collect()
    };
    let all: Vec<Vec<String>> = sets.iter().map(texts).collect();
    for (number, (other, own)) in sets.iter().zip(&all).enumerate() {
        let index = Similar::new(own);
        for (set, texts) in sets.iter().zip(&all).skip(number + 1) {
            if set.name() == other.name() {
                continue;
            }
            let found: Vec<Option<(usize, f64)>> =
                texts.par_iter().map(|text| index.nearest(text, threshold)).collect();
            for (i, near) in found.into_iter().enumerate() {
                let Some((first, similarity)) = near else { continue };
                report_pair([(set, i), (other, first)], similarity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_the_jaccard_index_of_runs() {
        // abcde bcdef and bcdef cdefg have one of three n-grams in common.
        let index = Similar::new(&["abcdef"]);
        let (_, similarity) = index.nearest("bcdefg", 0.1).unwrap_or_default();
        assert!(similarity == 0.0 || (similarity - 1.0 / 3.0).abs() < 1e-15, "{similarity}");
        assert!((jaccard(&runs("abcdef"), &runs("bcdefg")) - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(jaccard(&runs("A  b\nc d"), &runs("a b c D")), 1.0);
        // Texts shorter than an n-gram are either equal or dissimilar.
        assert_eq!(index.nearest("abc", 0.1), None);
        assert_eq!(Similar::new(&["abc", "abc"]).nearest("ABC", 1.0), Some((0, 1.0)));
        assert_eq!(Similar::new(&["", "x"]).nearest("", 0.0), None);
    }

    #[test]
    fn all_pairs_above_the_threshold_are_found() {
        // Copies with one changed word each, among texts that share only the template.
        let text = |n: usize, word: usize| {
            let words = (0..30).map(|at| match at == word {
                true => "changed".to_string(),
                false => format!("w{:x}", mix((n * 64 + at) as u64) % 100_000),
            });
            words.collect::<Vec<_>>().join(" ")
        };
        let texts: Vec<String> = (0..500).map(|n| text(n, 99)).collect();
        let index = Similar::new(&texts);
        for n in 0..500 {
            let own = text(n, n % 30);
            let exact = texts.iter().map(|other| jaccard(&runs(&own), &runs(other)));
            let (best, most) =
                exact.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are texts");
            assert!(best == n && most > 0.8, "{n}: {best} {most}");
            assert_eq!(index.nearest(&own, 0.8), Some((n, most)));
        }
        assert_eq!(index.nearest(&text(600, 99), 0.8), None);
        // Two copies resemble the original more than each other.
        let [one, two, whole] = [text(0, 3), text(0, 20), text(0, 99)];
        let [near, far] = [&whole, &two].map(|other| jaccard(&runs(&one), &runs(other)));
        assert!(near > far, "{near} {far}");
        let index = Similar::new(&[one.clone(), two, whole]);
        assert_eq!([near, far].map(|threshold| index.all(&one, threshold).len()), [2, 3]);
    }
}
