//! Finds first frames that are nearly equal to one in another split, even if mirrored, transposed, shifted, cropped, or
//! taken from a later frame: candidates are selected by signature or patch, then compared at full resolution.

use super::Place;
use super::signature::{LENGTH, ROUNDING, Sketch, Sketcher};
use super::sorted::Sorted;
use super::symmetry::{Symmetry, distance};
use super::window::{self, Alignment, Anchor, Windows};
use crate::fields::check::Kind;
use crate::fields::field::Shape;
use crate::fields::split_set::TrajectorySet;
use rayon::prelude::*;
use unix::Result;

/// Maximum number of candidates that are compared with a frame: the nearest.
pub(super) const CANDIDATES: usize = 32;
/// Fields that consist of a single wave are always shifts of each other; they only count as copies below this distance.
const EXACT: f64 = 1e-5;

/// The data about the first frames of a set.
struct Firsts {
    sketcher: Sketcher,
    /// For each trajectory: the variation of its values, and whether they are a single wave.
    scales: Vec<(f64, bool)>,
    sketches: Sorted,
    invariants: Sorted,
}

/// The first frames of all sets.
pub(super) struct Index<'a> {
    sets: &'a [TrajectorySet],
    near: f64,
    firsts: Vec<Firsts>,
    windows: Windows,
}

/// A leak.
pub(super) struct Leak {
    pub kind: Kind,
    pub other: Place,
    /// The frame of the trajectory that was searched for.
    pub frame: usize,
    pub how: String,
}

/// The search for a trajectory in the sets of other splits; it ends with the first leak.
pub(super) struct Search<'a> {
    index: &'a Index<'a>,
    place: Place,
    pub leak: Option<Leak>,
    /// Whether candidates were skipped because there were too many.
    pub cut: bool,
}

impl<'a> Index<'a> {
    /// Reads the first frame of every trajectory.
    pub fn new(sets: &'a [TrajectorySet], near: f64) -> Result<Self> {
        let (mut firsts, mut anchors) = (Vec::new(), Vec::new());
        for (number, set) in sets.iter().enumerate() {
            let sketcher = Sketcher::new(set.shape(), set.inputs());
            let read = |i: usize| {
                let frame = first_frame(set, i)?;
                let values = sketcher.compared(&frame);
                let sketch = if near > 0.0 { sketcher.sketch(&values) } else { None };
                let signatures = sketch.map(|sketch| {
                    let invariant = sketcher.invariant(&sketch.values);
                    (sketch.variation, sketch.signature, invariant)
                });
                Ok((signatures, window::anchors(set.shape(), &frame)))
            };
            let all: Vec<_> = (0..set.len()).into_par_iter().map(read).collect::<Result<_>>()?;
            let (mut scales, mut sketches, mut invariants) = (Vec::new(), Vec::new(), Vec::new());
            for (trajectory, (signatures, patches)) in all.into_iter().enumerate() {
                let scale = signatures.map_or((0.0, false), |(variation, signature, invariant)| {
                    sketches.push((signature, trajectory as u32));
                    invariants.push((invariant.signature, trajectory as u32));
                    (variation, invariant.single_wave)
                });
                scales.push(scale);
                anchors.extend(patches.into_iter().map(|(point, hash)| {
                    (set.name(), Anchor { set: number, trajectory, point }, hash)
                }));
            }
            let (sketches, invariants) = (Sorted::new(sketches), Sorted::new(invariants));
            firsts.push(Firsts { sketcher, scales, sketches, invariants });
        }
        Ok(Self { sets, near, firsts, windows: Windows::new(anchors) })
    }

    pub fn search(&self, set: usize, trajectory: usize) -> Search<'_> {
        Search { index: self, place: (set, trajectory), leak: None, cut: false }
    }

    /// The sets of other splits whose first frames are compared with frames of this one.
    fn others(&self, set: usize) -> impl Iterator<Item = usize> {
        let fits = move |other: &usize| {
            self.sets[*other].name() != self.sets[set].name()
                && self.firsts[*other].sketcher.fits(&self.firsts[set].sketcher)
        };
        (0..self.sets.len()).filter(fits)
    }
}

