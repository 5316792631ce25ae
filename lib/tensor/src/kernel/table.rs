//! Launches over many tensors at once: an update of all parameters takes one launch instead of hundreds.
//!
//! A kernel receives a table with one entry per group of tensors (a parameter, its gradient, its moments), and for each
//! block the piece of an entry that the block handles (`include/table.cuh`). A table stays on the device
//! ([`super::constant`]) and is uploaded again only if its content has changed: during training, parameter addresses do
//! not change and, thanks to the caching allocator, neither do gradient addresses.

use super::{Arg, Grid, Source};
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;

/// Elements per piece, and threads per block; must match `table.cuh`.
pub(crate) const PIECE: usize = 4096;
pub(crate) const THREADS: usize = 256;

/// A group of tensors of equal length.
pub(crate) struct Entry<const N: usize> {
    /// Device addresses of the tensors.
    pub(crate) addresses: [u64; N],
    /// Number of elements of each tensor.
    pub(crate) len: usize,
    /// Additional scalars.
    pub(crate) numbers: [f32; 2],
}

impl<const N: usize> Entry<N> {
    /// Creates an entry without additional scalars.
    pub(crate) fn new(len: usize, addresses: [u64; N]) -> Self {
        Self { addresses, len, numbers: [0.0; 2] }
    }
}

/// The first two arguments of a launch (`table.cuh`).
pub(crate) struct Table {
    pieces: Tensor,
    pub(crate) entries: Tensor,
    /// Number of pieces, which is the number of blocks.
    pub(crate) blocks: usize,
}

impl Table {
    /// Builds the table of `entries` on `device`.
    pub(crate) fn new<const N: usize>(
        device: Device,
        entries: impl IntoIterator<Item = Entry<N>>,
    ) -> Self {
        let (mut words, mut pieces) = (Vec::new(), Vec::new());
        for (i, entry) in entries.into_iter().filter(|entry| entry.len > 0).enumerate() {
            words.extend(entry.addresses);
            let [low, high] = entry.numbers.map(|number| u64::from(number.to_bits()));
            words.extend([entry.len as u64, high << 32 | low]);
            pieces.extend((0..entry.len.div_ceil(PIECE)).map(|piece| (i << 32 | piece) as u64));
        }
        let blocks = pieces.len();
        Self { pieces: upload(device, pieces), entries: upload(device, words), blocks }
    }

    /// Launches one block per piece; `args` follow pieces and entries.
    pub(crate) fn launch(
        &self,
        source: &'static Source,
        dtype: Dtype,
        kernel: &'static str,
        args: &[Arg],
    ) {
        let args = [args![&self.pieces, &self.entries], args].concat();
        source.launch(dtype, kernel, Grid::new(self.blocks, THREADS), &args);
    }
}

/// Uploads the words as 32-bit halves.
fn upload(device: Device, words: Vec<u64>) -> Tensor {
    let halves: Vec<i32> = words.iter().flat_map(|w| [*w as i32, (*w >> 32) as i32]).collect();
    super::constant(&Tensor::from_slice(&halves, &[halves.len()]), device).unwrap_or_else(|error| {
        super::fail(device, error);
        Tensor::empty_on(device, &[halves.len()], Dtype::I32)
    })
}
