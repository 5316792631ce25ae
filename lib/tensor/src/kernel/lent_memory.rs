//! Device memory that is lent to tensors repeatedly, so that gradients are computed, reduced and used in place.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::sync::{Arc, Weak};

/// Alignment of tensors in elements: 256 bytes, like every allocation.
const ALIGN: usize = 64;

/// Contiguous memory for f32 tensors of given shapes.
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

fn aligned(shape: &[usize]) -> usize {
    shape.iter().product::<usize>().next_multiple_of(ALIGN)
}

impl LentMemory {
    /// Allocates memory for tensors of these shapes, filled with zeros.
    pub fn new(device: Device, shapes: Vec<Vec<usize>>) -> Self {
        let elements = shapes.iter().map(|shape| aligned(shape)).sum();
        let all = Arc::new(Tensor::zeros_on(device, &[elements], Dtype::F32));
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
        self.shapes.iter().scan(self.all.address(), |next, shape| {
            let address = *next;
            *next += (aligned(shape) * size_of::<f32>()) as u64;
            Some(address)
        })
    }

    /// Lends the memory as one tensor per shape, with exclusive access; `None` while previously lent tensors exist.
    pub fn lend(&mut self) -> Option<Vec<Tensor>> {
        let owner = self.owner()?;
        let places: Vec<u64> = self.addresses().collect();
        let lend = |(address, shape): (u64, &Vec<usize>)| {
            // SAFETY: a part of the memory of `owner`, disjoint from the other tensors; no other lent tensor exists.
            unsafe { Tensor::from_device_parts(self.all.device(), address, shape, owner.clone()) }
        };
        Some(places.into_iter().zip(&self.shapes).map(lend).collect())
    }

    /// Lends [`LentMemory::all`] for writing; `None` while previously lent tensors exist.
    pub fn lend_all(&mut self) -> Option<Tensor> {
        let (owner, all) = (self.owner()?, &self.all);
        // SAFETY: the memory of `owner`; no other lent tensor exists.
        Some(unsafe { Tensor::from_device_parts(all.device(), all.address(), all.shape(), owner) })
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
