//! Point coordinates and times, which all trajectories in a file or a data set must share.
//!
//! Two lists are considered equal if they have the same length and differ by at most [`TOLERANCE`] of the largest
//! magnitude along the axis: a few f32 rounding errors, because most files store them in f32.

use super::Field;
use super::axes::Axis;
use super::formats;
use super::layout::{FieldLayout, LayoutDataset};
use super::recognise::full_name;
use super::source::{Source, numbers};
use unix::Result;
use unix::text::quote;

/// The attribute in which imports keep the unit of the times.
pub(crate) const TIME_UNITS: &str = "time_units";

/// Maximum difference, relative to the largest magnitude along the axis.
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

/// Describes the first difference between a later group's coordinates and those of the first group. Errors: 65 if the
/// coordinates of a group cannot be read.
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

/// Returns the units that a file states, by name: of the times in the array `times`, and of the field's arrays.
pub(super) fn units(
    file: &dyn Source,
    times: &str,
    parts: &[LayoutDataset],
    groups: &[String],
) -> Vec<(String, String)> {
    let unit = |place: &str, in_root: &str| {
        let own = file.attributes(Some(place));
        let own = own.get("units").and_then(|unit| unit.as_str()).map(String::from);
        // An origin, as in `hours since 1900-01-01`, does not change intervals.
        let unit = own.or_else(|| file.text(in_root))?;
        Some(unit.split(" since ").next().unwrap_or_default().trim().to_string())
    };
    let arrays = parts.iter().map(|part| (part.name.clone(), full_name(part, groups), "units"));
    let all = std::iter::once(("t".to_string(), times.to_string(), TIME_UNITS)).chain(arrays);
    all.filter_map(|(name, place, in_root)| Some((name, unit(&place, in_root)?))).collect()
}

impl Field {
    /// Describes where trajectories of this file have different points or times than the first trajectory, whose
    /// coordinates are [`coordinates`](Self::coordinates) and [`t`](Self::t).
    pub fn coordinate_conflict(&self) -> Option<&str> {
        self.found.coordinate_conflict.as_deref()
    }

    /// Reads the frame times of one trajectory, which [`coordinate_conflict`](Self::coordinate_conflict) compares with
    /// [`t`](Self::t). Errors: see [`Field::open`].
    pub fn t_of(&self, trajectory: usize) -> Result<Vec<f64>> {
        let file = formats::open(&self.path, true)?;
        let group = self.groups().get(trajectory).and_then(|data| data.rsplit_once('/'));
        if let Some((group, _)) = group {
            return numbers(&*file, &format!("{group}/grid/t"));
        }
        let rows = file.shape("t").filter(|dims| dims.len() == 2).map_or(1, |dims| dims[0]);
        if self.found.layout != FieldLayout::Incompressible || rows < 2 {
            return Ok(self.found.t.clone());
        }
        let all = numbers(&*file, "t")?;
        let row = all.chunks_exact((all.len() / rows).max(1)).nth(trajectory);
        Ok(row.unwrap_or_default().to_vec())
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
        let units = |field: &Self| field.found.units.clone();
        let other_unit = units(self).into_iter().find_map(|(name, unit)| {
            let (_, found) =
                units(other).into_iter().find(|(of, found)| *of == name && *found != unit)?;
            Some(format!(
                "its {name} has the unit {}, not {} as in {}",
                quote(&found),
                quote(&unit),
                self.path.display()
            ))
        });
        let mut pairs = lists(self).into_iter().zip(lists(other));
        other_unit.or_else(|| {
            pairs.find_map(|((axis, a), (_, b))| {
                let what = difference(&a, &b).filter(|_| !a.is_empty() && !b.is_empty())?;
                Some(format!("its {} has {what} as in {}", axis.letter(), self.path.display()))
            })
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
