//! Functions without a gradient, for decoders and for losses that choose: one folder each, organised like an op
//! ([`crate::op`]).
//!
//! They take and return tensors on any device. From a loss, pass [`Var::value`](crate::Var::value) and wrap results
//! with [`crate::constant`]: nothing flows back through a choice. On a device they only launch kernels, so they can be
//! part of a captured graph.

pub mod argmax;
pub mod categorical;
mod choice;
pub mod gather;
pub mod top_k;

pub use choice::{Candidates, Choice};

use crate::op::Draw;
use crate::tensor::Tensor;
use crate::{Device, Dtype, kernel};
use unix::{Error, Result};

/// A function of tensors without a gradient.
pub trait Function: Send + Sync {
    /// Name used in errors and tables: the name of the function's folder, i.e. the module of its type.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>().rsplit("::").nth(1).unwrap_or("function")
    }

    /// Computes all outputs on the device of the inputs. Errors: a bug if the inputs do not fit.
    fn apply(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>>;

    /// Returns the bug of calling this function with these inputs.
    fn misuse(&self, inputs: &[&Tensor], why: &str) -> Error {
        let shapes: Vec<&[usize]> = inputs.iter().map(|x| x.shape()).collect();
        Error::bug(format!("{} of {shapes:?}: {why}", self.name()))
    }

    /// Checks dtypes and devices: input 0 holds floats that its device computes with, the others i32. Errors: a bug.
    fn check(&self, inputs: &[&Tensor]) -> Result<()> {
        let Some((x, rest)) = inputs.split_first() else { return Ok(()) };
        let is_known = match x.device() {
            Device::Cpu => matches!(x.dtype(), Dtype::F32 | Dtype::F64),
            _ => kernel::ALL_DTYPES.contains(&x.dtype()),
        };
        if !is_known {
            let why = format!("input 0 is {} on {}", x.dtype(), x.device());
            return Err(self.misuse(inputs, &why));
        }
        match rest.iter().find(|i| i.dtype() != Dtype::I32 || i.device() != x.device()) {
            None => Ok(()),
            Some(other) => {
                let (dtype, device) = (other.dtype(), other.device());
                let why = format!("an input is {dtype} on {device}, must be i32 on {}", x.device());
                Err(self.misuse(inputs, &why))
            }
        }
    }
}

/// One example use of a function, for the comparison of dtypes and devices.
pub struct Case {
    /// The function with its parameters.
    pub function: Box<dyn Function>,
    /// Shape and values of each input.
    pub inputs: Vec<(Vec<usize>, Draw)>,
}

impl Case {
    /// Creates a case with logits \[rows, width\], normally distributed.
    fn rows(function: impl Function + 'static, rows: usize, width: usize) -> Self {
        Self { function: Box::new(function), inputs: vec![(vec![rows, width], Draw::Normal)] }
    }

    /// Adds an input of integers in 0..n.
    fn integers(mut self, shape: &[usize], n: u64) -> Self {
        self.inputs.push((shape.to_vec(), Draw::RandInt(n)));
        self
    }
}

/// Name of a function, and what returns its test cases.
pub type Entry = (&'static str, fn() -> Vec<Case>);

/// All functions with their test cases.
pub const ALL: &[Entry] = &[
    ("argmax", argmax::cases),
    ("categorical", categorical::cases),
    ("gather", gather::cases),
    ("top_k", top_k::cases),
];
