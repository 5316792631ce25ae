//! Statistics of the tensors of a checkpoint.

use std::path::Path;

use serde::Serialize;
use unix::Result;

use super::manifest::{FileEntry, TensorEntry};
use super::problem::Problem;
use super::tensor_file::TensorFile;

/// Dtype, shape and statistics of a tensor. Mean, standard deviation, bounds and norm are over the finite elements;
/// None if there are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Stem of the file that contains the tensor.
    pub file: String,
    /// Name of the tensor.
    pub tensor: String,
    /// Dtype in safetensors notation, e.g. `F32`.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Mean of the finite elements.
    pub mean: Option<f64>,
    /// Population standard deviation of the finite elements.
    pub std: Option<f64>,
    /// Smallest finite element.
    pub min: Option<f64>,
    /// Largest finite element.
    pub max: Option<f64>,
    /// Euclidean norm of the finite elements.
    pub norm: Option<f64>,
    /// Number of NaN elements.
    pub nan: u64,
    /// Number of infinite elements.
    pub infinite: u64,
}

/// Computes statistics of the tensors in a file whose names `wanted` accepts, in manifest order, and passes them to
/// `tell` one by one, with only one tensor in memory at a time. Hashes are not verified.
///
/// Errors: 65 or 66 when the file cannot be read; errors of `tell` are returned.
pub fn statistics(
    checkpoint: &Path,
    entry: &FileEntry,
    wanted: impl Fn(&str) -> bool,
    mut tell: impl FnMut(Statistics) -> Result<()>,
) -> Result<()> {
    let error_of = |problem: Problem| problem.error(checkpoint);
    let file = TensorFile::open(checkpoint, entry).map_err(error_of)?;
    for tensor in entry.tensors.iter().filter(|tensor| wanted(&tensor.name)) {
        let values = file.tensor(&tensor.name, |_| {}).map_err(error_of)?.to_f64();
        tell(of(&values, entry.stem(), tensor))?;
    }
    Ok(())
}

fn of(values: &[f64], file: &str, tensor: &TensorEntry) -> Statistics {
    let nan = values.iter().filter(|x| x.is_nan()).count() as u64;
    let infinite = values.iter().filter(|x| x.is_infinite()).count() as u64;
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let count = finite().count();
    let known = |value: f64| (count > 0).then_some(value);
    let mean = finite().sum::<f64>() / count as f64;
    let squares: f64 = finite().map(|x| (x - mean) * (x - mean)).sum();
    Statistics {
        file: file.into(),
        tensor: tensor.name.clone(),
        dtype: tensor.dtype.clone(),
        shape: tensor.shape.clone(),
        mean: known(mean),
        std: known((squares / count as f64).sqrt()),
        min: known(finite().fold(f64::INFINITY, f64::min)),
        max: known(finite().fold(f64::NEG_INFINITY, f64::max)),
        norm: known(finite().map(|x| x * x).sum::<f64>().sqrt()),
        nan,
        infinite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[f64]) -> Statistics {
        let (start, end) = (0, 8 * values.len() as u64);
        let (dtype, shape, blake3) = ("F64".into(), vec![values.len()], String::new());
        of(values, "model", &TensorEntry { name: "a".into(), dtype, shape, start, end, blake3 })
    }

    #[test]
    fn numbers_of_small_tensors() {
        let found = numbers(&[3.0, f64::NAN, -1.0, f64::INFINITY, 4.0]);
        assert_eq!((found.nan, found.infinite), (1, 1));
        assert_eq!((found.mean, found.min, found.max), (Some(2.0), Some(-1.0), Some(4.0)));
        assert!((found.std.unwrap() - (14.0_f64 / 3.0).sqrt()).abs() < 1e-15);
        assert!((found.norm.unwrap() - 26.0_f64.sqrt()).abs() < 1e-15);
        let empty = numbers(&[]);
        assert_eq!((empty.mean, empty.norm, empty.nan), (None, None, 0));
    }
}
