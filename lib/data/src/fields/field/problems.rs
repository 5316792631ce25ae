//! Problems that make a file unfit for training, apart from its values.

use super::Field;
use super::array::Array;
use super::axes::{Axes, Axis};
use super::shape::{Shape, orders_text};
use crate::split::check::ProblemKind;
use unix::text::quote;
use unix::{Error, Result};

/// Maximum deviation of a frame interval from the mean interval, relative to the mean.
const UNEVEN: f64 = 0.01;
/// Maximum number of names in a list.
const MAX_NAMES: usize = 8;

/// Describes what is wrong with the times of `frames` frames; some PDEBench files have one more time than frames.
pub(crate) fn problem_of_times(t: &[f64], frames: usize) -> Option<String> {
    coordinate_problem(t, &[frames, frames + 1], Axis::Time).or_else(|| {
        let steps = || t.windows(2).map(|pair| pair[1] - pair[0]);
        let mean = steps().sum::<f64>() / steps().count().max(1) as f64;
        let scale = t.iter().fold(0.0f64, |largest, time| largest.max(time.abs()));
        let tolerance = UNEVEN * mean + 8.0 * f64::from(f32::EPSILON) * scale;
        let differences = steps().map(|step| (step - mean).abs()).enumerate();
        let (at, most) = differences.max_by(|a, b| a.1.total_cmp(&b.1))?;
        if most <= tolerance {
            return None;
        }
        Some(format!(
            "`t-coordinate` is uneven: {} after {} at {}, but the mean interval is {mean}; models are trained and \
             evaluated with one interval between frames, so keep frames at equal intervals, with `ds-prep import` \
             --crop or --stride, or interpolate them",
            t[at + 1],
            t[at],
            at + 1
        ))
    })
}

/// Describes what is wrong with the coordinates of an axis, whose number should be one of `lengths` and which should be
/// strictly increasing.
pub(crate) fn coordinate_problem(values: &[f64], lengths: &[usize], axis: Axis) -> Option<String> {
    let problem = if values.is_empty() {
        return None;
    } else if !lengths.contains(&values.len()) {
        format!("has {} values, expected {}", values.len(), lengths[0])
    } else if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        format!("is {} at {at}", values[at])
    } else {
        let at = values.windows(2).position(|pair| pair[0] >= pair[1])?;
        format!(
            "is not strictly increasing at index {}: {} follows {}",
            at + 1,
            values[at + 1],
            values[at]
        )
    };
    Some(format!("`{}-coordinate` {problem}", axis.letter()))
}

impl Field {
    /// Lists the problems that make the file unfit for training, except those of its times, each with a remedy.
    fn problems_but_times(&self) -> Vec<(ProblemKind, String)> {
        if self.trajectories() == 0 {
            return vec![(ProblemKind::Empty, "no trajectories".into())];
        }
        let suspected = self.suspected_axes();
        if !suspected.is_empty() {
            let what = format!(
                "wrong order of axes: {} contradict the coordinates, which fit {}; `ds-prep import` with the right \
                 one puts them in order",
                self.shape,
                orders_text(suspected)
            );
            return vec![(ProblemKind::AxisOrder, what)];
        }
        let conflict = self.found.coordinate_conflict.iter().map(|what| {
            let what = format!(
                "{what}; all trajectories of a file must share points and times, so store those that differ in \
                 another file"
            );
            (ProblemKind::Coordinates, what)
        });
        let unusable = self.found.remainder.unusable.iter().map(|what| {
            (ProblemKind::Unreadable, format!("{}; complete or remove it", quote(what)))
        });
        let points = Axis::SPACE.into_iter().zip(self.coordinates()).zip(&self.shape.grid);
        let points = points.filter_map(|((axis, values), points)| {
            Some((ProblemKind::Coordinates, coordinate_problem(values, &[*points], axis)?))
        });
        conflict.chain(unusable).chain(points).collect()
    }

