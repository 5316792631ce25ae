//! Dividing files into training, validation and test.
//!
//! The unit is the trajectory, never the frame. Every regime (parameter value) is divided in the same
//! proportion, so each split sees every regime. The choice is a function of the seed and the regime's
//! size: regimes of equal size take the same sample numbers, so where files of several parameter values
//! share their initial states, as some of PDEBench's do, no state is in two splits.

use crate::field::{Field, Shape};
use crate::parameter::Parameter;
use crate::split::{FORMAT, Part, Source, Split, SplitName, VERSION, folder_of};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use tensor::random::{Permutation, Philox, Purpose};
use unix::publish::hash_file;
use unix::{Error, Result};

/// How much of every regime goes into a split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// A part of the regime's trajectories, 0 to 1.
    Fraction(f64),
    /// So many trajectories of every regime.
    Count(usize),
}

impl FromStr for Share {
    type Err = String;
    /// `80%`, or a count.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither a percentage (80%) nor a count (200)");
        match text.strip_suffix('%') {
            Some(number) => {
                let percent: f64 = number.trim().parse().map_err(|_| wrong())?;
                let valid = (0.0..=100.0).contains(&percent);
                valid.then_some(Self::Fraction(percent / 100.0)).ok_or_else(wrong)
            }
            None => text.parse().map(Self::Count).map_err(|_| wrong()),
        }
    }
}

/// Divides the trajectories of `files` for a manifest that will be at `manifest`. `shares` are those
/// of train, validation and test.
///
/// Errors: 65 for a file without parameter, of another shape, or with the content of another
/// file; 2 for shares that a regime does not have.
pub fn divide(files: &[PathBuf], shares: [Share; 3], seed: u64, manifest: &Path) -> Result<Split> {
    let mut shape: Option<Shape> = None;
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
        let first = shape.get_or_insert_with(|| field.shape().clone());
        if !first.has_same_trajectories(field.shape()) {
            return Err(Error::data(format!(
                "{}: trajectories of {:?}, the files before have {first:?}",
                path.display(),
                field.shape()
            )));
        }
        sources.push(source);
    }
    let Some(shape) = shape else { return Err(Error::usage("no files to split")) };
    let [train, validation, test] = choose(&sources, shares, seed)?;
    let Shape { frames, grid, channels, .. } = shape;
    Ok(Split {
        format: FORMAT.into(),
        version: VERSION,
        seed,
        frames,
        grid,
        channels,
        files: sources,
        train,
        validation,
        test,
    })
}

fn source(field: &Field, manifest: &Path) -> Result<Source> {
    let path = field.path();
    if field.trajectories() == 0 {
        return Err(Error::data(format!("{}: no trajectories", path.display())));
    }
    let parameter = field.parameter().cloned().ok_or_else(|| {
        Error::data(format!(
            "{}: no parameter: give the file a root attribute `Nu` or `beta`, or PDEBench's name",
            path.display()
        ))
    })?;
    let bytes = std::fs::metadata(path).map_err(|cause| Error::open(path, cause))?.len();
    Ok(Source {
        path: relative(path, folder_of(manifest))?,
        bytes,
        blake3: hash_file(path)?,
        trajectories: field.trajectories(),
        parameter,
    })
}

/// `path` as seen from `folder`, so that both can move together.
fn relative(path: &Path, folder: &Path) -> Result<PathBuf> {
    let absolute = |p: &Path| {
        let p = if p.as_os_str().is_empty() { Path::new(".") } else { p };
        std::fs::canonicalize(p).map_err(|cause| Error::open(p, cause))
    };
    let (path, folder) = (absolute(path)?, absolute(folder)?);
    let common = path.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(common).map(|_| Component::ParentDir);
    Ok(up.chain(path.components().skip(common)).collect())
}

/// Divides every regime: its trajectories in the order of a keyed permutation, cut into three.
fn choose(sources: &[Source], shares: [Share; 3], seed: u64) -> Result<[Vec<Part>; 3]> {
    let mut regimes: Vec<(&Parameter, Vec<(usize, usize)>)> = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        let samples = (0..source.trajectories).map(|sample| (file, sample));
        match regimes.iter_mut().find(|(p, _)| p.is_same_regime(&source.parameter)) {
            Some((_, pool)) => pool.extend(samples),
            None => regimes.push((&source.parameter, samples.collect())),
        }
    }
    let mut chosen: [BTreeMap<usize, Vec<usize>>; 3] = Default::default();
    for (parameter, pool) in regimes {
        let permutation = Permutation::keyed(Philox::new(seed, Purpose::Split), pool.len() as u64);
        let cuts = cuts(shares, pool.len(), parameter)?;
        for (split, range) in
            chosen.iter_mut().zip([0..cuts[0], cuts[0]..cuts[1], cuts[1]..cuts[2]])
        {
            for position in range {
                let (file, sample) = pool[permutation.get(position as u64) as usize];
                split.entry(file).or_default().push(sample);
            }
        }
    }
    Ok(chosen.map(|split| {
        let part = |(file, mut samples): (usize, Vec<usize>)| {
            samples.sort_unstable();
            Part { file, samples }
        };
        split.into_iter().map(part).collect()
    }))
}

/// Ends of the three splits of a regime with `total` trajectories. Fractions are rounded at their
/// ends, so they always add up.
fn cuts(shares: [Share; 3], total: usize, parameter: &Parameter) -> Result<[usize; 3]> {
    let mut counts = [0; 3];
    let (mut fraction, mut rounded) = (0.0, 0);
    for (count, share) in counts.iter_mut().zip(shares) {
        *count = match share {
            Share::Count(count) => count,
            Share::Fraction(part) => {
                fraction += part;
                let end = (fraction * total as f64).round() as usize;
                let count = end - rounded;
                rounded = end;
                count
            }
        };
    }
    let wanted = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if wanted > total {
        return Err(Error::usage(format!(
            "regime {parameter} has {total} trajectories, {wanted} are asked for; lower the shares"
        )));
    }
    for ((count, share), name) in counts.iter().zip(shares).zip(SplitName::ALL) {
        if *count == 0 && matches!(share, Share::Fraction(part) if part > 0.0) {
            return Err(Error::usage(format!(
                "regime {parameter} has {total} trajectories, too few for {name}; give a count"
            )));
        }
    }
    Ok([counts[0], counts[0] + counts[1], wanted])
}
