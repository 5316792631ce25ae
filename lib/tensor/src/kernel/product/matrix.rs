//! Operands of matrix products.

use crate::args;
use crate::kernel::{ALL_DTYPES, Arg, Grid, Source, source};
use crate::ops::strided::{self, Space, View, checked};
use crate::tensor::Tensor;

/// Kernel that copies a matrix so that every stored line is 16-byte aligned.
pub static SOURCE_LINES: Source = source!("product_lines", ALL_DTYPES);
/// Threads per block.
const THREADS: usize = 256;

/// An operand: a strided batch of matrices in a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(super) tensor: &'a Tensor,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Whether the transpose, [columns, rows], is stored.
    pub(super) is_transposed: bool,
    /// Stride in elements between stored lines.
    pub(super) stride: usize,
    /// Stride in elements between the products of a batch.
    pub(super) batch: usize,
    /// Stride in elements between the terms of a sum of products.
    pub(super) term: usize,
}

impl<'a> Matrix<'a> {
    /// Creates a row-major operand from the first `rows` × `columns` elements of a tensor.
    pub(crate) fn new(tensor: &'a Tensor, rows: usize, columns: usize) -> Self {
        let is_transposed = false;
        Self { tensor, rows, columns, is_transposed, stride: columns, batch: 0, term: 0 }
    }

    /// Returns the transposed matrix, which shares memory.
    pub(crate) fn transposed(self) -> Self {
        let is_transposed = !self.is_transposed;
        Self { rows: self.columns, columns: self.rows, is_transposed, ..self }
    }

    /// Sets the stride in elements between the matrices of a batch.
    pub(crate) fn batch_stride(self, elements: usize) -> Self {
        Self { batch: elements, ..self }
    }

    /// Sets the stride in elements between the matrices of a sum.
    pub(crate) fn term_stride(self, elements: usize) -> Self {
        Self { term: elements, ..self }
    }

    /// Number and length of the stored lines.
    fn lines(&self) -> (usize, usize) {
        if self.is_transposed { (self.columns, self.rows) } else { (self.rows, self.columns) }
    }

    /// Whether every line is aligned to 16 bytes.
    pub(super) fn is_aligned(&self, batch: usize, terms: usize) -> bool {
        let width = 16 / self.tensor.dtype().bytes();
        let fits = |count: usize, stride: usize| count <= 1 || stride.is_multiple_of(width);
        fits(self.lines().0, self.stride) && fits(batch, self.batch) && fits(terms, self.term)
    }

    /// Numbers of stored matrices, terms and lines, each 1 if its stride is 0, and the length of a line.
    pub(super) fn stored(&self, batch: usize, terms: usize) -> [usize; 4] {
        let (lines, length) = self.lines();
        let count = |count: usize, stride: usize| if stride == 0 { count.min(1) } else { count };
        [count(batch, self.batch), count(terms, self.term), lines, length]
    }

    /// Copies this single matrix for [`Self::within`] if its lines are not aligned to 16 bytes.
    pub(crate) fn with_aligned_lines(&self) -> Option<Tensor> {
        (!self.is_aligned(1, 1)).then(|| self.copied(1, 1))
    }

    /// Returns a copy [matrices, terms, lines, pitch] in which every line is aligned to 16 bytes. The padding between
    /// lines is uninitialized.
    pub(super) fn copied(&self, batch: usize, terms: usize) -> Tensor {
        let sizes @ [batch, terms, lines, length] = self.stored(batch, terms);
        let dtype = self.tensor.dtype();
        let pitch = length.next_multiple_of(16 / dtype.bytes());
        let mut copy = Tensor::empty_on(self.tensor.device(), &[batch, terms, lines, pitch], dtype);
        let across = pitch.div_ceil(THREADS * 16 / dtype.bytes());
        if batch * terms == 1 {
            let pairs = length.is_multiple_of(2) && self.step().is_multiple_of(2);
            let sizes = args![across, length, pitch, self.step() as i64, pairs];
            let grid = Grid::new(lines * across, THREADS);
            let tensors = args![self.tensor, &mut copy];
            SOURCE_LINES.launch(dtype, "product_lines", grid, &[tensors, sizes].concat());
            return copy;
        }
        let from = View::strided(&[self.batch, self.term, self.stride, 1]);
        let space = checked(Space::new(&sizes, [from, View::contiguous(copy.shape())]));
        strided::copy(&space, self.tensor, &mut copy, 1.0, false);
        copy
    }

    /// Returns the same matrices as an operand in `copy`.
    pub(crate) fn within<'b>(&self, copy: &'b Tensor) -> Matrix<'b> {
        let [batch, terms, lines, stride] = *copy.shape() else {
            unreachable!("a copy of shape {:?}", copy.shape())
        };
        let step = |count: usize, elements: usize| if count == 1 { 0 } else { elements };
        let batch = step(batch, terms * lines * stride);
        let term = step(terms, lines * stride);
        let Self { rows, columns, is_transposed, .. } = *self;
        Matrix { tensor: copy, rows, columns, is_transposed, stride, batch, term }
    }

    /// The line stride passed to a kernel: 0 for a single line, so that addresses computed with it are as well aligned
    /// as the line itself.
    pub(super) fn step(&self) -> usize {
        if self.lines().0 <= 1 { 0 } else { self.stride }
    }

    /// Returns a tensor map with boxes of `lines` lines of 64 elements; the batch and term dimensions have extent 1 if
    /// their stride is 0.
    pub(super) fn tensor_map(&self, batch: usize, terms: usize, lines: usize) -> Arg<'a> {
        let [batch, terms, count, length] = self.stored(batch, terms);
        // The stride of a dimension of extent 1 has no effect but must still be valid.
        let pitch = length.next_multiple_of(16 / self.tensor.dtype().bytes());
        let line = if count == 1 { pitch } else { self.stride };
        let term = if terms == 1 { line * count } else { self.term };
        let strides = [line, term, if batch == 1 { term * terms } else { self.batch }];
        Arg::tensor_map(self.tensor, [length, count, terms, batch], strides, [64, lines, 1, 1])
    }

    /// Panics if the operand does not lie inside its tensor.
    /// If the operand does not lie inside its tensor.
    pub(super) fn check(&self, batch: usize, terms: usize) {
        let (lines, length) = self.lines();
        if [lines, length, batch, terms].contains(&0) {
            return;
        }
        let last = (lines - 1) * self.stride + (batch - 1) * self.batch + (terms - 1) * self.term;
        assert!(
            last + length <= self.tensor.len(),
            "{lines} lines of {length} with strides {}, {}, {} do not fit into {:?}",
            self.stride,
            self.batch,
            self.term,
            self.tensor.shape(),
        );
    }
}
