use super::{Candidates, Choice};
use crate::dtype::Float;
use crate::for_rows;
use crate::functions::choice::{first, log_sum};
use crate::tensor::Tensor;

/// Chooses the largest candidate of each row of x.
pub(crate) fn choose<T: Float>(candidates: &Candidates, x: &Tensor, choice: &mut Choice) {
    let (width, x) = (x.width(), x.read::<T>());
    let out = ((choice.index.write::<i32>(), 1), (choice.log_p.write::<T>(), 1));
    for_rows!(out, width, |row, (index, log_p)| {
        let parts = candidates.of(&x[row * width..][..width]);
        let sums = log_sum(parts);
        index[0] = first(parts, sums.top, sums.log.f64().is_nan()) as i32;
        log_p[0] = -sums.log;
    });
}
