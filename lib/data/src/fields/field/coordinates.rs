//! Points and times, which all trajectories of a file and of a data set share.
//!
//! Two lists are considered equal if they have the same length and differ by at most [`TOLERANCE`] of the largest
//! magnitude along the axis: a few roundings of f32, in which most files store them.

use super::Field;
use super::axes::Axis;
use super::source::{Source, numbers};
use unix::{Error, Result};

/// Largest difference, relative to the largest magnitude along the axis.
const TOLERANCE: f64 = 4.0 * f32::EPSILON as f64;

/// Describes how `b` differs from `a`.
fn difference(a: &[f64], b: &[f64]) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} values, not {}", b.len(), a.len()));
    }
    let scale = a.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let same = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= TOLERANCE * scale;
    let at = a.iter().zip(b).position(|pair| !same(pair))?;
    Some(format!("{} at index {at}, not {}", b[at], a[at]))
}

/// Describes the first group whose coordinates differ from those of the first group. Errors (65): the coordinates of a
/// group cannot be read.
pub(super) fn of_groups(
    file: &dyn Source,
    groups: &[String],
    coordinates: &[Vec<f64>],
    t: &[f64],
) -> Result<Option<String>> {
    let axes = Axis::SPACE.into_iter().zip(coordinates.iter().map(Vec::as_slice));
    let axes: Vec<(Axis, &[f64])> = axes.chain([(Axis::Time, t)]).collect();
    for group in groups.iter().skip(1) {
        for (axis, first) in &axes {
            let name = format!("{group}/grid/{}", axis.letter());
            if let Some(what) = difference(first, &numbers(file, &name)?) {
                return Ok(Some(format!("`{name}` has {what} as in group {}", groups[0])));
            }
        }
    }
    Ok(None)
}

/// Describes the first of `rows` lists of times that differs from the first list.
pub(super) fn of_rows(t: &[f64], rows: usize) -> Option<String> {
    let mut rows = t.chunks_exact((t.len() / rows.max(1)).max(1));
    let first = rows.next()?;
    let (row, what) =
        rows.enumerate().find_map(|(row, other)| Some((row, difference(first, other)?)))?;
    Some(format!("`t` of trajectory {} has {what} as of trajectory 0", row + 1))
}

impl Field {
    /// Describes where trajectories of this file have other points or times than its first trajectory, whose
    /// coordinates are [`coordinates`](Self::coordinates) and [`t`](Self::t).
    pub fn coordinate_conflict(&self) -> Option<&str> {
        self.found.coordinate_conflict.as_deref()
    }

    /// Refuses (65) a file with a [`coordinate_conflict`](Self::coordinate_conflict).
    pub fn require_shared_coordinates(&self) -> Result<()> {
        match &self.found.coordinate_conflict {
            None => Ok(()),
            Some(what) => Err(Error::data(format!(
                "{}: {what}; all trajectories of a file must share points and times, so store those that \
                 differ in another file",
                self.path.display()
            ))),
        }
    }

    /// Describes how the points or times of `other`, a file of the same shape, differ from those of this file.
    /// Coordinates that either file lacks are not compared.
    pub fn coordinate_difference(&self, other: &Self) -> Option<String> {
        let times =
            |Self { found, shape, .. }: &Self| found.t[..found.t.len().min(shape.frames)].to_vec();
        let lists = |field: &Self| {
            let space = Axis::SPACE.into_iter().zip(field.found.coordinates.clone());
            space.chain([(Axis::Time, times(field))]).collect::<Vec<_>>()
        };
        let mut pairs = lists(self).into_iter().zip(lists(other));
        pairs.find_map(|((axis, a), (_, b))| {
            let what = difference(&a, &b).filter(|_| !a.is_empty() && !b.is_empty())?;
            Some(format!("its {} has {what} as in {}", axis.letter(), self.path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_of_f32_are_accepted_and_other_steps_are_not() {
        let exact: Vec<f64> = (0..101).map(|i| f64::from(i) * 0.05).collect();
        let rounded: Vec<f64> = exact.iter().map(|t| f64::from(*t as f32)).collect();
        assert_eq!(difference(&exact, &rounded), None);
        let other: Vec<f64> = exact.iter().map(|t| t * 1.00001).collect();
        assert!(difference(&exact, &other).is_some());
        assert_eq!(difference(&[0.0, 0.1], &[0.0, 0.2]).unwrap(), "0.2 at index 1, not 0.1");
        assert!(difference(&[0.0, 0.1], &[0.0, f64::NAN]).is_some());
        assert!(difference(&[0.0, 0.1], &[]).is_some());
        assert_eq!(of_rows(&[0.0, 1.0, 0.0, 1.0], 2), None);
        assert!(of_rows(&[0.0, 1.0, 0.0, 2.0], 2).unwrap().contains("trajectory 1"));
        assert_eq!(of_rows(&[], 0), None);
    }
}
