//! Which signatures are near another one.

use super::signature::{LENGTH, Signature};

/// Points of a leaf.
const LEAF: usize = 8;

/// A k-d tree with a box around the points of each node. Equal points are no special case: a search is
/// bounded by how many neighbours it returns.
#[derive(Default)]
pub(super) struct Tree {
    points: Vec<(Signature, u32)>,
    /// Node i has the children 2i + 1 and 2i + 2.
    boxes: Vec<[Signature; 2]>,
}

impl Tree {
    /// Of points with a number each.
    pub fn new(mut points: Vec<(Signature, u32)>) -> Self {
        let mut boxes = Vec::new();
        if !points.is_empty() {
            build(&mut points, 0, &mut boxes);
        }
        Self { points, boxes }
    }

    /// The numbers of at most `most` points within `radius`, nearest first.
    pub fn nearest(&self, of: &Signature, radius: f64, most: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let limit = (radius * radius) as f32;
        if !self.points.is_empty() && gap(of, &self.boxes[0]) <= limit {
            self.search(of, limit, most, 0, 0..self.points.len(), &mut found);
        }
        found.into_iter().map(|(_, number)| number).collect()
    }

    fn search(
        &self,
        of: &Signature,
        limit: f32,
        most: usize,
        node: usize,
        range: std::ops::Range<usize>,
        found: &mut Vec<(f32, u32)>,
    ) {
        if range.len() <= LEAF {
            for (point, number) in &self.points[range] {
                let apart = of.iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
                if apart <= limit && (found.len() < most || apart < found[most - 1].0) {
                    let at = found.partition_point(|(other, _)| *other <= apart);
                    found.insert(at, (apart, *number));
                    found.truncate(most);
                }
            }
            return;
        }
        let middle = range.start + range.len() / 2;
        let halves = [range.start..middle, middle..range.end];
        let gaps = [1, 2].map(|child| gap(of, &self.boxes[2 * node + child]));
        let first = usize::from(gaps[1] < gaps[0]);
        for half in [first, 1 - first] {
            let full = found.len() == most;
            if gaps[half] <= limit && !(full && gaps[half] >= found[most - 1].0) {
                self.search(of, limit, most, 2 * node + 1 + half, halves[half].clone(), found);
            }
        }
    }
}

/// The square of the distance from a point to a box.
fn gap(of: &Signature, [low, high]: &[Signature; 2]) -> f32 {
    let mut sum = 0.0;
    for i in 0..LENGTH {
        let outside = (low[i] - of[i]).max(of[i] - high[i]).max(0.0);
        sum += outside * outside;
    }
    sum
}

/// Splits the points at the median along the longest side of their box.
fn build(points: &mut [(Signature, u32)], node: usize, boxes: &mut Vec<[Signature; 2]>) {
    let mut around = [[f32::INFINITY; LENGTH], [f32::NEG_INFINITY; LENGTH]];
    for (point, _) in &*points {
        for i in 0..LENGTH {
            around[0][i] = around[0][i].min(point[i]);
            around[1][i] = around[1][i].max(point[i]);
        }
    }
    if boxes.len() <= node {
        boxes.resize(node + 1, [[0.0; LENGTH]; 2]);
    }
    boxes[node] = around;
    if points.len() <= LEAF {
        return;
    }
    let side = |i: usize| around[1][i] - around[0][i];
    let longest = (0..LENGTH).max_by(|&i, &j| side(i).total_cmp(&side(j))).unwrap_or(0);
    let middle = points.len() / 2;
    points.select_nth_unstable_by(middle, |a, b| a.0[longest].total_cmp(&b.0[longest]));
    let (below, above) = points.split_at_mut(middle);
    build(below, 2 * node + 1, boxes);
    build(above, 2 * node + 2, boxes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::{Philox, Purpose};

    #[test]
    fn a_search_finds_what_comparing_all_points_finds() {
        let random = Philox::new(3, Purpose::Test);
        let point = |n: u64| -> Signature {
            // Every seventh point is there twice, and all lie near a plane.
            let n = if n.is_multiple_of(7) { n / 7 } else { n };
            std::array::from_fn(|i| random.uniform(n, i as u64) * if i < 3 { 1.0 } else { 0.01 })
        };
        let points: Vec<(Signature, u32)> = (0..500).map(|n| (point(n), n as u32)).collect();
        let tree = Tree::new(points.clone());
        for query in 0..60 {
            let of = point(query);
            let radius = [0.0, 0.05, 0.3][query as usize % 3];
            let mut all: Vec<(f32, u32)> = points
                .iter()
                .map(|(p, n)| (of.iter().zip(p).map(|(a, b)| (a - b) * (a - b)).sum(), *n))
                .filter(|(apart, _): &(f32, u32)| *apart <= (radius * radius) as f32)
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let mut found = tree.nearest(&of, radius, 1000);
            let mut expected: Vec<u32> = all.iter().map(|(_, n)| *n).collect();
            let few = tree.nearest(&of, radius, 3);
            let distance = |n: &u32| all.iter().find(|(_, other)| other == n).map(|(d, _)| *d);
            for (n, (nearest, _)) in few.iter().zip(&all) {
                assert_eq!(distance(n), Some(*nearest));
            }
            assert_eq!(few.len(), all.len().min(3));
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
        assert_eq!(Tree::new(Vec::new()).nearest(&point(0), 1.0, 5), [0u32; 0]);
    }
}
