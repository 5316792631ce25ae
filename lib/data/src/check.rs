//! Looking for everything that is wrong with files or with a split: all faults, not the first.

use crate::field::Field;
use crate::split::{Split, SplitName};
use crate::split_set::{Verify, open_as_in};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result};

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The file is not there or may not be read.
    Missing,
    /// The file is no field of a layout that is read, or is truncated.
    Unreadable,
    /// The file is not the one that the manifest was made from.
    Changed,
    /// There are no trajectories.
    Empty,
    /// The parameter is missing or not finite.
    Parameter,
    /// Coordinates are missing, of the wrong number, or not ascending.
    Coordinates,
    /// A number is NaN or infinite.
    NotFinite,
    /// All numbers of a trajectory are equal.
    Constant,
    /// A number is larger than the limit.
    TooLarge,
    /// A trajectory is twice in the splits.
    Overlap,
    /// Two splits have trajectories that begin with the same state.
    SameInitialState,
}

/// One fault and its place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// What is wrong.
    pub kind: Kind,
    /// In which file.
    pub file: PathBuf,
    /// In which trajectory.
    pub trajectory: Option<usize>,
    /// In which frame of it.
    pub frame: Option<usize>,
    /// At which point (and channel) of the frame.
    pub index: Option<usize>,
    /// The same in words.
    pub message: String,
}

/// What was looked at and what was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Files looked at.
    pub files: usize,
    /// Trajectories read.
    pub trajectories: usize,
    /// All faults, in the order of the files.
    pub faults: Vec<Fault>,
}

impl Report {
    fn add(&mut self, kind: Kind, file: &Path, message: impl ToString) {
        let (trajectory, frame, index) = (None, None, None);
        let (file, message) = (file.to_path_buf(), message.to_string());
        self.faults.push(Fault { kind, file, trajectory, frame, index, message });
    }

    fn add_error(&mut self, file: &Path, error: &Error, otherwise: Kind) {
        let kind = if error.exit == Exit::NoInput { Kind::Missing } else { otherwise };
        self.add(kind, file, error);
    }
}

/// Checks files by themselves. `limit` bounds |u|.
pub fn check_files(paths: &[PathBuf], limit: f32) -> Report {
    let mut report = Report::default();
    for path in paths {
        report.files += 1;
        match Field::open(path) {
            Ok(field) => {
                check_field(&field, limit, &mut report);
            }
            Err(error) => report.add_error(path, &error, Kind::Unreadable),
        }
    }
    report
}

/// Checks a manifest, its files against it, and that nothing is in two splits.
///
/// Errors: only when the manifest itself cannot be read (66) or is none (65).
pub fn check_split(manifest: &Path, limit: f32) -> Result<Report> {
    let (split, _) = Split::load(manifest)?;
    let mut report = Report::default();
    check_overlap(&split, manifest, &mut report);
    let mut states: Vec<Vec<blake3::Hash>> = Vec::new();
    for number in 0..split.files.len() {
        report.files += 1;
        let path = split.file_path(number, manifest);
        let hashes = match open_as_in(manifest, &split, number, Verify::Hashes) {
            Ok(field) => check_field(&field, limit, &mut report),
            Err(error) => {
                // A file that cannot be opened by itself is damaged, any other was exchanged.
                let damaged = Field::open(&path).is_err_and(|cause| cause.exit == Exit::Data);
                let kind = if damaged { Kind::Unreadable } else { Kind::Changed };
                report.add_error(&path, &error, kind);
                Vec::new()
            }
        };
        states.push(hashes);
    }
    check_initial_states(&split, manifest, &states, &mut report);
    Ok(report)
}

/// Every entry of a manifest: (split, file number, sample).
fn entries(split: &Split) -> impl Iterator<Item = (SplitName, usize, usize)> {
    SplitName::ALL.into_iter().flat_map(move |name| {
        let of_part = move |part: &'_ crate::split::Part| {
            let file = part.file;
            part.samples.iter().map(move |&sample| (name, file, sample)).collect::<Vec<_>>()
        };
        split.parts(name).iter().flat_map(of_part)
    })
}

fn check_overlap(split: &Split, manifest: &Path, report: &mut Report) {
    let mut seen: HashMap<(&str, usize), SplitName> = HashMap::new();
    for (name, file, sample) in entries(split) {
        let key = (split.files[file].blake3.as_str(), sample);
        if let Some(before) = seen.insert(key, name) {
            let path = split.file_path(file, manifest);
            let message = format!(
                "{}: trajectory {sample} is in {before} and again in {name}",
                path.display()
            );
            report.add(Kind::Overlap, &path, message);
            set_trajectory(report, sample);
        }
    }
}

