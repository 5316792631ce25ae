//! Launches over many tensors at once: what updates do to all parameters is one launch, not hundreds.
//!
//! A kernel is given a table with an entry for each set of tensors that belong together (a parameter, its
//! gradient, its moments), and for each of its blocks which piece of which entry is its own
//! (`include/table.cuh`). A table stays on the device and is uploaded again only when its content has
//! changed: in training neither parameters nor, thanks to the caching allocator, gradients move.

use crate::device::Device;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

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

/// Arguments of a launch: see `table.cuh`.
pub(crate) struct Table {
    pub(crate) pieces: Tensor,
    pub(crate) entries: Tensor,
    /// Number of pieces, and of blocks.
    pub(crate) blocks: usize,
}

/// What is on a device: by whose table it is, its content there.
type Uploaded = BTreeMap<(Device, &'static str), (Vec<u64>, Tensor)>;

static UPLOADED: Mutex<Uploaded> = Mutex::new(BTreeMap::new());

/// The table of `entries` for the kernels of one source, and of no other.
pub(crate) fn table<const N: usize>(
    device: Device,
    (pieces_of, entries_of): (&'static str, &'static str),
    entries: impl IntoIterator<Item = Entry<N>>,
) -> Table {
    let (mut words, mut pieces) = (Vec::new(), Vec::new());
    for (i, entry) in entries.into_iter().filter(|entry| entry.len > 0).enumerate() {
        words.extend(entry.addresses);
        let [low, high] = entry.numbers.map(|number| u64::from(number.to_bits()));
        words.extend([entry.len as u64, high << 32 | low]);
        pieces.extend((0..entry.len.div_ceil(PIECE)).map(|piece| (i << 32 | piece) as u64));
    }
    let blocks = pieces.len();
    Table {
        pieces: upload(device, pieces_of, pieces),
        entries: upload(device, entries_of, words),
        blocks,
    }
}

/// The words on the device, as 32-bit halves.
fn upload(device: Device, name: &'static str, words: Vec<u64>) -> Tensor {
    // An entry is replaced as a whole.
    let mut uploaded = UPLOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((content, tensor)) = uploaded.get(&(device, name))
        && *content == words
    {
        return tensor.clone();
    }
    let halves: Vec<i32> = words.iter().flat_map(|w| [*w as i32, (*w >> 32) as i32]).collect();
    let tensor = match Tensor::of(&halves, &[halves.len()]).to_device(device) {
        Ok(tensor) => tensor,
        Err(error) => {
            super::fail(device, error);
            return Tensor::arbitrary_on(device, &[halves.len()], crate::Dtype::I32);
        }
    };
    // What the device could not take is not there.
    if super::state::is_sound(device) {
        uploaded.insert((device, name), (words, tensor.clone()));
    }
    tensor
}
