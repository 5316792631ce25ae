//! The files that an import writes, and the trajectories in each.

use super::plan::{Format, ImportOptions};
use crate::fields::field::{Field, Regime, grouped};
use crate::fields::parameter::Parameter;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensor::Dtype;
use unix::{Error, Result};

/// An output file, and the source trajectories from which it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The file to read.
    pub source: PathBuf,
    /// The file to write.
    pub path: PathBuf,
    /// Indices of the trajectories in the source, ascending.
    pub samples: Vec<usize>,
    /// Parameters shared by these trajectories, if known.
    pub parameter: Option<Parameter>,
}

/// The outcome of [`import`](super::import).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    /// The file already existed.
    Kept,
    /// The file was written.
    New,
}

/// Maximum shard size in bytes, used if the number of trajectories per shard is not given.
const SHARD: usize = 1 << 30;

/// Lists the files in `folder` to which `sources` are converted: one per regime, in shards of at most `shard`
/// trajectories. By default, only safetensors files are sharded, at 1 GiB.
///
/// Errors: see [`Field::open`]; 2 when two files would have the same name, or the format does not support the dtype.
pub fn targets(
    plan: &ImportOptions,
    sources: &[PathBuf],
    folder: &Path,
    format: Format,
    shard: Option<usize>,
) -> Result<Vec<Target>> {
    if (format, plan.dtype) == (Format::Hdf5, Some(Dtype::Bf16)) {
        return Err(Error::usage(
            "HDF5 does not support bf16; choose --format safetensors, or f16",
        ));
    }
    let mut made: HashMap<PathBuf, &PathBuf> = HashMap::new();
    let mut all = Vec::new();
    for source in sources {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let bytes = 4 * Field::open_as(source, &plan.reading)?.shape().trajectory_len();
        for (suffix, Regime { parameter, samples }) in regimes(plan, source)? {
            let most = match format {
                Format::Safetensors => SHARD / bytes.max(1),
                Format::Hdf5 => samples.len(),
            };
            let size = shard.unwrap_or(most).max(1);
            // A source without trajectories is listed too; its import fails with an explanation.
            for number in 0..samples.len().div_ceil(size).max(1) {
                let part =
                    if samples.len() > size { format!("-{number:05}") } else { String::new() };
                let path = folder.join(format!("{stem}{suffix}{part}.{format}"));
                if let Some(other) = made.insert(path.clone(), source) {
                    return Err(Error::usage(format!(
                        "{} and {} would both become {}; import them into two folders",
                        other.display(),
                        source.display(),
                        path.display()
                    )));
                }
                let samples = samples.iter().skip(number * size).take(size).copied().collect();
                let (source, parameter) = (source.clone(), parameter.clone());
                all.push(Target { source, path, samples, parameter });
            }
        }
    }
    Ok(all)
}

/// Returns the regimes of the selected trajectories, each with a file name suffix in PDEBench's style (`_nu0.1`) of the
/// parameters that differ between regimes.
fn regimes(plan: &ImportOptions, source: &Path) -> Result<Vec<(String, Regime)>> {
    let field = Field::open_as(source, &plan.reading)?;
    let count = plan.samples.unwrap_or(usize::MAX).min(field.trajectories());
    let mut regimes = field.regimes()?;
    if let Some(given) = &plan.parameter {
        let contradiction =
            if plan.override_parameter { None } else { field.contradiction(given)? };
        if let Some(what) = contradiction {
            return Err(Error::usage(format!(
                "{}: --parameter {given} contradicts {what}; correct it, or give --override",
                source.display()
            )));
        }
        let with_given = |Regime { parameter, samples }: Regime| {
            let parameter = given.with(parameter.as_ref());
            samples.into_iter().map(move |sample| (sample, Some(parameter.clone())))
        };
        let mut all: Vec<_> = regimes.into_iter().flat_map(with_given).collect();
        all.sort_by_key(|(sample, _)| *sample);
        regimes = grouped(all.into_iter());
        if regimes.is_empty() {
            regimes.push(Regime { parameter: Some(given.clone()), samples: Vec::new() });
        }
    }
    regimes.iter_mut().for_each(|regime| regime.samples.retain(|sample| *sample < count));
    if count > 0 {
        regimes.retain(|regime| !regime.samples.is_empty());
    }
    let value = |regime: &Regime, name: &str| Some(regime.parameter.as_ref()?.get(name)?.to_bits());
    let differs =
        |name: &str| regimes.iter().any(|regime| value(regime, name) != value(&regimes[0], name));
    let suffix = |regime: &Regime| {
        let all = regime.parameter.iter().flat_map(Parameter::iter);
        all.filter(|(name, _)| differs(name))
            .map(|(name, value)| format!("_{name}{value:?}"))
            .collect()
    };
    let suffixes: Vec<String> = regimes.iter().map(suffix).collect();
    Ok(suffixes.into_iter().zip(regimes).collect())
}

/// Groups ascending numbers into contiguous ranges.
pub(super) fn runs(numbers: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}
