//! Finds data that occur in more than one split, by content alone, across files and manifests.
//!
//! Equal trajectories, first frames (for steady problems: inputs) and single frames are found by hash. Nearly equal
//! first frames are found by [`signature`], which selects candidates that are then compared at full resolution.
//!
//! Memory: about 0.3 KiB per trajectory and 30 bytes per validation or test frame.

mod exact;
mod near;
mod signature;
mod sorted;

use crate::fields::split::SplitName;
use crate::fields::split_set::{TrajectorySet, Verify};
use crate::split::check::{CheckReport, Problem, ProblemKind};
use exact::Exact;
use near::{Index, Near};
use rayon::prelude::*;
use std::collections::HashSet;
use std::path::PathBuf;
use unix::{Result, note};

/// Number of trajectories that are hashed at a time.
const AT_ONCE: usize = 256;

/// Audits the splits of several manifests together. `near` is the relative distance below which two first frames are
/// near-duplicates; with 0, only exact copies are found. The distance is |a - b| / max(|a|, |b|) in the Euclidean norm
/// over all points and channels, with the mean of each channel subtracted from a and b.
///
/// Errors: 66 and 65 for manifests and files that cannot be read or have changed.
pub fn audit(manifests: &[PathBuf], near: f64) -> Result<CheckReport> {
    let mut sets = Vec::new();
    // Training comes last, so that it is looked up among the hashes of the other splits.
    for name in [SplitName::Test, SplitName::Validation, SplitName::Train] {
        for manifest in manifests {
            // The audit reports overlaps itself.
            let overlap = Some(ProblemKind::Overlap);
            sets.push(TrajectorySet::open_allowing(manifest, name, Verify::Hashes, overlap)?);
        }
    }
    let index = Index::new(&sets, near)?;
    let mut found = Leaks { sets: &sets, report: CheckReport::default(), pairs: HashSet::new() };
    let (mut exact, mut leaks, mut cut) = (Exact::default(), Vec::new(), 0);
    for (number, set) in sets.iter().enumerate() {
        found.report.files += set.sources.len();
        found.report.trajectories += set.len();
        let buffer = || vec![0.0; set.shape().block_len()];
        for first in (0..set.len()).step_by(AT_ONCE) {
            let last = set.len().min(first + AT_ONCE);
            let all: Vec<_> = (first..last)
                .into_par_iter()
                .map_init(buffer, |buffer, i| {
                    let mut near = Near::default();
                    let hashes = exact::read(set, i, buffer, |first| {
                        near = index.search(number, first)?;
                        Ok(())
                    })?;
                    Ok((hashes, near))
                })
                .collect::<Result<_>>()?;
            for (i, (hashes, near)) in (first..).zip(all) {
                for (kind, other, how) in exact.compare(&sets, (number, i), hashes) {
                    found.add(kind, (number, i), other, how);
                }
                leaks.extend(near.leak.map(|leak| ((number, i), leak)));
                cut += usize::from(near.cut);
            }
        }
    }
    // Near-duplicates come last: each pair is reported once, and an exact copy is the stronger finding.
    for (place, (other, how)) in leaks {
        found.add(ProblemKind::NearDuplicate, place, other, how);
    }
    if cut > 0 {
        note!(
            "{cut} frames have more candidates than were compared: the nearest {} of each",
            near::CANDIDATES
        );
    }
    Ok(found.report)
}

/// A trajectory, as (index of its set, index in the set).
type TrajectoryIndex = (usize, usize);

/// The leaks to report, one per pair of trajectories.
struct Leaks<'a> {
    sets: &'a [TrajectorySet],
    report: CheckReport,
    pairs: HashSet<[TrajectoryIndex; 2]>,
}

impl Leaks<'_> {
    fn add(
        &mut self,
        kind: ProblemKind,
        place: TrajectoryIndex,
        other: TrajectoryIndex,
        how: String,
    ) {
        if !self.pairs.insert([place.min(other), place.max(other)]) {
            return;
        }
        let [a, b] = [place, other].map(|(set, i)| self.sets[set].entry(i));
        let [mine, its] = [place, other].map(|(set, _)| self.sets[set].name());
        let message = format!(
            "{}: trajectory {} of {mine} {how} trajectory {} of {} in {its}",
            a.file.display(),
            a.sample,
            b.sample,
            b.file.display()
        );
        self.report.problems.push(Problem::new(kind, a.file, Some(a.sample), message));
    }
}
