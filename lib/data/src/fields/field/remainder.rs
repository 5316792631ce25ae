//! Contents of a file other than its field: arrays and groups that are not read, and those that cannot be read.

use super::hdf5_file::ONLY_DIMENSION;
use super::layout::LayoutDataset;
use super::recognise::VARIABLES;
use super::source::Source;
use crate::fields::parameter::is_known;
use std::collections::HashSet;

/// Names at the root that have a meaning in some layout.
const KNOWN: [&str; 9] = [
    "tensor",
    "velocity",
    "particles",
    "force",
    "t",
    "x-coordinate",
    "y-coordinate",
    "z-coordinate",
    "t-coordinate",
];

/// Remaining contents of the root of a file.
#[derive(Debug, Default)]
pub(super) struct Remainder {
    /// Empty arrays, trajectories without values, and names of a layout that are not arrays.
    pub unusable: Vec<String>,
    /// Arrays and groups that have no meaning in any layout.
    pub unused: Vec<String>,
}

impl Remainder {
    /// Collects the remainder of a file whose field is in `parts` or, if there are any, in `groups`.
    pub fn of(file: &dyn Source, parts: &[LayoutDataset], groups: &[String]) -> Self {
        let mut remainder = Self::default();
        let read: HashSet<&str> = match groups {
            [] => parts.iter().map(|part| part.name.as_str()).collect(),
            groups => groups.iter().map(String::as_str).collect(),
        };
        for name in file.names() {
            if read.contains(name.as_str()) {
                continue;
            }
            let known = KNOWN.contains(&name.as_str()) || VARIABLES.contains(&name.as_str());
            match file.shape(&name) {
                Some(dims) if dims.contains(&0) => {
                    remainder.unusable.push(format!("`{name}` {dims:?} is empty"));
                }
                Some(dims) if !known && !is_known(&name) => {
                    remainder.unused.push(format!("`{name}` {dims:?}"));
                }
                Some(_) => {}
                None => {
                    let kind = file.kind(&name);
                    let has_grid = || file.shape(&format!("{name}/grid/x")).is_some();
                    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
                    if kind == ONLY_DIMENSION {
                        continue;
                    }
                    if !groups.is_empty() && (is_number || has_grid()) {
                        remainder.unusable.push(format!("`{name}` has no array `data` ({kind})"));
                    } else if known || kind.contains("array") || kind.contains("folder") {
                        remainder.unusable.push(format!("`{name}` is not an array ({kind})"));
                    } else {
                        remainder.unused.push(format!("`{name}` ({kind})"));
                    }
                }
            }
        }
        remainder
    }
}
