//! Whether anything of one split is in another, by content alone: across files and manifests.
//!
//! Found are trajectories that are there twice, inputs and first frames that two splits share, frames of one
//! split anywhere in a trajectory of another (a copy that begins later), and near-duplicates: first frames
//! (inputs, of steady problems) whose means over a coarse grid differ by less than a given part of their
//! size. Of the frames, only those of validation and test are remembered.

use crate::check::{Fault, Kind, Report};
use crate::content::begin;
use crate::field::Shape;
use crate::split::SplitName;
use crate::split_set::{TrajectorySet, Verify};
use rayon::prelude::*;
use std::collections::HashMap;
use std::path::PathBuf;
use unix::Result;

/// Cells of the coarse grid along each axis of space.
const COARSE: usize = 8;
/// Trajectories that are read before what was found of them is compared.
const AT_ONCE: usize = 256;

/// Audits the splits of manifests together. `near` is the relative distance below which two first frames
/// are near-duplicates; 0 looks for exact ones only.
///
/// Errors: 66 and 65 for manifests and files that cannot be read or were changed.
pub fn audit(manifests: &[PathBuf], near: f64) -> Result<Report> {
    let mut report = Report::default();
    let mut found = Found::default();
    // Training last: it is looked up in what the others left.
    for name in [SplitName::Test, SplitName::Validation, SplitName::Train] {
        for manifest in manifests {
            // The audit reports overlaps itself.
            let overlap = Some(Kind::Overlap);
            let set = TrajectorySet::open_allowing(manifest, name, Verify::Hashes, overlap)?;
            report.files += set.file_hashes().len();
            report.trajectories += set.len();
            found.add(&set, name, &mut report)?;
        }
    }
    if near > 0.0 {
        found.near_duplicates(near, &mut report);
    }
    Ok(report)
}

/// A trajectory that was read.
#[derive(Clone, Debug)]
struct Place {
    split: SplitName,
    file: PathBuf,
    sample: usize,
}

/// What is kept of all trajectories, by content.
#[derive(Default)]
struct Found {
    places: Vec<Place>,
    whole: HashMap<[u8; 16], usize>,
    begins: HashMap<[u8; 16], usize>,
    /// Frames of validation and test: which place, and which frame.
    frames: HashMap<[u8; 16], (u32, u32)>,
    signatures: Vec<Vec<f32>>,
}

/// What is seen of one trajectory.
struct Seen {
    whole: [u8; 16],
    begin: [u8; 16],
    frames: Vec<Option<[u8; 16]>>,
    signature: Vec<f32>,
}

impl Found {
    fn add(&mut self, set: &TrajectorySet, name: SplitName, report: &mut Report) -> Result<()> {
        let room = || vec![0.0; set.shape().block_len()];
        for first in (0..set.len()).step_by(AT_ONCE) {
            let last = set.len().min(first + AT_ONCE);
            let seen: Vec<Seen> = (first..last)
                .into_par_iter()
                .map_init(room, |room, i| look(set, i, room))
                .collect::<Result<_>>()?;
            for (i, seen) in (first..).zip(seen) {
                let entry = set.entry(i);
                let place =
                    Place { split: name, file: entry.file.to_path_buf(), sample: entry.sample };
                self.compare(place, seen, report);
            }
        }
        Ok(())
    }

    fn compare(&mut self, place: Place, seen: Seen, report: &mut Report) {
        let number = self.places.len();
        let split = place.split;
        self.places.push(place);
        if let Some(&other) = self.whole.get(&seen.whole) {
            let kind = if self.same_file(number, other) { Kind::Overlap } else { Kind::Duplicate };
            self.tell(kind, number, other, "is, number for number,", report);
        } else if let Some(other) =
            self.begins.get(&seen.begin).copied().filter(|other| self.places[*other].split != split)
        {
            self.tell(Kind::SameInitialState, number, other, "begins as", report);
        } else {
            let leaked = seen.frames.iter().enumerate().find_map(|(frame, hash)| {
                let (other, at) = *self.frames.get(hash.as_ref()?)?;
                (self.places[other as usize].split != split).then_some((frame, other as usize, at))
            });
            if let Some((frame, other, at)) = leaked {
                let how = format!("has in its frame {frame} the frame {at} of");
                self.tell(Kind::SharedFrame, number, other, &how, report);
            }
        }
        if split != SplitName::Train {
            for (frame, hash) in seen.frames.iter().enumerate() {
                if let Some(hash) = hash {
                    self.frames.entry(*hash).or_insert((number as u32, frame as u32));
                }
            }
        }
        self.whole.entry(seen.whole).or_insert(number);
        self.begins.entry(seen.begin).or_insert(number);
        self.signatures.push(seen.signature);
    }

