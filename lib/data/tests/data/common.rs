//! Small data sets for the tests.

use data::fields::generate::{Equation, Generation};
use data::fields::split::{By, GroupBy, Split};
use data::split::{DivideRequest, Share};
use std::path::{Path, PathBuf};
pub use test_support::seed as fresh_seed;
use unix::Result;

/// Burgers files with 20 trajectories, 5 frames and 16 points, one for each viscosity.
pub fn files(folder: &Path, viscosities: &[f64], seed: u64) -> Vec<PathBuf> {
    let make = |&parameter: &f64| {
        let all = Generation::new(Equation::Burgers, parameter, 20);
        let all = Generation { seed, grid: 16, frames: 5, end: 0.2, ..all };
        let path = folder.join(all.file_name());
        all.write(&path, || Ok(())).unwrap();
        path
    };
    viscosities.iter().map(make).collect()
}

/// Divides trajectories.
pub fn divide(files: &[PathBuf], shares: [Share; 3], seed: u64, manifest: &Path) -> Result<Split> {
    divide_by(By::Trajectory, GroupBy::State, files, shares, seed, manifest)
}

/// Divides files in units of `by`.
pub fn divide_by(
    by: By,
    group_by: GroupBy,
    files: &[PathBuf],
    shares: [Share; 3],
    seed: u64,
    manifest: &Path,
) -> Result<Split> {
    let group_by = Some(group_by);
    let request = DivideRequest { by, group_by, shares, fixed: &[], seed, near: None };
    data::split::divide(&request, files, manifest)
}

/// A manifest for such files, with 60 %, 20 % and 20 % of each.
pub fn manifest(folder: &Path, viscosities: &[f64], seed: u64) -> (PathBuf, Split) {
    let path = folder.join("split.json");
    let shares = [Share::Fraction(0.6), Share::Fraction(0.2), Share::Fraction(0.2)];
    let split = divide(&files(folder, viscosities, seed), shares, seed, &path).unwrap();
    split.save(&path).unwrap();
    (path, split)
}
