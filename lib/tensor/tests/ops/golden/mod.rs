//! Every op and update compared with PyTorch: `tests/golden/tensor.py` of the root computed the values in f64 from
//! inputs in f32, and rounded them to f32.

mod hyper_connection;
mod ops;
mod optimizers;
mod updates;

use safetensors::SafeTensors;
use tensor::{Dtype, Tensor};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tensor.safetensors");
const OPTIMIZERS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/optimizers.safetensors");

/// Largest allowed error, relative to the root mean square of the result.
///
/// In f64 both sides agree except for the order of their sums: 1e-16 for each of at most some hundred terms, times the
/// factor 1e4 by which `rmsnorm` amplifies its tiny rows. A wrong constant or term causes 1e-10 or more. In f32 it is
/// 6e-8 for each rounding, some tens of which occur in attention with its normalization, where PyTorch's own f32 is off
/// by 6e-6.
fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => 1e-11,
        Dtype::F32 => 1e-5,
        other => unreachable!("golden files hold f32 and f64, not {other}"),
    }
}

/// The largest difference beyond the rounding of the file to f32 (half a unit in the last place of each element),
/// relative to the root mean square of the file's values.
fn error(ours: &Tensor, golden: &Tensor) -> f64 {
    let (a, b) = (ours.to_f64(), golden.to_f64());
    let scale = (b.iter().map(|b| b * b).sum::<f64>() / b.len() as f64).sqrt();
    let half_unit = f64::from(f32::EPSILON) / 2.0;
    let excess = a.iter().zip(&b).map(|(a, b)| (a - b).abs() - half_unit * b.abs());
    excess.fold(0.0, f64::max) / scale
}

/// The values in the file.
struct Golden(Vec<u8>);

impl Golden {
    fn read() -> Self {
        Self::open(FILE)
    }

    fn open(file: &str) -> Self {
        Golden(std::fs::read(file).unwrap_or_else(|why| panic!("{file}: {why}")))
    }

    fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.names().into_iter().map(String::from).collect()
    }

    fn tensor(&self, name: &str) -> Tensor {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|why| panic!("{name}: {why}"));
        let (shape, data) = (view.shape(), view.data());
        match view.dtype() {
            safetensors::Dtype::F32 => {
                let values = data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                Tensor::from_slice(&values.collect::<Vec<_>>(), shape)
            }
            safetensors::Dtype::F64 => {
                let values = data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b));
                Tensor::from_slice(&values.collect::<Vec<_>>(), shape)
            }
            safetensors::Dtype::I32 => {
                let values = data.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
                Tensor::from_slice(&values.collect::<Vec<_>>(), shape)
            }
            other => panic!("{name} is {other:?}"),
        }
    }

    /// A constant of an op or update.
    fn number(&self, name: &str) -> f64 {
        self.tensor(name).item()
    }

    /// Element `i` of the first axis of a tensor.
    fn row(&self, name: &str, i: usize, dtype: Dtype) -> Tensor {
        let tensor = self.tensor(name);
        let shape = &tensor.shape()[1..];
        let n = shape.iter().product::<usize>();
        Tensor::from_slice(&tensor.read::<f32>()[i * n..(i + 1) * n], shape).to_dtype(dtype)
    }
}

#[track_caller]
fn agree(what: &str, ours: &Tensor, golden: &Tensor) {
    assert_eq!(ours.shape(), golden.shape(), "{what}");
    let (error, tolerance) = (error(ours, golden), tolerance(ours.dtype()));
    assert!(error < tolerance, "{what} in {:?}: {error:e}, allowed {tolerance:e}", ours.dtype());
}
