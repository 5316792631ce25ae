//! Range search over signatures.

use super::signature::{LENGTH, Signature};

/// Signatures sorted by the entry with the largest variance. Signatures within some radius of each other differ by at
/// most that radius in this entry, so a search only visits a contiguous range.
#[derive(Default)]
pub(super) struct Sorted {
    entry: usize,
    points: Vec<(Signature, u32)>,
}

impl Sorted {
    /// Sorts `points`, pairs of a signature and its number.
    pub fn new(mut points: Vec<(Signature, u32)>) -> Self {
        let variance = |i: usize| {
            let values = || points.iter().map(|(point, _)| f64::from(point[i]));
            let mean = values().sum::<f64>() / points.len() as f64;
            values().map(|value| (value - mean).powi(2)).sum::<f64>()
        };
        let variances: [f64; LENGTH] = std::array::from_fn(variance);
        let entry = (0..LENGTH).max_by(|&i, &j| variances[i].total_cmp(&variances[j])).unwrap_or(0);
        points.sort_unstable_by(|(a, _), (b, _)| a[entry].total_cmp(&b[entry]));
        Self { entry, points }
    }

    /// Returns the numbers of at most `most` points within `radius` of the signature `of`, nearest first.
    pub fn nearest(&self, of: &Signature, radius: f64, most: usize) -> Vec<u32> {
        let (limit, at) = ((radius * radius) as f32, f64::from(of[self.entry]));
        let first = self.points.partition_point(|(p, _)| f64::from(p[self.entry]) < at - radius);
        let within = self.points[first..].iter();
        let within = within.take_while(|(p, _)| f64::from(p[self.entry]) <= at + radius);
        let apart = |(point, number): &(Signature, u32)| {
            let sum: f32 = of.iter().zip(point).map(|(a, b)| (a - b) * (a - b)).sum();
            (sum, *number)
        };
        let mut found: Vec<(f32, u32)> =
            within.map(apart).filter(|(sum, _)| *sum <= limit).collect();
        found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        found.truncate(most);
        found.into_iter().map(|(_, number)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::{Philox, Purpose};

    #[test]
    fn a_search_finds_what_comparing_all_points_finds() {
        let random = Philox::new(3, Purpose::Test);
        let point = |n: u64| -> Signature {
            // Every seventh point is a duplicate, and all are close to a three-dimensional subspace.
            let n = if n.is_multiple_of(7) { n / 7 } else { n };
            std::array::from_fn(|i| random.uniform(n, i as u64) * if i < 3 { 1.0 } else { 0.01 })
        };
        let points: Vec<(Signature, u32)> = (0..500).map(|n| (point(n), n as u32)).collect();
        let sorted = Sorted::new(points.clone());
        for query in 0..60 {
            let of = point(query);
            let radius = [0.0, 0.05, 0.3][query as usize % 3];
            let mut all: Vec<(f32, u32)> = points
                .iter()
                .map(|(p, n)| (of.iter().zip(p).map(|(a, b)| (a - b) * (a - b)).sum(), *n))
                .filter(|(apart, _): &(f32, u32)| *apart <= (radius * radius) as f32)
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let mut found = sorted.nearest(&of, radius, 1000);
            let mut expected: Vec<u32> = all.iter().map(|(_, n)| *n).collect();
            let few = sorted.nearest(&of, radius, 3);
            let distance = |n: &u32| all.iter().find(|(_, other)| other == n).map(|(d, _)| *d);
            for (n, (nearest, _)) in few.iter().zip(&all) {
                assert_eq!(distance(n), Some(*nearest));
            }
            assert_eq!(few.len(), all.len().min(3));
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
        assert_eq!(Sorted::new(Vec::new()).nearest(&point(0), 1.0, 5), [0u32; 0]);
    }
}
