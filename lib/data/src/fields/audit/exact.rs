//! Finds equal trajectories, first frames and single frames by hash.

use super::TrajectoryIndex;
use crate::fields::content::{begin, hash_values};
use crate::fields::split::SplitName;
use crate::fields::split_set::TrajectorySet;
use crate::split::check::ProblemKind;
use std::collections::HashMap;
use unix::Result;

type Hash = [u8; 16];

/// The hashes of a trajectory.
pub(super) struct Hashes {
    whole: Hash,
    begin: Hash,
    /// `None` for a frame whose points are all equal, which does not identify a trajectory.
    frames: Vec<Option<Hash>>,
}

/// Reads and hashes a trajectory, and passes its first frame to `look`. `buffer` must hold the largest block of frames.
pub(super) fn read(
    set: &TrajectorySet,
    i: usize,
    buffer: &mut [f32],
    mut look: impl FnMut(&[f32]) -> Result<()>,
) -> Result<Hashes> {
    let shape = set.shape();
    let mut whole = blake3::Hasher::new();
    let mut frames = Vec::with_capacity(shape.frames);
    let mut first = [0; 16];
    for block in shape.frame_blocks() {
        let values = &mut buffer[..block.len() * shape.frame_len()];
        set.read_frames(i, block.clone(), values)?;
        hash_values(&mut whole, values);
        for (number, frame) in block.zip(values.chunks_exact(shape.frame_len())) {
            if number == 0 {
                look(frame)?;
                let entry = set.entry(i);
                first = short(begin(shape, set.inputs(), frame, (entry.file, entry.sample)));
            }
            let same = frame.chunks_exact(shape.channels).all(|p| p == &frame[..shape.channels]);
            frames.push((!same).then(|| {
                let mut hasher = blake3::Hasher::new();
                hash_values(&mut hasher, frame);
                short(hasher.finalize())
            }));
        }
    }
    Ok(Hashes { whole: short(whole.finalize()), begin: first, frames })
}

fn short(hash: blake3::Hash) -> Hash {
    std::array::from_fn(|i| hash.as_bytes()[i])
}

/// Hashes of all trajectories; single-frame hashes only for validation and test.
#[derive(Default)]
pub(super) struct Exact {
    whole: HashMap<Hash, TrajectoryIndex>,
    begins: HashMap<Hash, TrajectoryIndex>,
    frames: HashMap<Hash, (TrajectoryIndex, u32)>,
}

impl Exact {
    /// Looks up a trajectory among the previous ones, and stores its hashes.
    pub fn compare(
        &mut self,
        sets: &[TrajectorySet],
        place: TrajectoryIndex,
        hashes: Hashes,
    ) -> Vec<(ProblemKind, TrajectoryIndex, String)> {
        let split = |place: TrajectoryIndex| sets[place.0].name();
        let found = self.find(sets, place, &hashes);
        if split(place) != SplitName::Train {
            for (frame, hash) in hashes.frames.iter().enumerate() {
                if let Some(hash) = hash {
                    self.frames.entry(*hash).or_insert((place, frame as u32));
                }
            }
        }
        self.whole.entry(hashes.whole).or_insert(place);
        self.begins.entry(hashes.begin).or_insert(place);
        found
    }

    /// Finds an identical trajectory, first frame or single frame among the previous trajectories. After a copy in the
    /// same split, the search continues, because the same data may also occur in another split.
    fn find(
        &self,
        sets: &[TrajectorySet],
        place: TrajectoryIndex,
        hashes: &Hashes,
    ) -> Vec<(ProblemKind, TrajectoryIndex, String)> {
        let mut found = Vec::new();
        let elsewhere = |other: &TrajectoryIndex| sets[other.0].name() != sets[place.0].name();
        if let Some(&other) = self.whole.get(&hashes.whole) {
            let [a, b] = [place, other].map(|(set, i)| sets[set].entry(i));
            let kind = if (a.file, a.sample) == (b.file, b.sample) {
                ProblemKind::Overlap
            } else {
                ProblemKind::Duplicate
            };
            found.push((kind, other, "is identical to".into()));
            if elsewhere(&other) {
                return found;
            }
        }
        if let Some(&other) = self.begins.get(&hashes.begin).filter(|other| elsewhere(other)) {
            found.push((ProblemKind::SameInitialState, other, "begins exactly as".into()));
            return found;
        }
        found.extend(hashes.frames.iter().enumerate().find_map(|(frame, hash)| {
            let (other, at) = *self.frames.get(hash.as_ref()?)?;
            let how = format!("has a frame ({frame}) that is identical to frame {at} of");
            elsewhere(&other).then_some((ProblemKind::SharedFrame, other, how))
        }));
        found
    }
}
