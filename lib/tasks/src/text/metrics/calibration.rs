//! Calibration: log loss, Brier score, reliability diagrams, expected calibration error, and temperature scaling.

use serde::Serialize;

/// Number of bins of a reliability diagram.
const BINS: usize = 15;
/// Bounds of the fitted temperature; the loss of perfectly separated samples has no minimum.
const TEMPERATURES: [f64; 2] = [0.01, 100.0];

/// -ln p for a sample; a probability of 0 counts as 2⁻⁵², as in scikit-learn.
pub fn log_loss(p: f64) -> f64 {
    -p.clamp(f64::EPSILON, 1.0).ln()
}

/// The Brier score of a sample with these probabilities: Σ (p - y)² over the classes, and half of it for two classes,
/// which is then the squared error of the probability of either.
pub fn brier(probabilities: &[f64], truth: usize) -> f64 {
    let error = |(class, p): (usize, &f64)| (p - f64::from(u8::from(class == truth))).powi(2);
    let sum: f64 = probabilities.iter().enumerate().map(error).sum();
    if probabilities.len() == 2 { sum / 2.0 } else { sum }
}

/// The points of a reliability diagram: 15 bins of equal width, each without its lower bound except the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reliability {
    /// From 0 to 1.
    pub bins: Vec<Bin>,
}

/// One bin of a reliability diagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bin {
    /// Lower bound of the probabilities.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// Number of samples.
    pub count: u64,
    /// Mean probability; 0 without samples.
    pub confidence: f64,
    /// Share of samples for which the event occurred; 0 without samples.
    pub frequency: f64,
}

impl Reliability {
    /// The diagram of events: for each its probability, whether it occurred, and how often it counts.
    pub fn of(events: impl Iterator<Item = (f64, bool, u32)>) -> Self {
        let bound = |i: usize| i as f64 / BINS as f64;
        let bounds: [f64; BINS] = std::array::from_fn(|i| bound(i + 1));
        let mut sums = [(0, 0.0, 0); BINS];
        for (p, occurred, count) in events {
            let (samples, total, hits) =
                &mut sums[bounds.partition_point(|b| *b < p).min(BINS - 1)];
            *samples += u64::from(count);
            *total += p * f64::from(count);
            *hits += u64::from(count) * u64::from(occurred);
        }
        let bin = |(i, (count, total, hits)): (usize, (u64, f64, u64))| {
            let n = count.max(1) as f64;
            let (confidence, frequency) = (total / n, hits as f64 / n);
            Bin { low: bound(i), high: bound(i + 1), count, confidence, frequency }
        };
        Self { bins: sums.into_iter().enumerate().map(bin).collect() }
    }

    /// The expected calibration error Σ nᵦ/n·|confidence - frequency| over the bins; `None` without samples.
    pub fn error(&self) -> Option<f64> {
        let samples: u64 = self.bins.iter().map(|bin| bin.count).sum();
        let error = |bin: &Bin| bin.count as f64 * (bin.confidence - bin.frequency).abs();
        (samples > 0).then(|| self.bins.iter().map(error).sum::<f64>() / samples as f64)
    }
}

/// The temperature T that minimises the log loss of softmax(z/T) for logits z [samples, classes] (Guo et al. 2017,
/// "On calibration of modern neural networks"), within 0.01 to 100; 1 without samples.
///
/// The log loss is convex in 1/T: its first derivative is the mean of Σₖ pₖ·zₖ - z_y for the true class y, and its
/// second derivative is the mean variance of z under p. Newton's method, with bisection where a step leaves the
/// bracket.
pub fn fit_temperature(logits: &[f32], classes: usize, truth: &[usize]) -> f64 {
    let derivatives = |inverse: f64| {
        let (mut slope, mut curvature) = (0.0, 0.0);
        for (row, truth) in logits.chunks_exact(classes).zip(truth) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let [mut total, mut first, mut second] = [0.0; 3];
            for z in row {
                // Relative to the largest logit; this shift changes neither derivative.
                let z = f64::from(z - largest);
                let weight = (z * inverse).exp();
                total += weight;
                first += weight * z;
                second += weight * z * z;
            }
            let mean = first / total;
            slope += mean - f64::from(row[*truth] - largest);
            curvature += second / total - mean * mean;
        }
        (slope, curvature)
    };
    let [coldest, hottest] = TEMPERATURES;
    let [mut low, mut high] = [1.0 / hottest, 1.0 / coldest];
    let mut inverse = 1.0;
    if truth.is_empty() {
        return inverse;
    }
    for _ in 0..100 {
        let (slope, curvature) = derivatives(inverse);
        match slope {
            0.0 => break,
            _ if slope > 0.0 => high = inverse,
            _ => low = inverse,
        }
        let newton = inverse - slope / curvature;
        let next = if newton > low && newton < high { newton } else { (low * high).sqrt() };
        let change = (next / inverse).ln().abs();
        inverse = next;
        if change < 1e-12 {
            break;
        }
    }
    1.0 / inverse
}