fn check_initial_states(
    split: &Split,
    manifest: &Path,
    states: &[Vec<blake3::Hash>],
    report: &mut Report,
) {
    let mut seen: HashMap<blake3::Hash, (SplitName, usize, usize)> = HashMap::new();
    for (name, file, sample) in entries(split) {
        let Some(hash) = states[file].get(sample) else { continue };
        let (first, other_file, other) = *seen.entry(*hash).or_insert((name, file, sample));
        if first != name && (other_file, other) != (file, sample) {
            let path = split.file_path(file, manifest);
            let message = format!(
                "{}: trajectory {sample} of {name} begins as trajectory {other} of {} in {first}",
                path.display(),
                split.file_path(other_file, manifest).display()
            );
            report.add(Kind::SameInitialState, &path, message);
            set_trajectory(report, sample);
        }
    }
}

fn set_trajectory(report: &mut Report, sample: usize) {
    if let Some(fault) = report.faults.last_mut() {
        fault.trajectory = Some(sample);
    }
}

/// Checks one file and returns the hash of the first frame of every trajectory.
fn check_field(field: &Field, limit: f32, report: &mut Report) -> Vec<blake3::Hash> {
    let path = field.path();
    let shape = field.shape();
    if shape.trajectories == 0 {
        report.add(Kind::Empty, path, format!("{}: no trajectories", path.display()));
    }
    match field.parameter() {
        None => report.add(Kind::Parameter, path, format!("{}: no parameter", path.display())),
        Some(parameter) if !parameter.value.is_finite() => {
            report.add(Kind::Parameter, path, format!("{}: {parameter}", path.display()));
        }
        Some(_) => {}
    }
    check_coordinate(path, "x-coordinate", field.x(), &[shape.grid[0]], report);
    check_coordinate(path, "t-coordinate", field.t(), &[shape.frames, shape.frames + 1], report);
    let found: Vec<(Vec<Fault>, Option<blake3::Hash>)> = (0..shape.trajectories)
        .into_par_iter()
        .map_init(
            || vec![0.0; shape.trajectory_len()],
            |values, trajectory| match field.read(trajectory, values) {
                Ok(()) => {
                    let first = bytemuck::cast_slice(&values[..shape.frame_len()]);
                    let faults = check_values(path, trajectory, values, shape.frame_len(), limit);
                    (faults, Some(blake3::hash(first)))
                }
                Err(error) => {
                    let mut one = Report::default();
                    one.add_error(path, &error, Kind::Unreadable);
                    set_trajectory(&mut one, trajectory);
                    (one.faults, None)
                }
            },
        )
        .collect();
    report.trajectories += found.len();
    let whole = found.iter().all(|(_, hash)| hash.is_some());
    let mut hashes = Vec::with_capacity(found.len());
    for (faults, hash) in found {
        report.faults.extend(faults);
        hashes.extend(hash.filter(|_| whole));
    }
    hashes
}

fn check_coordinate(
    path: &Path,
    name: &str,
    values: &[f64],
    lengths: &[usize],
    report: &mut Report,
) {
    let fault = if values.is_empty() {
        "is missing".into()
    } else if !lengths.contains(&values.len()) {
        format!("has {} values, expected are {}", values.len(), lengths[0])
    } else if let Some(at) = values
        .windows(2)
        .position(|pair| pair[0] >= pair[1] || pair[1].is_nan() || pair[0].is_nan())
    {
        format!("does not ascend at {}: {} after {}", at + 1, values[at + 1], values[at])
    } else {
        return;
    };
    report.add(Kind::Coordinates, path, format!("{}: `{name}` {fault}", path.display()));
}

/// The first number of each kind of fault in a trajectory.
fn check_values(
    path: &Path,
    trajectory: usize,
    values: &[f32],
    frame_len: usize,
    limit: f32,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |kind, at: Option<usize>, what: String| {
        let (frame, index) = (at.map(|at| at / frame_len), at.map(|at| at % frame_len));
        let place = match (frame, index) {
            (Some(frame), Some(index)) => format!(", frame {frame}, point {index}"),
            _ => String::new(),
        };
        let message = format!("{}: trajectory {trajectory}{place}: {what}", path.display());
        let (file, trajectory) = (path.to_path_buf(), Some(trajectory));
        faults.push(Fault { kind, file, trajectory, frame, index, message });
    };
    let count = values.iter().filter(|value| !value.is_finite()).count();
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        add(Kind::NotFinite, Some(at), format!("{} ({count} in all)", values[at]));
    }
    let large = |value: &f32| value.is_finite() && value.abs() > limit;
    if let Some(at) = values.iter().position(large) {
        add(Kind::TooLarge, Some(at), format!("|{}| is above {limit}", values[at]));
    }
    if values.iter().all(|value| *value == values[0]) {
        add(Kind::Constant, None, format!("every number is {}", values[0]));
    }
    faults
}
