//! Kernel launches.

use super::{AXES, Binary, HALF, Space, Sum};
use crate::args;
use crate::dtype::Dtype;
use crate::kernel::divisor::divisor;
use crate::kernel::reduce_rows::{self, Target};
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, source};
use crate::tensor::Tensor;

/// Source of the strided kernels.
pub static SOURCE: Source = source!("strided", ALL_DTYPES);

/// Threads per block.
const THREADS: usize = 256;
/// Number of threads that fill a large GPU; sums are split into chunks until there are this many threads.
const MAX_THREADS: usize = 2048 * 128;
/// Maximum number of chunks per sum.
const MAX_CHUNKS: usize = 1024;
/// Minimum number of units (elements, or vectors with vector access) that a thread sums.
const MIN_UNITS: usize = 32;

impl<const N: usize> Space<N> {
    /// Returns how many adjacent elements along `axis` a thread moves at once: 16 bytes if every view is either
    /// contiguous along the axis and aligned, or broadcast along it; otherwise 1.
    fn vector(&self, dtype: Dtype, axis: usize) -> usize {
        let vector = 16 / dtype.bytes();
        let is_aligned = |i: usize| match self.strides[i][axis] {
            0 => true,
            1 => {
                let mut others = (0..AXES).filter(|other| *other != axis);
                self.starts[i].is_multiple_of(vector)
                    && others.all(|other| self.strides[i][other].is_multiple_of(vector))
            }
            _ => false,
        };
        let whole = self.sizes[axis].is_multiple_of(vector) && (0..N).all(is_aligned);
        if whole { vector } else { 1 }
    }

    /// Returns `args` followed by the sizes, counted in groups of `vector` elements along `axis`, and the strides.
    fn append<'a>(&self, args: &[Arg<'a>], axis: usize, vector: usize) -> Vec<Arg<'a>> {
        let mut sizes = self.sizes;
        sizes[axis] /= vector;
        let strides: Vec<Arg> = self.strides.iter().flatten().map(|n| Arg::from(*n)).collect();
        [args, &sizes.map(divisor).concat(), &strides].concat()
    }
}

/// Returns a grid with one thread per unit.
fn grid(units: usize) -> Grid {
    Grid::new(units.div_ceil(THREADS), THREADS)
}

pub(super) fn copy(space: &Space<2>, x: &Tensor, out: &mut Tensor, scale: f64, add: bool) {
    let element = out.dtype();
    let vector = space.vector(element, AXES - 1);
    let units = space.len() / vector;
    let [x_start, out_start] = space.starts.map(|start| start as i64);
    let args = args![x, out, x_start, out_start, units, vector > 1, scale as f32, add];
    SOURCE.launch(element, "strided_copy", grid(units), &space.append(args, AXES - 1, vector));
}

pub(super) fn binary(
    space: &Space<3>,
    function: Binary,
    [a, b]: [&Tensor; 2],
    out: &mut Tensor,
    add: bool,
) {
    let element = out.dtype();
    let vector = space.vector(element, AXES - 1);
    let units = space.len() / vector;
    let args = args![a, b, out, units, vector > 1, function == Binary::Multiply, add];
    SOURCE.launch(element, "strided_binary", grid(units), &space.append(args, AXES - 1, vector));
}

pub(super) fn sum(
    sum: &Sum,
    x: &Tensor,
    factor: Option<&Tensor>,
    out: &mut Tensor,
    scale: f64,
    add: bool,
) {
    let (element, kept) = (x.dtype(), sum.kept);
    // Short rows are summed by one thread each.
    let by_warp = sum.rows && sum.reduced >= 32;
    let axis = if sum.rows { AXES - 1 } else { HALF - 1 };
    let vector = if sum.rows && !by_warp { 1 } else { sum.space.vector(element, axis) };
    let (reduced, teams, team) =
        if by_warp { (sum.reduced / vector, kept, 32) } else { (sum.reduced, kept / vector, 1) };
    let most = (MAX_THREADS / (teams * team).max(1)).clamp(1, MAX_CHUNKS);
    let chunk = reduced.div_ceil(most).max(MIN_UNITS * team);
    let chunks = reduced.div_ceil(chunk).max(1);
    let mut partials =
        (chunks > 1).then(|| Tensor::empty_on(x.device(), &[chunks, kept], Dtype::F32));
    let sizes = [kept, sum.reduced, chunk, chunks, usize::from(vector > 1)].map(Arg::from);
    let args = [args![x, factor, &mut *out, partials.as_mut()], &sizes, args![scale as f32, add]];
    let kernel = if by_warp { "strided_sum_rows" } else { "strided_sum_columns" };
    let args = sum.space.append(&args.concat(), axis, vector);
    SOURCE.launch(element, kernel, grid(chunks * teams * team), &args);
    if let Some(partials) = partials {
        let partials = partials.reshape(&[1, chunks, 1, kept]);
        let target = Target { out: Arg::from(out), start: 0, add };
        reduce_rows::sum(&partials, element, kept, [Some(target), None]);
    }
}
