//! Tests whether the difference between two results may be due to chance.

use super::with_interval;
use crate::evaluate::{Difference, Losses};
use report::document::equal_precision;
use report::evaluation::{Direction, MetricsFile};
use std::path::Path;
use unix::{Exit, Result};

/// What is known about the difference between a result and the first one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Known {
    /// Paired difference of the losses, item by item.
    Paired { loss: String, items: usize, difference: Difference },
    /// Confidence intervals of the primary metric; the interval of the first result comes first.
    Intervals { metric: String, direction: Option<Direction>, bounds: [[f64; 2]; 2] },
    /// Neither losses of the same items nor intervals are available.
    Nothing { metric: String },
}

/// Reads the losses in a folder; None if they were not stored. Errors: 65 for a damaged file, 74 when reading fails.
pub(super) fn losses(folder: &Path) -> Result<Option<Losses>> {
    match Losses::read(folder) {
        Ok(losses) => Ok(Some(losses)),
        Err(error) if error.exit == Exit::NoInput => Ok(None),
        Err(error) => Err(error),
    }
}

impl Known {
    /// Compares a result with the first one, given the losses of both.
    pub(super) fn of(
        (first, losses): (&MetricsFile, Option<&Losses>),
        (other, own): (&MetricsFile, Option<&Losses>),
    ) -> Self {
        if let (Some(losses), Some(own)) = (losses, own)
            && let Some(difference) = own.difference(losses)
        {
            return Self::Paired { loss: own.name.clone(), items: own.values.len(), difference };
        }
        let metric = first.subject.metric.clone();
        let found = [first, other].map(|file| file.scores.metric(&metric));
        match found.map(|found| found.and_then(|found| found.interval)) {
            [Some(a), Some(b)] => {
                let direction = found[0].and_then(|metric| metric.direction);
                Self::Intervals { metric, direction, bounds: [a, b] }
            }
            _ => Self::Nothing { metric },
        }
    }

    /// Describes the difference for the result `name` in one line.
    pub(super) fn describe(&self, name: &str) -> String {
        match self {
            Self::Paired { loss, items, difference } => {
                format!("{name}: {}", paired(loss, *items, difference))
            }
            Self::Intervals { metric, direction, bounds: [first, own] } => {
                let text = |bounds: &[f64; 2]| {
                    equal_precision(&bounds.map(Some), super::DIGITS).join(" to ")
                };
                let (is_below, is_above) = (own[1] < first[0], own[0] > first[1]);
                let verdict = match (is_below || is_above, direction) {
                    (false, _) => "overlap, so the difference may be chance",
                    (true, None) => {
                        "do not overlap, so the difference is unlikely to be due to chance"
                    }
                    (true, Some(direction)) => match direction.is_better(own[0], first[0]) {
                        true => {
                            "do not overlap: the result is better, and the difference is unlikely to be due to chance"
                        }
                        false => {
                            "do not overlap: the result is worse, and the difference is unlikely to be due to chance"
                        }
                    },
                };
                format!(
                    "{name}: there are no losses of the same items; its 95 % interval of {metric}, {}, and that of the \
                     first, {}, {verdict}",
                    text(own),
                    text(first)
                )
            }
            Self::Nothing { metric } => format!(
                "{name}: there are neither losses of the same items nor two intervals of {metric}, so nothing is known \
                 about chance"
            ),
        }
    }
}

fn paired(loss: &str, items: usize, difference: &Difference) -> String {
    let Difference { mean, interval: [low, high], clusters } = *difference;
    if !mean.is_finite() {
        return format!(
            "{loss} is not finite for some of {items} items, so the difference is not known"
        );
    }
    if [mean, low, high] == [0.0; 3] {
        return format!("the mean {loss} of {items} items is the same");
    }
    let (more, interval) = match mean < 0.0 {
        true => ("lower", [-high, -low]),
        false => ("higher", [low, high]),
    };
    let by = &equal_precision(&[Some(mean.abs())], 3)[0];
    let start = format!("the mean {loss} of {items} items is {more} by");
    match (difference.has_enough_clusters(), difference.is_clear()) {
        (false, _) => {
            format!(
                "{start} {by}, but with only {clusters} independent clusters, chance cannot be ruled out"
            )
        }
        (true, true) => {
            format!(
                "{start} {} (95 % interval), which is unlikely to be due to chance",
                with_interval(by, Some(interval))
            )
        }
        (true, false) => {
            format!(
                "{start} {} (95 % interval), which may be chance",
                with_interval(by, Some(interval))
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::result;
    use super::*;

    fn losses(values: impl Iterator<Item = f64>) -> Losses {
        let values: Vec<f64> = values.collect();
        let clusters = (0..values.len() as u64).collect();
        Losses { name: "loss".into(), values, clusters }
    }

    #[test]
    fn differences_item_by_item_are_told_from_chance() {
        let file = result(0.5, 0.5);
        let first = losses((0..40).map(|i| f64::from(i * i)));
        let text = |other: Losses| {
            Known::of((&file, Some(&first)), (&file, Some(&other))).describe("second")
        };
        let shifted = |by: &dyn Fn(u32) -> f64| losses((0..40).map(|i| f64::from(i * i) + by(i)));
        let clear = text(shifted(&|_| -0.5));
        assert_eq!(
            clear,
            "second: the mean loss of 40 items is lower by 0.500 [0.500, 0.500] (95 % interval), which is unlikely \
             to be due to chance"
        );
        let chance = text(shifted(&|i| if i % 2 == 0 { 1.0 } else { -0.75 }));
        assert!(
            chance.contains("higher by 0.125 [-0.") && chance.ends_with("may be chance"),
            "{chance}"
        );
        assert!(text(shifted(&|_| 0.0)).ends_with("the mean loss of 40 items is the same"));
        assert!(text(shifted(&|_| f64::NAN)).contains("not finite for some of 40 items"));
        // All four losses are lower, which happens by chance once in eight cases.
        let few = losses((0..4).map(f64::from));
        let lower = losses((0..4).map(|i| f64::from(i) - 0.5));
        let text = Known::of((&file, Some(&few)), (&file, Some(&lower))).describe("second");
        assert!(
            text.ends_with(
                "lower by 0.500, but with only 4 independent clusters, chance cannot be ruled out"
            ),
            "{text}"
        );
    }

    #[test]
    fn without_losses_of_the_same_items_intervals_are_compared() {
        let first = result(0.5, 0.5);
        let (other, few) = (losses((0..3).map(f64::from)), losses((0..2).map(f64::from)));
        let text = |second: &MetricsFile, own: Option<&Losses>| {
            Known::of((&first, Some(&other)), (second, own)).describe("second")
        };
        for (error, words) in
            [(0.55, "may be chance"), (0.7, "result is worse"), (0.3, "result is better")]
        {
            for own in [None, Some(&few)] {
                let text = text(&result(error, 0.5), own);
                assert!(text.contains(words) && text.contains("0.4500 to 0.5500"), "{text}");
            }
        }
        let text = text(&result(f64::NAN, 0.5), None);
        assert!(text.ends_with("so nothing is known about chance"), "{text}");
    }
}
