//! Launches over many tensors at once: what updates do to all parameters is one launch, not hundreds.
//!
//! A kernel is given a table with an entry for each set of tensors that belong together (a parameter, its
//! gradient, its moments), and for each of its blocks which piece of which entry is its own
//! (`include/table.cuh`). A table stays on the device ([`super::constant`]) and is uploaded again only when
//! its content has changed: in training neither parameters nor, thanks to the caching allocator, gradients move.

use super::{Arg, Grid, Source};
use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;

/// Elements of a piece, and threads of its block; as in `table.cuh`.
const PIECE: usize = 4096;
pub(crate) const THREADS: usize = 256;

/// Tensors of one length that belong together.
pub(crate) struct Entry<const N: usize> {
    /// Where they are on the device.
    pub(crate) addresses: [u64; N],
    /// Elements of each.
    pub(crate) len: usize,
    /// Numbers of its own.
    pub(crate) numbers: [f32; 2],
}

/// The first two arguments of a launch (`table.cuh`).
pub(crate) struct Table {
    pieces: Tensor,
    pub(crate) entries: Tensor,
    /// Number of pieces, and of blocks.
    pub(crate) blocks: usize,
}

impl Table {
    /// Of `entries`, on `device`.
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

    /// Launches a block for each piece; `args` follow pieces and entries.
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

/// The words on the device, as 32-bit halves.
fn upload(device: Device, words: Vec<u64>) -> Tensor {
    let halves: Vec<i32> = words.iter().flat_map(|w| [*w as i32, (*w >> 32) as i32]).collect();
    super::constant(&Tensor::of(&halves, &[halves.len()]), device).unwrap_or_else(|error| {
        super::fail(device, error);
        Tensor::arbitrary_on(device, &[halves.len()], Dtype::I32)
    })
}
