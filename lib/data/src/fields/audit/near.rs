//! Finds first frames that are nearly equal to one in another split: candidates are selected by signature, then
//! compared at full resolution.

use super::TrajectoryIndex;
use super::signature::{ROUNDING, Sketch, Sketcher};
use super::sorted::Sorted;
use crate::fields::split_set::TrajectorySet;
use rayon::prelude::*;
use unix::Result;

/// Maximum number of candidates that are compared with a frame: the nearest.
pub(super) const CANDIDATES: usize = 32;

/// The data about the first frames of a set.
struct Firsts {
    sketcher: Sketcher,
    /// For each trajectory: the variation of its values.
    variations: Vec<f64>,
    sketches: Sorted,
}

/// The first frames of all sets.
pub(super) struct Index<'a> {
    sets: &'a [TrajectorySet],
    near: f64,
    firsts: Vec<Firsts>,
}

/// What a search found.
#[derive(Default)]
pub(super) struct Near {
    /// The trajectory with a near first frame, and a description of the relation.
    pub leak: Option<(TrajectoryIndex, String)>,
    /// Whether candidates were skipped because there were too many.
    pub cut: bool,
}

impl<'a> Index<'a> {
    /// Reads the first frame of every trajectory; with `near` = 0 none.
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

    /// Compares the first frame of a trajectory with those of the previous sets, so that each pair is compared once.
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
                    continue; // found by its hash
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

    /// First frames that may be near enough, ordered by the distance of their signatures; one more than are compared.
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
