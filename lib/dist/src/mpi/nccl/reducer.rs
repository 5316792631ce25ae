//! Sums of gradients in buckets: contiguous memory on the GPU, in which the backward pass can write them, and in which
//! one collective sums them.

use super::calls::Call;
use super::{Nccl, Progress};
use crate::{Bucket, Reducer, Times};
use std::sync::{Arc, Weak};
use tensor::{Dtype, Tensor, ops};
use unix::{Error, Result};

/// Elements to which tensors in a bucket are aligned: 256 bytes, like every allocation.
const ALIGN: usize = 64;

/// See [`crate::Reducer`].
pub struct NcclReducer {
    nccl: Arc<Nccl>,
    buckets: Vec<Memory>,
}

/// The memory of a bucket, and what happens to it.
struct Memory {
    wanted: Bucket,
    /// All tensors of the bucket; allocated when their shapes are known.
    all: Option<(Arc<Tensor>, Vec<Vec<usize>>)>,
    /// Alive while tensors refer to this memory.
    lent: Weak<Lent>,
    /// Until the sum is taken; with the gradients in the type in which they are summed, if it is another.
    submitted: Option<(Arc<Progress>, Option<Tensor>)>,
}

/// Owner of tensors in a bucket; keeps its memory.
struct Lent(#[expect(dead_code)] Arc<Tensor>);

fn aligned(shape: &[usize]) -> usize {
    shape.iter().product::<usize>().next_multiple_of(ALIGN)
}

impl NcclReducer {
    /// A reducer for these buckets, whose memory is allocated later.
    pub fn new(nccl: Arc<Nccl>, buckets: &[Bucket]) -> Self {
        let memory = |wanted: &Bucket| Memory {
            wanted: *wanted,
            all: None,
            lent: Weak::new(),
            submitted: None,
        };
        Self { nccl, buckets: buckets.iter().map(memory).collect() }
    }

    /// The memory of a bucket with tensors of these shapes, which nobody uses. Errors: other shapes than before, or a
    /// tensor is still held.
    fn free(&mut self, number: usize, shapes: &[Vec<usize>]) -> Result<Arc<Tensor>> {
        let bug = |what: String| Error::bug(format!("bucket {number} {what}"));
        let Some(bucket) = self.buckets.get_mut(number) else {
            return Err(bug("does not exist".into()));
        };
        if bucket.submitted.is_some() {
            return Err(bug("was submitted or requested again before its sum was taken".into()));
        }
        if bucket.lent.strong_count() > 0 {
            return Err(bug("is needed, but a gradient or sum of it is still held".into()));
        }
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let (all, before) = bucket.all.get_or_insert_with(|| {
            let padded = shapes.iter().map(|shape| aligned(shape)).sum();
            // Zeros, because padding is summed too.
            (Arc::new(Tensor::zeros_on(self.nccl.device, &[padded], Dtype::F32)), shapes.to_vec())
        });
        if elements != bucket.wanted.elements || before != shapes {
            let wanted = bucket.wanted.elements;
            return Err(bug(format!("of {wanted} f32 in {before:?} was given {shapes:?}")));
        }
        Ok(all.clone())
    }

    /// Tensors of these shapes in the memory of a bucket.
    fn lend(&mut self, number: usize, all: Arc<Tensor>, shapes: &[Vec<usize>]) -> Vec<Tensor> {
        let (mut address, owner) = (all.address(), Arc::new(Lent(all)));
        self.buckets[number].lent = Arc::downgrade(&owner);
        let next = |shape: &Vec<usize>| {
            let at = address;
            address += (aligned(shape) * size_of::<f32>()) as u64;
            // SAFETY: consecutive, aligned parts of the memory of `owner`. It was free before, and a collective uses
            // it only when nobody else does.
            unsafe { Tensor::from_device_parts(self.nccl.device, at, shape, owner.clone()) }
        };
        shapes.iter().map(next).collect()
    }

    /// All memory of a bucket that is not lent.
    fn whole(&self, all: Arc<Tensor>) -> Tensor {
        let (address, shape) = (all.address(), all.shape().to_vec());
        // SAFETY: as above.
        unsafe { Tensor::from_device_parts(self.nccl.device, address, &shape, Arc::new(Lent(all))) }
    }
}

impl Reducer for NcclReducer {
    fn buffers(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        let all = self.free(bucket, shapes)?;
        Ok(Some(self.lend(bucket, all, shapes)))
    }

    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let device = self.nccl.device;
        if let Some(other) =
            gradients.iter().find(|t| t.device() != device || t.dtype() != Dtype::F32)
        {
            let what = format!("{other:?} cannot be summed by NCCL: only f32 on {device} can");
            return Err(Error::bug(what));
        }
        let shapes: Vec<Vec<usize>> = gradients.iter().map(|t| t.shape().to_vec()).collect();
        // Gradients that are already in place are dropped before anything else is written there.
        let own = self.buckets.get(bucket).and_then(|bucket| bucket.all.as_ref());
        let mut address = own.map_or(0, |(all, _)| all.address());
        let mut elsewhere = Vec::new();
        for (index, tensor) in gradients.into_iter().enumerate() {
            let (at, next) = (tensor.address(), aligned(tensor.shape()) * size_of::<f32>());
            if address == 0 || at != address {
                elsewhere.push((index, tensor));
            }
            address += if address == 0 { 0 } else { next as u64 };
        }
        let all = self.free(bucket, &shapes)?;
        let mut places = self.lend(bucket, all.clone(), &shapes);
        for (index, tensor) in elsewhere {
            places[index].assign(&tensor);
        }
        drop(places);
        let Bucket { owner, dtype, .. } = self.buckets[bucket].wanted;
        let converted = (dtype != Dtype::F32).then(|| {
            let mut converted = Tensor::empty_on(device, all.shape(), dtype);
            ops::cast::convert(&all, &mut converted);
            converted
        });
        let sent = converted.as_ref().unwrap_or(&all);
        let call = Call::Sum { address: sent.address(), count: sent.len(), dtype, owner };
        // SAFETY: the memory is not lent, and kept here until the sum is taken.
        let progress = unsafe { self.nccl.start(call)? };
        self.buckets[bucket].submitted = Some((progress, converted));
        Ok(())
    }

    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        let memory = self.buckets.get_mut(bucket);
        let taken = memory.and_then(|b| Some((b.submitted.take()?, b.all.clone()?)));
        let Some(((progress, converted), (all, shapes))) = taken else {
            return Err(Error::bug(format!("bucket {bucket} was not submitted")));
        };
        self.nccl.finish(&progress)?;
        if let Some(converted) = converted {
            // From here on its memory is reused in the order of kernels, after the sum.
            ops::cast::convert(&converted, &mut self.whole(all.clone()));
        }
        Ok(self.lend(bucket, all, &shapes))
    }

    fn times(&mut self) -> Times {
        self.nccl.times()
    }
}
