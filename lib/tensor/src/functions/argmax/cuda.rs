use super::{Candidates, Choice};
use crate::args;
use crate::kernel::{ALL_DTYPES, Grid, Source, source};
use crate::tensor::Tensor;

/// Source of the kernel.
pub(crate) static SOURCE: Source = source!("argmax", ALL_DTYPES);

/// Returns a grid with one block per row.
pub(crate) fn grid(x: &Tensor) -> Grid {
    let threads = match x.width() {
        0..=1024 => 32,
        1025..=8192 => 128,
        _ => 512,
    };
    Grid::new(x.rows(), threads)
}

/// Chooses the largest candidate of each row of x.
pub(crate) fn choose(candidates: &Candidates, x: &Tensor, choice: &mut Choice) {
    let Choice { index, log_p } = choice;
    let args = args![x, index, log_p, x.width(), candidates.columns, candidates.hidden()];
    SOURCE.launch(x.dtype(), "argmax_rows", grid(x), args);
}
