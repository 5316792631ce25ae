//! Device memory that is lent to tensors repeatedly, so that gradients are computed, reduced and used in place.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::sync::{Arc, Weak};

/// Alignment of tensors in bytes, like that of every allocation.
const ALIGN: usize = 256;

/// Contiguous memory for tensors of given shapes and one dtype.
#[derive(Debug)]
pub struct LentMemory {
    shapes: Vec<Vec<usize>>,
    all: Arc<Tensor>,
    /// Alive while tensors refer to this memory.
    lent: Weak<Lent>,
}

/// Owner of the lent tensors; keeps the memory alive.
#[derive(Debug)]
struct Lent(#[expect(dead_code)] Arc<Tensor>);

/// Elements of a tensor and of the padding after it.
fn aligned(shape: &[usize], dtype: Dtype) -> usize {
    shape.iter().product::<usize>().next_multiple_of(ALIGN / dtype.bytes())
}

impl LentMemory {
    /// Allocates memory for f32 tensors of these shapes, filled with zeros.
    pub fn new(device: Device, shapes: Vec<Vec<usize>>) -> Self {
        let memory = Self::uninitialized(device, Dtype::F32, shapes);
        let all = Tensor::zeros_on(device, memory.all.shape(), Dtype::F32);
        Self { all: Arc::new(all), ..memory }
    }

    /// Allocates memory for tensors of these shapes.
    pub fn uninitialized(device: Device, dtype: Dtype, shapes: Vec<Vec<usize>>) -> Self {
        let elements = shapes.iter().map(|shape| aligned(shape, dtype)).sum();
        let all = Arc::new(Tensor::empty_on(device, &[elements], dtype));
        Self { shapes, all, lent: Weak::new() }
    }

    /// Shapes of the tensors.
    pub fn shapes(&self) -> &[Vec<usize>] {
        &self.shapes
    }

    /// The whole memory as one tensor, including the padding between the lent tensors, for reading.
    pub fn all(&self) -> &Tensor {
        &self.all
    }

    /// Address of each tensor.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.offsets().map(|offset| self.all.address() + offset)
    }

    /// Bytes of this memory before each tensor.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> {
        let dtype = self.all.dtype();
        self.shapes.iter().scan(0, move |next, shape| {
            let offset = *next;
            *next += (aligned(shape, dtype) * dtype.bytes()) as u64;
            Some(offset)
        })
    }

    /// Lends the memory as one tensor per shape, with exclusive access; `None` while previously lent tensors exist.
    pub fn lend(&mut self) -> Option<Vec<Tensor>> {
        let owner = self.owner()?;
        let places: Vec<u64> = self.addresses().collect();
        let (device, dtype) = (self.all.device(), self.all.dtype());
        let lend = |(address, shape): (u64, &Vec<usize>)| {
            // SAFETY: a part of the memory of `owner`, disjoint from the other tensors; no other lent tensor exists.
            unsafe { Tensor::from_device_parts(device, address, (shape, dtype), owner.clone()) }
        };
        Some(places.into_iter().zip(&self.shapes).map(lend).collect())
    }

    /// Lends [`LentMemory::all`] for writing; `None` while previously lent tensors exist.
    pub fn lend_all(&mut self) -> Option<Tensor> {
        let (owner, all) = (self.owner()?, &self.all);
        // SAFETY: the memory of `owner`; no other lent tensor exists.
        let place = (all.shape(), all.dtype());
        Some(unsafe { Tensor::from_device_parts(all.device(), all.address(), place, owner) })
    }

    fn owner(&mut self) -> Option<Arc<Lent>> {
        if self.lent.strong_count() > 0 {
            return None;
        }
        let owner = Arc::new(Lent(self.all.clone()));
        self.lent = Arc::downgrade(&owner);
        Some(owner)
    }
}