impl Search<'_> {
    /// Searches for a frame of the trajectory, unless a leak was found already.
    pub fn look(&mut self, number: usize, frame: &[f32]) -> Result<()> {
        if self.leak.is_some() {
            return Ok(());
        }
        let (index, (set, _)) = (self.index, self.place);
        let firsts = &index.firsts[set];
        if index.near > 0.0 {
            let values = firsts.sketcher.compared(frame);
            if let Some(sketch) = firsts.sketcher.sketch(&values) {
                let leak = match number {
                    0 => self.first(&values, &sketch)?,
                    _ => self.later(number, &values, &sketch)?,
                };
                self.leak = leak;
            }
        }
        if self.leak.is_none() {
            self.leak = self.window(number, frame)?;
        }
        Ok(())
    }

    /// A first frame is compared with those of the previous sets, so that each pair is compared once.
    fn first(&mut self, values: &[f32], sketch: &Sketch) -> Result<Option<Leak>> {
        let (index, (set, trajectory)) = (self.index, self.place);
        let firsts = &index.firsts[set];
        let input = if index.sets[set].shape().frames > 1 { "first frame" } else { "input" };
        let near_duplicate = |other: Place, apart: f64| {
            let how = format!("has a {input} within {apart:.1e} (relative L2 distance) of that of");
            Leak { kind: Kind::NearDuplicate, other, frame: 0, how }
        };
        let others: Vec<usize> = index.others(set).take_while(|other| *other < set).collect();
        let near = |this: &Self, other: Place, theirs: &[f64]| {
            let (apart, _) = this.compare(sketch, theirs, other);
            (apart < index.near).then(|| near_duplicate(other, apart))
        };
        let found =
            self.search(&others, |f| &f.sketches, &sketch.signature, (values, sketch), near)?;
        if found.is_some() {
            return Ok(found);
        }
        let (grid, width) = (firsts.sketcher.grid(), firsts.sketcher.width());
        let limit = if firsts.scales[trajectory].1 { index.near.min(EXACT) } else { index.near };
        let invariant = firsts.sketcher.invariant(&sketch.values);
        let symmetric = |_: &Self, other: Place, theirs: &[f64]| {
            let (symmetry, apart) = Symmetry::best(&sketch.values, theirs, grid, width);
            let apart = apart / sketch.variation.max(index.firsts[other.0].scales[other.1].0);
            if symmetry.is_identity() && apart < index.near {
                return Some(near_duplicate(other, apart));
            }
            let how = format!(
                "has a copy ({symmetry}; relative L2 distance {apart:.1e}) of the {input} of"
            );
            (apart < limit).then_some(Leak { kind: Kind::Symmetric, other, frame: 0, how })
        };
        self.search(&others, |f| &f.invariants, &invariant.signature, (values, sketch), symmetric)
    }

    /// A later frame is compared with the first frames of all sets.
    fn later(&mut self, number: usize, values: &[f32], sketch: &Sketch) -> Result<Option<Leak>> {
        let index = self.index;
        let others: Vec<usize> = index.others(self.place.0).collect();
        let near = |this: &Self, other: Place, theirs: &[f64]| {
            let (apart, single_wave) = this.compare(sketch, theirs, other);
            let limit = if single_wave { index.near.min(EXACT) } else { index.near };
            let how = format!(
                "has a frame ({number}) within {apart:.1e} (relative L2 distance) of the first frame of"
            );
            (apart < limit).then_some(Leak { kind: Kind::NearFrame, other, frame: number, how })
        };
        self.search(&others, |f| &f.sketches, &sketch.signature, (values, sketch), near)
    }

    /// Returns the first result of `judge` that is not `None`, over the first frames of `others` whose signatures are
    /// near `signature` and which differ from `values`.
    fn search(
        &mut self,
        others: &[usize],
        signatures: impl Fn(&Firsts) -> &Sorted,
        signature: &[f32; LENGTH],
        (values, sketch): (&[f32], &Sketch),
        judge: impl Fn(&Self, Place, &[f64]) -> Option<Leak>,
    ) -> Result<Option<Leak>> {
        for &other in others {
            let sorted = signatures(&self.index.firsts[other]);
            for candidate in self.candidates(sorted, signature, sketch) {
                let place = (other, candidate);
                let Some(theirs) = self.unequal(values, place)? else { continue };
                if let Some(leak) = judge(self, place, &theirs) {
                    return Ok(Some(leak));
                }
            }
        }
        Ok(None)
    }

    fn window(&self, number: usize, frame: &[f32]) -> Result<Option<Leak>> {
        let index = self.index;
        let set = &index.sets[self.place.0];
        for alignment in index.windows.alignments(set.shape(), frame, set.name()) {
            let Alignment { anchor: Anchor { set: other, trajectory, .. }, .. } = alignment;
            let theirs = first_frame(&index.sets[other], trajectory)?;
            let shapes: [&Shape; 2] = [set.shape(), index.sets[other].shape()];
            if let Some(size) = alignment.shared((shapes[0], frame), (shapes[1], &theirs)) {
                let size: Vec<String> = size.iter().map(usize::to_string).collect();
                let how = format!(
                    "shares a window of {} points of its frame {number} with the first frame of",
                    size.join("x")
                );
                let (kind, other) = (Kind::SharedWindow, (other, trajectory));
                return Ok(Some(Leak { kind, other, frame: number, how }));
            }
        }
        Ok(None)
    }

    /// The centred values of a first frame; `None` if it equals `values`, which is found by hash.
    fn unequal(&self, values: &[f32], (set, trajectory): Place) -> Result<Option<Vec<f64>>> {
        let sketcher = &self.index.firsts[set].sketcher;
        let frame = first_frame(&self.index.sets[set], trajectory)?;
        let theirs = sketcher.compared(&frame);
        Ok((theirs != values).then(|| sketcher.centred(&theirs)))
    }

    /// Distance of the centred values `theirs` of a first frame, relative to the larger variation, and whether they are
    /// a single wave.
    fn compare(&self, sketch: &Sketch, theirs: &[f64], other: Place) -> (f64, bool) {
        let (variation, single_wave) = self.index.firsts[other.0].scales[other.1];
        (distance(&sketch.values, theirs) / sketch.variation.max(variation), single_wave)
    }

    /// First frames that may be near enough, ordered by the distance of their signatures.
    fn candidates(&mut self, sorted: &Sorted, of: &[f32; LENGTH], sketch: &Sketch) -> Vec<usize> {
        // The variations of two near frames differ by at most their distance.
        let near = self.index.near;
        let radius = (near / (1.0 - near) + 4.0 * ROUNDING) * sketch.variation;
        let mut found = sorted.nearest(of, radius, CANDIDATES + 1);
        self.cut |= found.len() > CANDIDATES;
        found.truncate(CANDIDATES);
        found.into_iter().map(|candidate| candidate as usize).collect()
    }
}

fn first_frame(set: &TrajectorySet, trajectory: usize) -> Result<Vec<f32>> {
    let mut frame = vec![0.0; set.shape().frame_len()];
    set.read_frames(trajectory, 0..1, &mut frame)?;
    Ok(frame)
}