    fn same_file(&self, a: usize, b: usize) -> bool {
        let [a, b] = [a, b].map(|i| (&self.places[i].file, self.places[i].sample));
        a == b
    }

    fn tell(&self, kind: Kind, number: usize, other: usize, how: &str, report: &mut Report) {
        let [a, b] = [number, other].map(|i| &self.places[i]);
        let message = format!(
            "{}: trajectory {} of {} {how} trajectory {} of {} in {}",
            a.file.display(),
            a.sample,
            a.split,
            b.sample,
            b.file.display(),
            b.split
        );
        let (file, trajectory) = (a.file.clone(), Some(a.sample));
        report.faults.push(Fault { kind, file, trajectory, frame: None, index: None, message });
    }

    /// Pairs of different splits with almost the same signature. Signatures are sorted by their sum: what
    /// is near is near there as well, so few pairs are compared.
    fn near_duplicates(&self, near: f64, report: &mut Report) {
        let sum = |i: usize| self.signatures[i].iter().map(|v| f64::from(*v)).sum::<f64>();
        let mut sorted: Vec<(f64, usize)> =
            (0..self.places.len()).map(|i| (sum(i), i)).filter(|(s, _)| s.is_finite()).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let size = |i: usize| norm(self.signatures[i].iter().map(|v| f64::from(*v)));
        for (k, &(s, a)) in sorted.iter().enumerate() {
            // |Σx − Σy| ≤ √n |x − y|, and what is near differs by at most `near` of its size.
            let n = self.signatures[a].len() as f64;
            let reach = n.sqrt() * near * size(a) * (1.0 + near);
            for &(_, b) in sorted[k + 1..].iter().take_while(|(other, _)| other - s <= reach) {
                let (x, y) = (&self.signatures[a], &self.signatures[b]);
                if self.places[a].split == self.places[b].split || x == y || x.len() != y.len() {
                    continue;
                }
                let apart = norm(x.iter().zip(y).map(|(x, y)| f64::from(x - y)));
                if apart < near * size(a).max(size(b)) {
                    let how = format!("is nearly ({:.1e} apart)", apart / size(a).max(size(b)));
                    self.tell(Kind::NearDuplicate, a.max(b), a.min(b), &how, report);
                }
            }
        }
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn look(set: &TrajectorySet, i: usize, room: &mut [f32]) -> Result<Seen> {
    let shape = set.shape();
    let mut whole = blake3::Hasher::new();
    let mut frames = Vec::with_capacity(shape.frames);
    let (mut first, mut signature) = ([0; 16], Vec::new());
    for block in shape.frame_blocks() {
        let values = &mut room[..block.len() * shape.frame_len()];
        set.read_frames(i, block.clone(), values)?;
        whole.update(bytemuck::cast_slice(values));
        if block.start == 0 {
            let frame = &values[..shape.frame_len()];
            let entry = set.entry(i);
            first = short(begin(shape, set.inputs(), frame, (entry.file, entry.sample)));
            signature = coarse(shape, set.inputs(), frame);
        }
        frames.extend(values.chunks_exact(shape.frame_len()).map(|frame| {
            // A frame of equal points says nothing of where it comes from.
            let same = frame.chunks_exact(shape.channels).all(|p| p == &frame[..shape.channels]);
            (!same).then(|| short(blake3::hash(bytemuck::cast_slice(frame))))
        }));
    }
    Ok(Seen { whole: short(whole.finalize()), begin: first, frames, signature })
}

fn short(hash: blake3::Hash) -> [u8; 16] {
    std::array::from_fn(|i| hash.as_bytes()[i])
}

/// Means of what a trajectory begins with over a coarse grid: [cells…, channels].
fn coarse(shape: &Shape, inputs: usize, frame: &[f32]) -> Vec<f32> {
    let channels = if shape.frames > 1 || inputs == 0 { 0..shape.channels } else { 0..inputs };
    let cells: Vec<usize> = shape.grid.iter().map(|n| COARSE.min(*n)).collect();
    let width = channels.len();
    let mut sums = vec![0.0f64; cells.iter().product::<usize>() * width];
    let mut counts = vec![0.0f64; sums.len()];
    for (point, values) in frame.chunks_exact(shape.channels).enumerate() {
        let (mut rest, mut cell, mut stride) = (point, 0, 1);
        for (n, cells) in shape.grid.iter().zip(&cells).rev() {
            cell += rest % n * cells / n * stride;
            stride *= cells;
            rest /= n;
        }
        for (i, value) in values[channels.clone()].iter().enumerate() {
            sums[cell * width + i] += f64::from(*value);
            counts[cell * width + i] += 1.0;
        }
    }
    sums.iter().zip(counts).map(|(sum, count)| (sum / count) as f32).collect()
}
