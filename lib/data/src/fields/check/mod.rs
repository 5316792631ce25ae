//! Checks files and splits, and reports every problem instead of stopping at the first.

mod values;

pub use crate::split::check::{CheckReport, Problem, ProblemKind, ProblemPlace};

use crate::fields::field::Field;
use crate::fields::split::{GroupBy, Split};
use crate::fields::split_set::{Verify, compare};
use crate::split::check::shared;
use std::path::{Path, PathBuf};
use unix::Result;
use values::check_field;

/// Checks files individually. Values with |u| above `limit` are reported.
pub fn check_files(paths: &[PathBuf], limit: f32) -> CheckReport {
    let mut report = CheckReport::default();
    for path in paths {
        report.files += 1;
        match Field::open(path) {
            Ok(field) => {
                check_field(&field, limit, GroupBy::State, &mut report);
            }
            Err(error) => {
                report.problems.push(Problem::of_error(path, &error, ProblemKind::Unreadable));
            }
        }
    }
    report
}

/// Checks a manifest and its files, and that no trajectory is in two splits.
///
/// Errors: only when the manifest cannot be read (66) or is invalid (65).
pub fn check_split(manifest: &Path, limit: f32) -> Result<CheckReport> {
    let (split, _) = Split::parse(manifest)?;
    let (group_by, mut report) = (split.group_by.unwrap_or_default(), CheckReport::default());
    report.add_of(manifest, split.problems(manifest));
    let mut keys: Vec<Vec<blake3::Hash>> = Vec::new();
    let mut first: Option<Field> = None;
    for number in 0..split.list.files.len() {
        report.files += 1;
        match compare(manifest, &split, number, Verify::Hashes) {
            Ok((field, problems)) => {
                report.add_of(manifest, problems);
                keys.push(check_field(&field, limit, group_by, &mut report));
                if let Some(what) = first.as_ref().and_then(|f| f.coordinate_difference(&field)) {
                    report.add(ProblemKind::Coordinates, field.path(), what);
                }
                first.get_or_insert(field);
            }
            Err(error) => {
                let path = split.file_path(number, manifest);
                report.problems.push(Problem::of_error(&path, &error, ProblemKind::Unreadable));
                keys.push(Vec::new());
            }
        }
    }
    let samples = split.entries().filter_map(|(name, file, sample)| {
        Some((name, (file, sample), keys.get(file)?.get(sample).copied()))
    });
    let (kind, how) = match group_by {
        GroupBy::State => (ProblemKind::SameInitialState, "has the same initial state or input as"),
        GroupBy::Content => (ProblemKind::Duplicate, "equals"),
    };
    shared(samples, |_, (name, (file, sample)), (first, (other_file, other))| {
        // The same trajectory listed twice was already reported.
        if (file, sample) == (other_file, other) {
            return;
        }
        let [path, other_path] = [file, other_file].map(|file| split.file_path(file, manifest));
        let message = format!(
            "{}: trajectory {sample} of {name} {how} trajectory {other} of {} in {first}",
            path.display(),
            other_path.display()
        );
        report.problems.push(Problem::new(kind, &path, Some(sample), message));
    });
    Ok(report)
}
