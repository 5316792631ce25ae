//! What functions that choose a column of each row share.

use super::Function;
use crate::dtype::{Dtype, Float};
use crate::simd::{max, sum};
use crate::tensor::Tensor;
use unix::Result;

/// The columns of logits [R, V] that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Only the first `columns` columns may be chosen; the others pad the vocabulary.
    pub columns: usize,
    /// A column that must not be chosen either, e.g. that of [MASK].
    pub hidden: Option<i32>,
}

/// The chosen column of each row.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its index, i32 [R].
    pub index: Tensor,
    /// Logarithm of its probability under the softmax over the candidates, [R]: f64 for logits in f64, otherwise f32.
    pub log_p: Tensor,
}

impl Candidates {
    /// Creates candidates among the first `columns` columns.
    pub fn new(columns: usize) -> Self {
        Self { columns, hidden: None }
    }

    /// Hides a column.
    #[must_use]
    pub fn without(self, hidden: i32) -> Self {
        Self { hidden: Some(hidden), ..self }
    }

    /// The hidden column, if it is one of the first; otherwise -1.
    pub(super) fn hidden(&self) -> i32 {
        let is_first = |i: &i32| usize::try_from(*i).is_ok_and(|i| i < self.columns);
        self.hidden.filter(is_first).unwrap_or(-1)
    }

    /// Checks that x is [R, V] and has candidates. Errors: a bug.
    pub(super) fn check(&self, function: &dyn Function, inputs: &[&Tensor]) -> Result<()> {
        let found = self.columns - usize::from(self.hidden() >= 0 && self.columns > 0);
        match inputs.first().map(|x| x.shape()) {
            Some([_, v]) if self.columns <= *v && found > 0 => Ok(()),
            _ => {
                let why = format!("takes logits [R, V] with candidates, not {self:?}");
                Err(function.misuse(inputs, &why))
            }
        }
    }

    /// The candidates of a row before and after the hidden column, with the index of the first of each.
    #[inline(always)]
    pub(super) fn of<'a, T>(&self, row: &'a [T]) -> [(usize, &'a [T]); 2] {
        match usize::try_from(self.hidden()) {
            Ok(hidden) => [(0, &row[..hidden]), (hidden + 1, &row[hidden + 1..self.columns])],
            Err(_) => [(0, &row[..self.columns]), (self.columns, &[])],
        }
    }
}

impl Choice {
    /// Creates the choice for logits x, uninitialized.
    pub(super) fn empty(x: &Tensor) -> Self {
        let log_p = if x.dtype() == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let empty = |dtype| Tensor::empty_on(x.device(), &x.shape()[..1], dtype);
        Self { index: empty(Dtype::I32), log_p: empty(log_p) }
    }

    pub(super) fn outputs(self) -> Vec<Tensor> {
        vec![self.index, self.log_p]
    }
}

/// Maximum m and log Σ exp(x - m) of the candidates of a row.
#[derive(Clone, Copy)]
pub(super) struct LogSum<T> {
    pub top: T,
    pub log: T,
}

/// Returns the sums of a row; the logarithm is NaN if a candidate is NaN or +∞, or all are -∞.
#[inline(always)]
pub(super) fn log_sum<T: Float>(parts: [(usize, &[T]); 2]) -> LogSum<T> {
    let mut top = T::of(f64::NEG_INFINITY);
    for (_, x) in parts.iter().filter(|(_, x)| !x.is_empty()) {
        // A NaN that is ignored here makes the sum NaN.
        top = max(x).maximum(top);
    }
    // A loop, because `map` would not be compiled into the vectorized code.
    let mut total = T::ZERO;
    for (_, x) in parts.iter().filter(|(_, x)| !x.is_empty()) {
        total += sum([x], |[x]| (x - top).exp());
    }
    LogSum { top, log: T::of(total.f64().ln()) }
}

/// Returns the first candidate that is NaN or, if there is none, the first that equals `top`.
#[inline(always)]
pub(super) fn first<T: Float>(parts: [(usize, &[T]); 2], top: T, has_nan: bool) -> usize {
    let find = |is: &dyn Fn(T) -> bool| {
        let of = |(first, x): (usize, &[T])| Some(first + x.iter().position(|x| is(*x))?);
        parts.into_iter().find_map(of)
    };
    let is_nan = |x: T| x.f64().is_nan();
    let nan = if has_nan { find(&is_nan) } else { None };
    nan.or_else(|| find(&|x| x == top)).unwrap_or(0)
}
