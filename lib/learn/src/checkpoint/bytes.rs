//! Tensors as the bytes they are stored as: little-endian, row-major.

use tensor::Tensor;

use super::Tensors;

#[cfg(target_endian = "big")]
compile_error!("checkpoints are written as the memory is, which must be little-endian");

/// Large enough that calls do not count, small enough to stay in the cache between two hashes.
pub(super) const PIECE: usize = 1 << 20;

pub(crate) fn of(tensor: &Tensor) -> &[u8] {
    tensor.as_bytes()
}

pub(super) fn of_mut(tensor: &mut Tensor) -> &mut [u8] {
    tensor.as_bytes_mut()
}

/// Bytes of a tensor.
pub(super) fn count(tensor: &Tensor) -> u64 {
    tensor.bytes() as u64
}

/// Bytes of all tensors.
pub(super) fn total(tensors: &Tensors) -> u64 {
    tensors.values().flatten().map(|(_, tensor)| count(tensor)).sum()
}
