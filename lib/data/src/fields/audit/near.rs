//! Finds first frames that are nearly equal to a first frame in another split: candidates are selected by signature,
//! then compared at full resolution.

use super::TrajectoryIndex;
use super::signature::{ROUNDING, Sketch, Sketcher};
use super::sorted::Sorted;
use crate::fields::split_set::TrajectorySet;
use rayon::prelude::*;
use unix::Result;

/// Maximum number of candidates compared with a frame; the nearest are used.
pub(super) const CANDIDATES: usize = 32;

/// Sketches of the first frames of a set.
struct Firsts {
    sketcher: Sketcher,
    /// Variation of each trajectory's first frame; 0 without a sketch.
    variations: Vec<f64>,
    sketches: Sorted,
}

/// Search index over the first frames of all sets.
pub(super) struct Index<'a> {
    sets: &'a [TrajectorySet],
    near: f64,
    firsts: Vec<Firsts>,
}

/// Result of a search.
#[derive(Default)]
pub(super) struct Near {
    /// A trajectory with a nearly equal first frame, and a description of the match.
    pub leak: Option<(TrajectoryIndex, String)>,
    /// Whether candidates were skipped because there were too many.
    pub cut: bool,
}

impl<'a> Index<'a> {
    /// Reads the first frame of every trajectory, or of none if `near` is 0.
    pub fn new(sets: &'a [TrajectorySet], near: f64) -> Result<Self> {
        let first_frames = |set: &TrajectorySet| {
            let sketcher = Sketcher::new(set.shape(), set.inputs());
            let read = |i: usize| Ok(sketcher.sketch(&sketcher.compared(&first_frame(set, i)?)));
            let count = if near > 0.0 { set.len() } else { 0 };
            let all: Vec<_> = (0..count).into_par_iter().map(read).collect::<Result<_>>()?;
            let variations = all.iter().map(|s| s.as_ref().map_or(0.0, |s| s.variation)).collect();
            let signatures = (0..).zip(all).filter_map(|(i, s)| Some((s?.signature, i))).collect();
            Ok(Firsts { sketcher, variations, sketches: Sorted::new(signatures) })
        };
        Ok(Self { sets, near, firsts: sets.iter().map(first_frames).collect::<Result<_>>()? })
    }

    /// Compares the first frame of a trajectory in `set` with those of the previous sets, so that each pair is compared
    /// once.
    pub fn search(&self, set: usize, frame: &[f32]) -> Result<Near> {
        let mut near = Near::default();
        let sketcher = &self.firsts[set].sketcher;
        let values = sketcher.compared(frame);
        let Some(sketch) = sketcher.sketch(&values).filter(|_| self.near > 0.0) else {
            return Ok(near);
        };
        let input = if self.sets[set].shape().frames > 1 { "first frame" } else { "input" };
        for (other, firsts) in self.firsts[..set].iter().enumerate() {
            if self.sets[other].name() == self.sets[set].name() || !firsts.sketcher.fits(sketcher) {
                continue;
            }
            let mut candidates = self.candidates(firsts, &sketch);
            near.cut |= candidates.len() > CANDIDATES;
            candidates.truncate(CANDIDATES);
            for candidate in candidates {
                let candidate = candidate as usize;
                let theirs = sketcher.compared(&first_frame(&self.sets[other], candidate)?);
                if theirs == values {
                    continue; // an exact copy, found by hash
                }
                let squares = sketch.values.iter().zip(sketcher.centred(&theirs));
                let distance = squares.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                let apart = distance / sketch.variation.max(firsts.variations[candidate]);
                if apart < self.near {
                    let how = format!(
                        "has a {input} within {apart:.1e} (relative L2 distance) of that of"
                    );
                    return Ok(Near { leak: Some(((other, candidate), how)), ..near });
                }
            }
        }
        Ok(near)
    }

    /// Returns the first frames that may be near enough, nearest signature first. The list has up to `CANDIDATES` + 1
    /// entries, so that the caller notices when it is truncated.
    fn candidates(&self, firsts: &Firsts, sketch: &Sketch) -> Vec<u32> {
        // The variations of two near frames differ by at most their distance.
        let radius = (self.near / (1.0 - self.near) + 4.0 * ROUNDING) * sketch.variation;
        firsts.sketches.nearest(&sketch.signature, radius, CANDIDATES + 1)
    }
}

fn first_frame(set: &TrajectorySet, trajectory: usize) -> Result<Vec<f32>> {
    let mut frame = vec![0.0; set.shape().frame_len()];
    set.read_frames(trajectory, 0..1, &mut frame)?;
    Ok(frame)
}
