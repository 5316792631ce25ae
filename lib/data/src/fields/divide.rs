//! Divides files into training, validation and test splits.
//!
//! The unit is the trajectory, never the frame. Trajectories with the same initial state, or the same input (a
//! coefficient field under several parameters), stay together; see [`GroupBy`]. Every regime (parameter value) is
//! divided in the same proportions, so each split contains every regime; alternatively, whole regimes or whole files
//! are assigned to splits. The result depends only on the seed and the content of the files.

pub use crate::split::Share;

use crate::fields::split::{By, GroupBy, Split};
use crate::split::Request;
use std::path::{Path, PathBuf};
use unix::Result;

/// Divides `files` trajectory by trajectory for a manifest that will be saved at `manifest`. `shares` are those of
/// train, validation and test. Errors: see [`divide_by`].
pub fn divide(files: &[PathBuf], shares: [Share; 3], seed: u64, manifest: &Path) -> Result<Split> {
    divide_by(By::Trajectory, GroupBy::State, files, shares, seed, manifest)
}

/// Divides `files` in units of `by`. Shares of regimes or files are fractions or numbers of these. `group_by` only
/// applies to trajectories.
///
/// Errors: 65 for a file with no parameter or several, with another shape, or with the same content as another file,
/// and when trajectories that stay together leave a split empty; 2 for shares that a regime cannot provide.
pub fn divide_by(
    by: By,
    group_by: GroupBy,
    files: &[PathBuf],
    shares: [Share; 3],
    seed: u64,
    manifest: &Path,
) -> Result<Split> {
    let group_by = Some(group_by);
    let request = Request { by, group_by, shares, fixed: &[], seed, near: None };
    crate::split::divide(&request, files, manifest)
}
