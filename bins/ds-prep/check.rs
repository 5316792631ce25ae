//! Computes statistics of the training split, and checks files for problems.

use crate::{is_manifest, records};
use data::fields::check::{CheckReport, check_files, check_split};
use data::fields::split::{Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats::Stats;
use std::path::{Path, PathBuf};
use unix::out::Out;
use unix::{Exit, Result, inputs, note};

/// Writes the statistics of the training split.
pub fn stats(manifest: &Path, to: Option<PathBuf>, mut out: Out) -> Result<Exit> {
    let to = to.unwrap_or_else(|| manifest.with_file_name("stats.json"));
    if records::are_at(manifest) {
        return records::stats(manifest, &to, out);
    }
    let set = TrajectorySet::open(manifest, SplitName::Train, Verify::Hashes)?;
    let stats = Stats::of(&set)?;
    if to.as_os_str() == "-" {
        return out.raw(stats.text()?.as_bytes()).map(|()| Exit::Done);
    }
    stats.save(&to)?;
    out.rows(stats.records())
}

/// Reports every problem in the files.
pub fn check(files: &[PathBuf], limit: Option<f32>, mut out: Out) -> Result<Exit> {
    let mut all = CheckReport::default();
    let field_limit = limit.unwrap_or(1e10);
    for path in inputs::files(files)? {
        let report = if records::are_at(&path) {
            records::check(&path, limit.unwrap_or(f32::INFINITY))?
        } else if is_manifest(&path) {
            if let Ok((split, _)) = Split::load(&path) {
                records::warn_missed_shares(&split, &path);
            }
            check_split(&path, field_limit)?
        } else {
            check_files(&[path], field_limit)
        };
        report.problems.iter().try_for_each(|one| out.item(one, &one.message))?;
        all.append(report);
    }
    let CheckReport { files, trajectories, records, problems } = all;
    let found = problems.len();
    match records {
        0 => note!("{files} files, {trajectories} trajectories, {found} problems"),
        count => note!("{count} records, {found} problems"),
    }
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Data })
}
