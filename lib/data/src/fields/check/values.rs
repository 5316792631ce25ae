//! Checks a single file: its header and all its values.

use crate::fields::content::GroupKey;
use crate::fields::field::{Axis, Field, coordinates};
use crate::fields::split::GroupBy;
use crate::split::check::{CheckReport, Problem, ProblemKind, ProblemPlace};
use rayon::prelude::*;
use unix::Result;

/// Read cost above which converting the file is suggested; see [`Field::read_cost`].
const WORTH_CONVERTING: f64 = 2.0;

/// Checks a file and returns the [`GroupKey`] of each trajectory, or an empty list if any trajectory cannot be read.
pub(super) fn check_field(
    field: &Field,
    limit: f32,
    group_by: GroupBy,
    report: &mut CheckReport,
) -> Vec<blake3::Hash> {
    let path = field.path();
    let shape = field.shape();
    match field.only_regime() {
        Err(error) => report.problems.push(Problem::of_error(path, &error, ProblemKind::Parameter)),
        Ok(parameter) if parameter.iter().any(|(_, value)| !value.is_finite()) => {
            report.add(ProblemKind::Parameter, path, parameter);
        }
        Ok(_) => {}
    }
    check_header(field, report);
    if shape.trajectories > 0 && field.read_cost() > WORTH_CONVERTING {
        unix::note!(
            "{0}: it is stored in {1}: reading a trajectory costs {2:.0} times its bytes; `ds-prep import {0} -o \
             FOLDER` brings it into one piece",
            path.display(),
            field.read_mode(),
            field.read_cost()
        );
    }
    let found: Vec<(Vec<Problem>, Option<blake3::Hash>)> = (0..shape.trajectories)
        .into_par_iter()
        .map_init(
            || vec![0.0; shape.block_len()],
            |buffer, trajectory| {
                let mut scan = Scan::new(field, limit, group_by);
                match scan.read(trajectory, buffer) {
                    Ok(()) => (scan.problems(trajectory), scan.key.map(|key| key.finish())),
                    Err(error) => {
                        let Problem { kind, .. } =
                            Problem::of_error(path, &error, ProblemKind::Unreadable);
                        (vec![Problem::new(kind, path, Some(trajectory), error)], None)
                    }
                }
            },
        )
        .collect();
    report.trajectories += found.len();
    let whole = found.iter().all(|(_, hash)| hash.is_some());
    let mut hashes = Vec::with_capacity(found.len());
    for (problems, hash) in found {
        report.problems.extend(problems);
        hashes.extend(hash.filter(|_| whole));
    }
    hashes
}

/// Checks the file's metadata.
fn check_header(field: &Field, report: &mut CheckReport) {
    let path = field.path();
    let problems = field.problems();
    let has_other_order = problems.iter().any(|(kind, _)| *kind == ProblemKind::AxisOrder);
    for (kind, what) in problems {
        report.add(kind, path, what);
    }
    if field.layout().has_coordinates() && !has_other_order {
        let axes = Axis::SPACE.into_iter().zip(field.coordinates().iter().map(Vec::as_slice));
        for (axis, values) in axes.chain([(Axis::Time, field.t())]) {
            if values.is_empty() {
                let what = format!("`{}-coordinate` is missing", axis.letter());
                report.add(ProblemKind::Coordinates, path, what);
            }
        }
    }
    if let Some(what) = field.ambiguity() {
        unix::note!("{}: {what}", path.display());
    }
    if let Some(what) = field.unused() {
        unix::note!("{}: not read: {what}", path.display());
    }
}

/// Findings about a trajectory, collected while its frames are read.
struct Scan<'a> {
    field: &'a Field,
    limit: f32,
    not_finite: u64,
    /// Offset within the trajectory and value of the first non-finite number.
    first_not_finite: Option<(usize, f32)>,
    first_large: Option<(usize, f32)>,
    /// Values of the first point, as long as all points read so far are equal.
    constant: Option<Vec<f32>>,
    group_by: GroupBy,
    key: Option<GroupKey>,
}

impl<'a> Scan<'a> {
    fn new(field: &'a Field, limit: f32, group_by: GroupBy) -> Self {
        let (not_finite, first_not_finite, first_large) = (0, None, None);
        let (constant, key) = (None, None);
        Self { field, limit, not_finite, first_not_finite, first_large, constant, group_by, key }
    }

    fn read(&mut self, trajectory: usize, buffer: &mut [f32]) -> Result<()> {
        let shape = self.field.shape();
        for frames in shape.frame_blocks() {
            let values = &mut buffer[..frames.len() * shape.frame_len()];
            self.field.read_frames(trajectory, frames.clone(), values)?;
            if frames.start == 0 {
                self.key = Some(GroupKey::new(self.group_by, shape, self.field.inputs(), values));
                self.constant = Some(values[..shape.channels].to_vec());
            }
            if let Some(key) = &mut self.key {
                key.update(values);
            }
            self.look(frames.start * shape.frame_len(), values);
        }
        Ok(())
    }

    fn look(&mut self, offset: usize, values: &[f32]) {
        for (at, &value) in values.iter().enumerate() {
            if !value.is_finite() {
                self.not_finite += 1;
                self.first_not_finite.get_or_insert((offset + at, value));
            } else if value.abs() > self.limit {
                self.first_large.get_or_insert((offset + at, value));
            }
        }
        let width = self.field.shape().channels;
        let differs = |first: &Vec<f32>| values.chunks_exact(width).any(|point| point != first);
        if self.constant.as_ref().is_some_and(differs) {
            self.constant = None;
        }
    }

    /// Returns the first problem of each kind.
    fn problems(&self, trajectory: usize) -> Vec<Problem> {
        let mut problems = Vec::new();
        let path = self.field.path();
        let frame_len = self.field.shape().frame_len();
        let mut add = |kind, at: Option<usize>, what: String| {
            let (frame, index) = (at.map(|at| at / frame_len), at.map(|at| at % frame_len));
            let place = match (frame, index) {
                (Some(frame), Some(index)) => format!(", frame {frame}, {}", self.point(index)),
                _ => String::new(),
            };
            let message = format!("{}: trajectory {trajectory}{place}: {what}", path.display());
            let place = ProblemPlace::Field { trajectory: Some(trajectory), frame, index };
            problems.push(Problem { kind, file: path.into(), place, message });
        };
        if let Some((at, value)) = self.first_not_finite {
            let what = if self.field.marks_missing() { "missing or " } else { "" };
            add(
                ProblemKind::NotFinite,
                Some(at),
                format!("{what}{value} ({} in all)", self.not_finite),
            );
        }
        if let Some((at, value)) = self.first_large {
            add(ProblemKind::TooLarge, Some(at), format!("|{value}| is above {}", self.limit));
        }
        match self.constant.as_deref() {
            Some([value]) => add(ProblemKind::Constant, None, format!("every number is {value}")),
            Some(values) => add(ProblemKind::Constant, None, format!("every point is {values:?}")),
            None => {}
        }
        problems
    }

    /// Formats a position within a frame.
    fn point(&self, index: usize) -> String {
        let shape = self.field.shape();
        let (point, channel) = (index / shape.channels, index % shape.channels);
        let places = coordinates(&shape.grid, point);
        let places: Vec<String> = places.iter().map(usize::to_string).collect();
        let point = match places.as_slice() {
            [x] => format!("point {x}"),
            all => format!("point ({})", all.join(", ")),
        };
        match shape.channels {
            1 => point,
            _ => format!("{point}, channel {}", self.field.channels()[channel]),
        }
    }
}
