//! Divides files into training, validation and test splits.
//!
//! The unit is the trajectory, never the frame. Trajectories with the same initial state, or the same input (a
//! coefficient field under several parameters), stay together; see [`GroupBy`]. Every regime (parameter value) is
//! divided in the same proportions, so each split contains every regime; alternatively, whole regimes or whole files
//! are assigned to splits. The result depends only on the seed and the content of the files.

mod units;

pub use crate::split::Share;

use crate::fields::content::group_keys;
use crate::fields::field::{Field, Shape, grid_text};
use crate::fields::split::{By, GroupBy, Source, Split};
use crate::split::folder_of;
use std::fmt;
use std::path::{Path, PathBuf};
use units::Request;
use unix::publish::hash_file;
use unix::relative::relative;
use unix::text::quote;
use unix::{Error, Result};

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
    let mut keys = Vec::new();
    let mut first: Option<Field> = None;
    let mut sources: Vec<Source> = Vec::new();
    for path in files {
        let field = Field::open(path)?;
        let source = source(&field, manifest)?;
        if let Some(same) = sources.iter().find(|s| s.blake3 == source.blake3) {
            return Err(Error::data(format!(
                "{} has the same content as {}; name each file once",
                path.display(),
                same.path.display()
            )));
        }
        let here = Kind::of(&field);
        if let Some(before) = first.as_ref().map(Kind::of).filter(|before| *before != here) {
            return Err(Error::data(format!(
                "{}: its trajectories have {here}, those of the previous files {before}",
                path.display(),
            )));
        }
        if let Some(what) = first.as_ref().and_then(|first| first.coordinate_difference(&field)) {
            return Err(Error::data(format!(
                "{}: {what}; make a manifest for each and mix these in the configuration",
                path.display()
            )));
        }
        sources.push(source);
        keys.push(if by == By::Trajectory { group_keys(&field, group_by)? } else { Vec::new() });
        first.get_or_insert(field);
    }
    let Some(kind) = first.as_ref().map(Kind::of) else {
        return Err(Error::usage("no files to split"));
    };
    let in_common = match group_by {
        GroupBy::State if kind.frames == 1 && kind.inputs > 0 => "one input",
        GroupBy::State => "one initial state",
        GroupBy::Content => "all their values",
    };
    let request = Request { shares, seed, files, group_by, in_common };
    let [train, validation, test] = match by {
        By::Trajectory => request.trajectories(&sources, &keys)?,
        By::Parameter => request.regimes(&sources)?,
        By::File => request.files(&sources)?,
        By::Index | By::Torch => {
            return Err(Error::usage(format!(
                "--by {by}: only records of arrays and texts are divided in an order",
            )));
        }
    };
    let Kind { frames, grid, channels: channel_names, inputs } = kind;
    Ok(Split {
        seed,
        by,
        group_by,
        shares,
        frames,
        grid,
        channels: channel_names.len(),
        channel_names,
        inputs,
        files: sources,
        train,
        validation,
        test,
    })
}

/// `5 frames on 16 points, channels u, 0 of them inputs`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, grid, channels, inputs } = self;
        let (grid, channels) = (grid_text(grid), quote(&channels.join(",")));
        write!(f, "{frames} frames on {grid} points, channels {channels}, {inputs} of them inputs")
    }
}

/// The properties that all files of a data set must share.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    frames: usize,
    grid: Vec<usize>,
    channels: Vec<String>,
    inputs: usize,
}

impl Kind {
    fn of(field: &Field) -> Self {
        let Shape { frames, grid, .. } = field.shape().clone();
        Self { frames, grid, channels: field.channels().to_vec(), inputs: field.inputs() }
    }
}

fn source(field: &Field, manifest: &Path) -> Result<Source> {
    let path = field.path();
    let wrong = |what: String| Err(Error::data(format!("{}: {what}", path.display())));
    field.require_fit()?;
    let ending = path.extension().unwrap_or_default();
    if ["csv", "zarr"].iter().any(|other| ending.eq_ignore_ascii_case(other)) {
        return wrong(
            "training does not read this format; convert it with `ds-prep import`".into(),
        );
    }
    let parameter = field.only_regime()?;
    if parameter.iter().any(|(_, value)| !value.is_finite()) {
        return wrong(format!(
            "parameter {parameter} is not finite; correct it with `ds-prep import --parameter NAME=V --override`"
        ));
    }
    let bytes = std::fs::metadata(path).map_err(|cause| Error::open(path, cause))?.len();
    Ok(Source {
        path: relative(path, folder_of(manifest))?,
        bytes,
        blake3: hash_file(path)?,
        trajectories: field.trajectories(),
        parameter,
    })
}