    /// Axis orders that fit the lengths of the coordinates when the assumed order does not, with the resulting shapes.
    pub fn suspected_axes(&self) -> &[(Axes, Shape)] {
        if self.found.axes_fit { &[] } else { &self.found.other_axes }
    }

    /// Describes axis orders with a different time axis that fit the coordinates as well as the assumed order does.
    pub fn ambiguity(&self) -> Option<String> {
        let others = &self.found.other_axes;
        (self.found.axes_fit && !others.is_empty()).then(|| {
            format!(
                "read as {}; the lengths of the coordinates fit {} as well",
                self.shape,
                orders_text(others)
            )
        })
    }

    /// Whether some stored numbers denote missing values, which are read as NaN.
    pub fn marks_missing(&self) -> bool {
        self.arrays().any(Array::marks_missing)
    }

    /// Lists the problems that make the file unfit for training, apart from its values, each with a remedy.
    pub(crate) fn problems(&self) -> Vec<(ProblemKind, String)> {
        let mut all = self.problems_but_times();
        let times = problem_of_times(self.t(), self.shape.frames);
        if all.iter().all(|(kind, _)| *kind != ProblemKind::AxisOrder) {
            all.extend(times.map(|what| (ProblemKind::Coordinates, what)));
        }
        all
    }

    /// Fails (65) if the file is unfit for training.
    pub fn require_fit(&self) -> Result<()> {
        self.require(self.problems())
    }

    /// Like [`require_fit`](Self::require_fit), but ignores the times, because an import may keep only some of them.
    pub fn require_fit_but_times(&self) -> Result<()> {
        self.require(self.problems_but_times())
    }

    fn require(&self, problems: Vec<(ProblemKind, String)>) -> Result<()> {
        match problems.first() {
            None => Ok(()),
            Some((_, what)) => Err(Error::data(format!("{}: {what}", self.path.display()))),
        }
    }

    /// Arrays and groups of the file that are not read, as text; `None` if there are none.
    pub fn unused(&self) -> Option<String> {
        let unused = &self.found.remainder.unused;
        let mut all: Vec<String> = unused.iter().take(MAX_NAMES).map(|what| quote(what)).collect();
        if unused.len() > MAX_NAMES {
            all.push(format!("and {} more", unused.len() - MAX_NAMES));
        }
        (!all.is_empty()).then(|| all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_must_be_even_up_to_roundings() {
        let even: Vec<f64> = (0..101).map(|i| f64::from(i as f32 * 0.05)).collect();
        assert_eq!(problem_of_times(&even, 101), None);
        assert_eq!(problem_of_times(&even, 100), None, "one time more than frames");
        assert_eq!(problem_of_times(&[], 7), None);
        assert_eq!(problem_of_times(&[3.0], 1), None);
        let hours: Vec<f64> = (0..50).map(|i| 1_051_200.0 + 6.0 * f64::from(i)).collect();
        assert_eq!(problem_of_times(&hours, 50), None);
        let changed = |at: usize, value: f64| {
            let mut t = even.clone();
            t[at] = value;
            problem_of_times(&t, 101).unwrap_or_default()
        };
        assert!(changed(100, 9.0).contains("is uneven: 9 after"), "{}", changed(100, 9.0));
        assert!(changed(50, even[49]).contains("is not strictly increasing at index 50"));
        assert!(changed(50, 0.0).contains("is not strictly increasing at index 50: 0 follows"));
        assert!(changed(50, f64::NAN).contains("is NaN at 50"));
        assert!(changed(100, f64::INFINITY).contains("is inf at 100"));
        // A gap: frames 50 to 59 are missing.
        let gap = [&even[..50], &even[60..]].concat();
        assert!(problem_of_times(&gap, 91).unwrap().contains("at 50"));
        assert!(problem_of_times(&even[..9], 7).unwrap().contains("has 9 values, expected 7"));
        let geometric: Vec<f64> = (0..6).map(|i| f64::from(1 << i)).collect();
        assert!(problem_of_times(&geometric, 6).unwrap().contains("is uneven"));
    }
}
