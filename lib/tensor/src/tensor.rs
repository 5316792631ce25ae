//! Tensors: contiguous, row-major, cheap to clone.

use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::memory::Block;
use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Working memory of an op on the host: a slice out of the allocator, not a tensor.
pub struct Scratch<T> {
    block: Block,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Float> Scratch<T> {
    /// `len` elements of arbitrary content.
    pub fn arbitrary(len: usize) -> Self {
        Self { block: Block::take(len * size_of::<T>()), len, element: PhantomData }
    }

    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut scratch = Self::arbitrary(len);
        scratch.fill(T::ZERO);
        scratch
    }
}

impl<T: Float> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the block holds `len` elements, aligned to 64 bytes and initialised (see `memory`);
        // every bit pattern is a valid float.
        unsafe { std::slice::from_raw_parts(self.block.start().cast(), self.len) }
    }
}

impl<T: Float> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` is the only holder.
        unsafe { std::slice::from_raw_parts_mut(self.block.start().cast(), self.len) }
    }
}

enum Storage {
    F32(Scratch<f32>),
    F64(Scratch<f64>),
}

/// A dense array of numbers. Cloning shares the memory; writing to shared memory copies it first.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    shape: Vec<usize>,
}

impl Tensor {
    /// A tensor of arbitrary content, for outputs that are written whole.
    pub fn arbitrary(shape: &[usize], dtype: Dtype) -> Self {
        let len = shape.iter().product();
        let storage = match dtype {
            Dtype::F32 => Storage::F32(Scratch::arbitrary(len)),
            Dtype::F64 => Storage::F64(Scratch::arbitrary(len)),
        };
        Self { storage: Arc::new(storage), shape: shape.to_vec() }
    }

    /// All zeros.
    pub fn zeros(shape: &[usize], dtype: Dtype) -> Self {
        Self::full(shape, 0.0, dtype)
    }

    /// Every element `value`.
    pub fn full(shape: &[usize], value: f64, dtype: Dtype) -> Self {
        let mut tensor = Self::arbitrary(shape, dtype);
        match dtype {
            Dtype::F32 => tensor.write::<f32>().fill(value as f32),
            Dtype::F64 => tensor.write::<f64>().fill(value),
        }
        tensor
    }

    /// A copy of `values` in the given shape.
    ///
    /// # Panics
    /// When the number of values is not the product of the shape.
    pub fn of<T: Float>(values: &[T], shape: &[usize]) -> Self {
        let mut tensor = Self::arbitrary(shape, T::DTYPE);
        tensor.write::<T>().copy_from_slice(values);
        tensor
    }

    /// A tensor of one element.
    pub fn scalar<T: Float>(value: T) -> Self {
        Self::of(&[value], &[1])
    }

    /// Length of every axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &*self.storage {
            Storage::F32(s) => s.len(),
            Storage::F64(s) => s.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of the last axis.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows, that is of vectors along the last axis.
    pub fn rows(&self) -> usize {
        if self.width() == 0 { 0 } else { self.len() / self.width() }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        match &*self.storage {
            Storage::F32(_) => Dtype::F32,
            Storage::F64(_) => Dtype::F64,
        }
    }

    /// Where the elements are.
    pub fn device(&self) -> Device {
        Device::Cpu
    }

    /// The same elements under another shape.
    ///
    /// # Panics
    /// When the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Self {
        let len: usize = shape.iter().product();
        assert_eq!(len, self.len(), "reshape of {:?} to {shape:?}", self.shape);
        Self { storage: self.storage.clone(), shape: shape.to_vec() }
    }

    /// The elements.
    ///
    /// # Panics
    /// When `T` is not the element type.
    pub fn read<T: Float>(&self) -> &[T] {
        match &*self.storage {
            Storage::F32(s) => cast(s),
            Storage::F64(s) => cast(s),
        }
    }

    /// The elements, to be written; memory shared with another tensor is copied first.
    ///
    /// # Panics
    /// When `T` is not the element type.
    pub fn write<T: Float>(&mut self) -> &mut [T] {
        if Arc::get_mut(&mut self.storage).is_none() {
            let copy = match &*self.storage {
                Storage::F32(s) => Storage::F32(copy(s)),
                Storage::F64(s) => Storage::F64(copy(s)),
            };
            self.storage = Arc::new(copy);
        }
        match Arc::get_mut(&mut self.storage) {
            Some(Storage::F32(s)) => cast_mut(s),
            Some(Storage::F64(s)) => cast_mut(s),
            None => unreachable!("the storage was made unique above"),
        }
    }

    /// Whether nobody shares the memory, so that writing does not copy.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// The same values in another element type.
    pub fn to_dtype(&self, dtype: Dtype) -> Self {
        if dtype == self.dtype() {
            return self.clone();
        }
        let mut out = Self::arbitrary(&self.shape, dtype);
        match dtype {
            Dtype::F32 => {
                for (y, x) in out.write::<f32>().iter_mut().zip(self.read::<f64>()) {
                    *y = *x as f32;
                }
            }
            Dtype::F64 => {
                for (y, x) in out.write::<f64>().iter_mut().zip(self.read::<f32>()) {
                    *y = f64::from(*x);
                }
            }
        }
        out
    }

    /// All elements as f64, for checks and reports.
    pub fn to_f64(&self) -> Vec<f64> {
        match &*self.storage {
            Storage::F32(s) => s.iter().map(|x| f64::from(*x)).collect(),
            Storage::F64(s) => s.to_vec(),
        }
    }

    /// The only element of a scalar, as f64.
    ///
    /// # Panics
    /// When there is not exactly one element.
    pub fn item(&self) -> f64 {
        assert_eq!(self.len(), 1, "item of a tensor of shape {:?}", self.shape);
        self.to_f64()[0]
    }
}

fn copy<T: Float>(from: &Scratch<T>) -> Scratch<T> {
    let mut to = Scratch::arbitrary(from.len());
    to.copy_from_slice(from);
    to
}

fn cast<S: Float, T: Float>(slice: &[S]) -> &[T] {
    assert_eq!(
        TypeId::of::<S>(),
        TypeId::of::<T>(),
        "tensor is {:?}, asked for {:?}",
        S::DTYPE,
        T::DTYPE
    );
    // SAFETY: S and T are the same type.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) }
}

fn cast_mut<S: Float, T: Float>(slice: &mut [S]) -> &mut [T] {
    assert_eq!(
        TypeId::of::<S>(),
        TypeId::of::<T>(),
        "tensor is {:?}, asked for {:?}",
        S::DTYPE,
        T::DTYPE
    );
    // SAFETY: S and T are the same type.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), slice.len()) }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.dtype(), self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_to_shared_memory_copies() {
        let a = Tensor::of(&[1.0_f32, 2.0, 3.0], &[3]);
        let mut b = a.clone();
        assert!(!b.is_unique());
        b.write::<f32>()[0] = 9.0;
        assert_eq!(a.read::<f32>(), [1.0, 2.0, 3.0]);
        assert_eq!(b.read::<f32>(), [9.0, 2.0, 3.0]);
        assert!(b.is_unique());
    }

    #[test]
    fn shapes_and_types_are_values() {
        let a = Tensor::of(&[1.5_f64; 12], &[3, 4]);
        assert_eq!((a.rows(), a.width(), a.len(), a.dtype()), (3, 4, 12, Dtype::F64));
        let b = a.to_dtype(Dtype::F32).reshape(&[2, 6]);
        assert_eq!(b.read::<f32>(), [1.5; 12]);
    }
}
