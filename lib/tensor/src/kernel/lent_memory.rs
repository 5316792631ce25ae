//! Memory of a device that is lent to tensors again and again: gradients are computed, summed and used in the same
//! place.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::sync::{Arc, Weak};

/// Alignment of tensors in elements: 256 bytes, like every allocation.
const ALIGN: usize = 64;

/// Contiguous memory for f32 tensors of certain shapes.
#[derive(Debug)]
pub struct LentMemory {
    shapes: Vec<Vec<usize>>,
    all: Arc<Tensor>,
    /// Alive while tensors refer to this memory.
    lent: Weak<Lent>,
}

/// Owner of the tensors; keeps the memory.
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

    /// The shapes of its tensors.
    pub fn shapes(&self) -> &[Vec<usize>] {
        &self.shapes
    }

    /// All of it as one tensor, with padding between the others, for reading.
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

    /// Tensors over this memory, which they share with nobody; None while tensors lent before are held.
    pub fn lend(&mut self) -> Option<Vec<Tensor>> {
        let owner = self.owner()?;
        let places: Vec<u64> = self.addresses().collect();
        let lend = |(address, shape): (u64, &Vec<usize>)| {
            // SAFETY: a part of the memory of `owner`, which nobody else refers to, apart from the others.
            unsafe { Tensor::from_device_parts(self.all.device(), address, shape, owner.clone()) }
        };
        Some(places.into_iter().zip(&self.shapes).map(lend).collect())
    }

    /// [`LentMemory::all`], for writing.
    pub fn lend_all(&mut self) -> Option<Tensor> {
        let (owner, all) = (self.owner()?, &self.all);
        // SAFETY: the memory of `owner`, which nobody else refers to.
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
