use super::{Categorical, Choice, SITE};
use crate::args;
use crate::functions::argmax::cuda::grid;
use crate::kernel::{ALL_DTYPES, Source, source};
use crate::tensor::Tensor;

/// Source of the kernel.
pub(crate) static SOURCE: Source = source!("categorical", ALL_DTYPES);

/// Samples a candidate of each row of x.
pub(super) fn choose(by: &Categorical, x: &Tensor, counter: &Tensor, choice: &mut Choice) {
    let Choice { index, log_p } = choice;
    let (columns, hidden) = (by.candidates.columns, by.candidates.hidden());
    let (site, inverse) = (by.site | SITE, (1.0 / by.temperature) as f32);
    let args = args![x, counter, index, log_p, x.width(), columns, hidden, site, inverse];
    SOURCE.launch(x.dtype(), "categorical_rows", grid(x), args);
}
