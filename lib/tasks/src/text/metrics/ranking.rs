//! Metrics that depend on the order of scores only: area under the ROC curve and average precision.

/// Samples by score. Sorting is done once; the metrics can then be computed for any positives and weights.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Samples with descending scores.
    order: Vec<u32>,
    /// Ends in `order` of runs of equal scores.
    ends: Vec<usize>,
}

impl Ranking {
    /// Ranks samples by their scores. At most 2³² samples.
    pub fn new(scores: &[f64]) -> Self {
        let score = |sample: &u32| scores[*sample as usize];
        let mut order: Vec<u32> = (0..).take(scores.len()).collect();
        order.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let mut end = 0;
        let runs = order.chunk_by(|a, b| score(a) == score(b));
        let ends = runs.map(|run| {
            end += run.len();
            end
        });
        let ends = ends.collect();
        Self { order, ends }
    }

    /// The area under the ROC curve and the average precision; `None` where undefined. A sample counts `weight` times.
    ///
    /// AUROC is the probability that a positive has a higher score than a negative, where equal scores count as half
    /// (the Mann-Whitney statistic with mid-ranks); undefined without positives or without negatives. Average precision
    /// is Σ (Rᵢ - Rᵢ₋₁)·Pᵢ over the distinct scores as thresholds, without interpolation; undefined in the same cases,
    /// although it would be 1 without negatives.
    pub fn auroc_and_average_precision(
        &self,
        is_positive: impl Fn(usize) -> bool,
        weight: impl Fn(usize) -> u32,
    ) -> (Option<f64>, Option<f64>) {
        // Positives and negatives above the current run of equal scores.
        let mut above = [0.0; 2];
        let (mut area, mut precision, mut start) = (0.0, 0.0, 0);
        for end in &self.ends {
            let mut run = [0.0; 2];
            for sample in &self.order[start..*end] {
                let sample = *sample as usize;
                run[usize::from(!is_positive(sample))] += f64::from(weight(sample));
            }
            start = *end;
            area += run[1] * (above[0] + 0.5 * run[0]);
            above = [above[0] + run[0], above[1] + run[1]];
            if run[0] > 0.0 {
                precision += run[0] * above[0] / (above[0] + above[1]);
            }
        }
        let [positives, negatives] = above;
        let defined = positives > 0.0 && negatives > 0.0;
        (defined.then(|| area / (positives * negatives)), defined.then(|| precision / positives))
    }

    /// The `count` samples with the highest scores; ties are broken by index.
    pub(super) fn highest(&self, count: usize) -> impl Iterator<Item = usize> {
        self.order.iter().take(count).map(|sample| *sample as usize)
    }

    /// Calls `visit` for every distinct score, from the highest to the lowest, with the samples whose score is at least
    /// that.
    pub(super) fn cuts(&self, is_positive: impl Fn(usize) -> bool, mut visit: impl FnMut(Cut)) {
        let (mut start, mut positives) = (0, 0);
        for end in &self.ends {
            let run = &self.order[start..*end];
            positives += run.iter().filter(|sample| is_positive(**sample as usize)).count();
            let next = self.order.get(*end).map(|sample| *sample as usize);
            visit(Cut { samples: *end, positives, lowest: run[0] as usize, next });
            start = *end;
        }
    }
}

/// The samples with the highest scores.
pub(super) struct Cut {
    /// Number of samples.
    pub samples: usize,
    /// Number of positives among them.
    pub positives: usize,
    /// One of them with the lowest score.
    pub lowest: usize,
    /// The sample with the highest score below.
    pub next: Option<usize>,
}
