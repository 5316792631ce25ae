//! Finds parts of frames that occur exactly in other frames: crops of a field, and overlapping crops.
//!
//! Up to [`ANCHORS`] patches of [`PATCH`] neighbouring points along the last axis of each first frame are indexed by
//! hash. All patches of every frame are looked up (with a rolling hash, Karp and Rabin 1987); a hit aligns two frames,
//! which are then compared wherever they overlap.

use crate::fields::field::{Shape, coordinates};
use crate::fields::split::SplitName;
use std::collections::HashMap;

/// Points per patch.
const PATCH: usize = 16;
/// Maximum number of indexed patches per first frame.
const ANCHORS: usize = 16;
/// Maximum number of patches that are tried to find these.
const TRIES: u64 = 256;
/// Maximum number of alignments of a frame that are compared.
const ALIGNMENTS: usize = 4;
/// 2^64 divided by the golden ratio; odd.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A patch of a first frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    pub set: usize,
    pub trajectory: usize,
    pub point: usize,
}

/// Two frames with a common patch.
pub(super) struct Alignment {
    pub anchor: Anchor,
    /// The first point of the patch in the frame that was looked up.
    point: usize,
}

/// The patches of all first frames.
#[derive(Default)]
pub(super) struct Windows {
    /// One anchor per split for each hash: content that all fields share is not a leak.
    anchors: HashMap<u64, [Option<Anchor>; SplitName::ALL.len()]>,
    /// A bit for each hash that may be present (Bloom filter with one hash).
    filter: Vec<u64>,
}

impl Windows {
    /// `all` are patches with their splits.
    pub fn new(all: impl IntoIterator<Item = (SplitName, Anchor, u64)>) -> Self {
        let mut anchors: HashMap<u64, [Option<Anchor>; SplitName::ALL.len()]> = HashMap::new();
        for (split, anchor, hash) in all {
            anchors.entry(hash).or_default()[split as usize].get_or_insert(anchor);
        }
        let mut filter = vec![0; anchors.len().next_power_of_two().max(64)];
        for hash in anchors.keys() {
            let (word, bit) = place(&filter, *hash);
            filter[word] |= bit;
        }
        Self { anchors, filter }
    }

    /// The frames of other splits that share a patch with this one.
    pub fn alignments(&self, shape: &Shape, frame: &[f32], split: SplitName) -> Vec<Alignment> {
        let mut found: Vec<Alignment> = Vec::new();
        if self.anchors.is_empty() {
            return found;
        }
        patches(shape, frame, |point, hash| {
            let (word, bit) = place(&self.filter, hash);
            if self.filter[word] & bit == 0 || found.len() == ALIGNMENTS {
                return;
            }
            let Some(anchors) = self.anchors.get(&hash) else { return };
            let others = SplitName::ALL.into_iter().filter(|other| *other != split);
            let anchors = others.filter_map(|other| anchors[other as usize]);
            found.extend(anchors.map(|anchor| Alignment { anchor, point }));
        });
        found
    }
}

impl Alignment {
    /// The size of the region that two frames share, if they agree wherever they overlap; `None` if they do not, or are
    /// equal as a whole. `other` is the frame of the anchor.
    pub fn shared(&self, frame: (&Shape, &[f32]), other: (&Shape, &[f32])) -> Option<Vec<usize>> {
        let ((a, frame), (b, other)) = (frame, other);
        if a.channels != b.channels || a.grid.len() != b.grid.len() {
            return None;
        }
        let here = coordinates(&a.grid, self.point);
        let there = coordinates(&b.grid, self.anchor.point);
        let (mut begins, mut size) = ([Vec::new(), Vec::new()], Vec::new());
        for (axis, (p, q)) in here.into_iter().zip(there).enumerate() {
            let before = p.min(q);
            begins[0].push(p - before);
            begins[1].push(q - before);
            size.push(before + (a.grid[axis] - p).min(b.grid[axis] - q));
        }
        if size == a.grid && size == b.grid {
            return None;
        }
        let row = size[size.len() - 1] * a.channels;
        let rows: usize = size[..size.len() - 1].iter().product();
        let same = (0..rows).all(|number| {
            let mut place = coordinates(&size[..size.len() - 1], number);
            place.push(0);
            let [p, q] = [(a, 0), (b, 1)].map(|(shape, which)| {
                let places = place.iter().zip(&begins[which]).zip(&shape.grid);
                places.fold(0, |at, ((p, begin), n)| at * n + p + begin) * shape.channels
            });
            frame[p..p + row] == other[q..q + row]
        });
        same.then_some(size)
    }
}

/// Patches spread over a first frame whose values mostly differ; others do not identify their origin.
pub(super) fn anchors(shape: &Shape, frame: &[f32]) -> Vec<(usize, u64)> {
    let (channels, points) = (shape.channels, shape.grid[shape.grid.len() - 1]);
    let in_row = (points + 1).saturating_sub(PATCH);
    let all = shape.points() / points.max(1) * in_row;
    let anchor = |i: u64| {
        // Multiples of the golden ratio are evenly distributed, along the rows as well as across them.
        let part = i.wrapping_mul(BASE) as f64 / 2f64.powi(64);
        let number = (part * all as f64) as usize;
        let point = number / in_row * points + number % in_row;
        let values = &frame[point * channels..(point + PATCH) * channels];
        let mut all_bits: Vec<u32> = values.iter().map(|v| bits(*v)).collect();
        let hash = all_bits.iter().fold(0, |hash, bits| extended(hash, *bits));
        all_bits.sort_unstable();
        all_bits.dedup();
        let telling =
            4 * all_bits.len() >= 3 * values.len() && values.iter().all(|v| v.is_finite());
        telling.then_some((point, hash))
    };
    let tries = if all == 0 { 0 } else { TRIES };
    (0..tries).filter_map(anchor).take(ANCHORS).collect()
}

/// The bits of a value; -0.0 has those of 0.0.
fn bits(value: f32) -> u32 {
    (value + 0.0).to_bits()
}

/// Extends the hash of a patch by one value.
fn extended(hash: u64, bits: u32) -> u64 {
    hash.wrapping_mul(BASE).wrapping_add(u64::from(bits) + 1)
}

/// Calls `look` with the first point and the hash of every patch.
fn patches(shape: &Shape, frame: &[f32], mut look: impl FnMut(usize, u64)) {
    let (channels, points) = (shape.channels, shape.grid[shape.grid.len() - 1]);
    if points < PATCH {
        return;
    }
    let leaving = (0..PATCH * channels).fold(1u64, |power, _| power.wrapping_mul(BASE));
    for (number, row) in frame.chunks_exact(points * channels).enumerate() {
        let mut hash = 0u64;
        for (at, value) in row.iter().enumerate() {
            hash = extended(hash, bits(*value));
            if let Some(old) = at.checked_sub(PATCH * channels) {
                let old = u64::from(bits(row[old])) + 1;
                hash = hash.wrapping_sub(old.wrapping_mul(leaving));
            }
            let end = at + 1;
            if end >= PATCH * channels && end % channels == 0 {
                look(number * points + end / channels - PATCH, hash);
            }
        }
    }
}

/// The position of a hash's bit.
fn place(filter: &[u64], hash: u64) -> (usize, u64) {
    let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20;
    ((mixed >> 6) as usize & (filter.len() - 1), 1 << (mixed & 63))
}
