//! Checks of a manifest, by itself and against its files. `check` reports every violation; opening a manifest for
//! training fails on any. The values of fields are not read.

use super::{Kind, Violation};
use crate::fields::divide::Share;
use crate::fields::field::{Field, Shape};
use crate::fields::parameter::Parameter;
use crate::fields::split::{By, Split, SplitName, regimes};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use unix::Error;

/// Repeated trajectories that are reported individually; the rest are only counted.
const MAX_REPEATS: usize = 100;
/// Violations that one error quotes.
const MAX_QUOTED: usize = 10;

/// The error (65) for violations of a manifest; `None` if there are none.
pub(crate) fn error(violations: &[Violation]) -> Option<Error> {
    let quoted = violations.iter().take(MAX_QUOTED).map(|violation| violation.message.clone());
    let mut all: Vec<String> = quoted.collect();
    if violations.len() > all.len() {
        all.push(format!("and {} more", violations.len() - all.len()));
    }
    (!violations.is_empty()).then(|| Error::data(all.join("; ")))
}

/// Inconsistencies within the manifest that was read from `path`.
pub(crate) fn in_itself(split: &Split, path: &Path) -> Vec<Violation> {
    let mut all = Vec::new();
    let mut wrong = |message: String| all.push(Violation::new(Kind::Manifest, path, message));
    let Split { frames, grid, channels, channel_names, inputs, .. } = split;
    if *frames == 0 || *channels == 0 || grid.contains(&0) || !(1..=3).contains(&grid.len()) {
        wrong(format!("{frames} frames on a grid {grid:?} with {channels} channels"));
    }
    if channel_names.len() != *channels {
        wrong(format!("{} `channel_names` for {channels} channels", channel_names.len()));
    }
    let distinct: HashSet<&String> = channel_names.iter().collect();
    if distinct.len() != channel_names.len() {
        wrong(format!("`channel_names` {} repeat a name", channel_names.join(",")));
    }
    if inputs >= channels {
        wrong(format!("{inputs} `inputs` of {channels} channels leave nothing to predict"));
    }
    for name in SplitName::ALL {
        for part in split.parts(name) {
            match split.files.get(part.file) {
                None => wrong(format!("{name}: file {} of {}", part.file, split.files.len())),
                Some(source) => {
                    let count = source.trajectories;
                    let beyond: Vec<_> = part.samples.iter().filter(|s| **s >= count).collect();
                    if let Some(first) = beyond.first() {
                        let path = source.path.display();
                        wrong(format!("{name}: trajectory {first} of {path}, which has {count}"));
                    }
                }
            }
        }
    }
    for (number, source) in split.files.iter().enumerate() {
        if source.parameter.iter().any(|(_, value)| !value.is_finite()) {
            let what = format!("parameter {} of {}", source.parameter, source.path.display());
            all.push(Violation::new(Kind::Parameter, &split.file_path(number, path), what));
        }
    }
    for (name, share) in SplitName::ALL.into_iter().zip(split.shares) {
        if split.parts(name).iter().all(|part| part.samples.is_empty()) && !share.is_zero() {
            let what = format!("the {name} split is empty, though its share is not 0");
            all.push(Violation::new(Kind::Empty, path, what));
        }
    }
    all.extend(counts(split, path));
    all.extend(repeats(split, path));
    all
}

/// Splits whose number of trajectories (per regime), regimes or files differs from the requested one.
fn counts(split: &Split, path: &Path) -> Vec<Violation> {
    let mut all = Vec::new();
    for (name, share) in SplitName::ALL.into_iter().zip(split.shares) {
        let Share::Count(count) = share else { continue };
        let mut wrong = |found: usize, what: &str| {
            if found != count {
                let what = format!("{name} lists {found} {what}, its share is {count}");
                all.push(Violation::new(Kind::Manifest, path, what));
            }
        };
        // How many trajectories of each file, and of some files, are in the split.
        let mut found = vec![0; split.files.len()];
        for part in split.parts(name) {
            found.get_mut(part.file).into_iter().for_each(|count| *count += part.samples.len());
        }
        let sum = |files: &Vec<usize>| files.iter().map(|file| found[*file]).sum::<usize>();
        let regimes = regimes(&split.files);
        match split.by {
            By::Trajectory => regimes.iter().for_each(|files| {
                let parameter = &split.files[files[0]].parameter;
                wrong(sum(files), &format!("trajectories of {parameter}"));
            }),
            By::Parameter => wrong(regimes.iter().filter(|r| sum(r) > 0).count(), "regimes"),
            // Only manifests of records are divided so.
            By::Index | By::Torch => {}
            By::File => wrong(found.iter().filter(|count| **count > 0).count(), "files"),
        }
    }
    all
}

/// Trajectories that are listed twice: in one split, in two splits, or under two paths with the same content.
fn repeats(split: &Split, manifest: &Path) -> Vec<Violation> {
    let mut seen: HashMap<(&str, usize), SplitName> = HashMap::new();
    let mut all = Vec::new();
    let mut more = 0usize;
    for (name, file, sample) in split.entries() {
        let Some(source) = split.files.get(file) else { continue };
        let Some(before) = seen.insert((source.blake3.as_str(), sample), name) else { continue };
        if all.len() == MAX_REPEATS {
            more += 1;
            continue;
        }
        let path = source.path.display();
        let message = format!("{path}: trajectory {sample} is in {before} and again in {name}");
        let violation = Violation::new(Kind::Overlap, &split.file_path(file, manifest), message);
        all.push(Violation { trajectory: Some(sample), ..violation });
    }
    if more > 0 {
        let what = format!("{more} more trajectories are listed twice");
        all.push(Violation::new(Kind::Overlap, manifest, what));
    }
    all
}

/// Differences between a file and its entry in the manifest.
pub(crate) fn against_file(split: &Split, number: usize, field: &Field) -> Vec<Violation> {
    let source = &split.files[number];
    let mut all = Vec::new();
    let mut compare = |kind, what: &str, found: String, stated: String| {
        if found != stated {
            let path = field.path();
            let what = format!("{}: {what} {found}, the manifest says {stated}", path.display());
            all.push(Violation::new(kind, path, what));
        }
    };
    let Shape { trajectories, frames, grid, channels } = field.shape();
    let text = |value: &usize| value.to_string();
    compare(Kind::Mismatch, "trajectories", text(trajectories), text(&source.trajectories));
    compare(Kind::Mismatch, "frames", text(frames), text(&split.frames));
    compare(Kind::Mismatch, "grid", format!("{grid:?}"), format!("{:?}", split.grid));
    compare(Kind::Mismatch, "number of channels", text(channels), text(&split.channels));
    let (found, stated) = (field.channels().join(","), split.channel_names.join(","));
    compare(Kind::Mismatch, "channels", found, stated);
    compare(Kind::Mismatch, "inputs", text(&field.inputs()), text(&split.inputs));
    // Values are printed with all their digits, so equal texts mean equal bits.
    let found = field.parameter().map_or("none".into(), Parameter::to_string);
    compare(Kind::Parameter, "parameter", found, source.parameter.to_string());
    all
}
