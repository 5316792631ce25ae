//! Temporary memory for ops.

use crate::dtype::Float;
use crate::memory::Block;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Temporary host memory of an op: a slice from the caching allocator, not a tensor.
pub struct Scratch<T> {
    block: Block,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Float> Scratch<T> {
    /// Allocates `len` uninitialized elements (arbitrary values).
    pub fn uninit(len: usize) -> Self {
        Self { block: Block::take(len * size_of::<T>()), len, element: PhantomData }
    }

    /// Allocates `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut scratch = Self::uninit(len);
        scratch.fill(T::ZERO);
        scratch
    }
}

impl<T: Float> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the block holds `len` elements, aligned to 64 bytes and initialized (see `memory`); every bit pattern
        // is a valid float.
        unsafe { std::slice::from_raw_parts(self.block.start().cast(), self.len) }
    }
}

impl<T: Float> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.block.start().cast(), self.len) }
    }
}
