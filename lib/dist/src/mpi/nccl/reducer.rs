//! Sums gradients in buckets. A bucket is contiguous GPU memory that the backward pass can write to directly, and that
//! a single collective sums.

use super::calls::Call;
use super::{Nccl, Progress};
use crate::{Bucket, Reducer, Times};
use std::sync::Arc;
use tensor::kernel::LentMemory;
use tensor::{Dtype, Tensor, ops};
use unix::{Error, Result};

/// The reducer for gradients on a GPU. See [`crate::Reducer`].
pub struct NcclReducer {
    nccl: Arc<Nccl>,
    buckets: Vec<State>,
}

/// A bucket and the state of its reduction.
struct State {
    wanted: Bucket,
    /// Allocated once the shapes of the tensors are known.
    memory: Option<LentMemory>,
    /// The collective in flight, until its sum is taken, and the gradients converted to the bucket's dtype if that is
    /// not f32.
    submitted: Option<(Arc<Progress>, Option<Tensor>)>,
}

impl NcclReducer {
    /// Creates a reducer for `buckets`.
    pub fn new(nccl: Arc<Nccl>, buckets: &[Bucket]) -> Self {
        let state = |wanted: &Bucket| State { wanted: *wanted, memory: None, submitted: None };
        Self { nccl, buckets: buckets.iter().map(state).collect() }
    }

    /// Returns the memory of a bucket for tensors of `shapes`. Errors: the shapes differ from those of the first call,
    /// or the sum was not yet taken.
    fn memory(&mut self, number: usize, shapes: &[Vec<usize>]) -> Result<&mut LentMemory> {
        let bug = |what: String| Error::bug(format!("bucket {number} {what}"));
        let Some(State { wanted, memory, submitted }) = self.buckets.get_mut(number) else {
            return Err(bug("does not exist".into()));
        };
        if submitted.is_some() {
            return Err(bug("was submitted or requested again before its sum was taken".into()));
        }
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let device = self.nccl.device;
        let memory = memory.get_or_insert_with(|| LentMemory::new(device, shapes.to_vec()));
        if elements != wanted.elements || memory.shapes() != shapes {
            let (wanted, before) = (wanted.elements, memory.shapes());
            return Err(bug(format!("of {wanted} f32 in {before:?} was given {shapes:?}")));
        }
        Ok(memory)
    }
}

/// Unwraps the memory of a bucket. Errors: it is `None`, because a gradient or a sum of the bucket is still held.
fn require_free<T>(lent: Option<T>, bucket: usize) -> Result<T> {
    lent.ok_or_else(|| Error::bug(format!("a gradient or sum of bucket {bucket} is still held")))
}

impl Reducer for NcclReducer {
    fn buffers(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        require_free(self.memory(bucket, shapes)?.lend(), bucket).map(Some)
    }

    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let device = self.nccl.device;
        let fits = |t: &&Tensor| t.device() == device && t.dtype() == Dtype::F32;
        if let Some(other) = gradients.iter().find(|t| !fits(t)) {
            let what = format!("{other:?} cannot be summed by NCCL: only f32 on {device} can");
            return Err(Error::bug(what));
        }
        let shapes: Vec<Vec<usize>> = gradients.iter().map(|t| t.shape().to_vec()).collect();
        let memory = self.memory(bucket, &shapes)?;
        let places: Vec<u64> = memory.addresses().collect();
        // Gradients that are already in place are dropped before anything else is written there.
        let elsewhere: Vec<(usize, Tensor)> = gradients
            .into_iter()
            .enumerate()
            .filter(|(index, tensor)| tensor.address() != places[*index])
            .collect();
        let mut lent = require_free(memory.lend(), bucket)?;
        for (index, tensor) in elsewhere {
            lent[index].assign(&tensor);
        }
        drop(lent);
        let State { wanted: Bucket { owner, dtype, .. }, memory, submitted } =
            &mut self.buckets[bucket];
        let Some(all) = memory.as_ref().map(LentMemory::all) else {
            return Err(Error::bug(format!("bucket {bucket} has no memory")));
        };
        let converted = (*dtype != Dtype::F32).then(|| {
            let mut converted = Tensor::empty_on(device, all.shape(), *dtype);
            ops::cast::convert(all, &mut converted);
            converted
        });
        let sent = converted.as_ref().unwrap_or(all);
        let (address, count) = (sent.address(), sent.len());
        let call = Call::Sum { address, count, dtype: *dtype, owner: *owner };
        // SAFETY: the memory is not lent out, and is kept here until the sum is taken.
        let progress = unsafe { self.nccl.start(call)? };
        *submitted = Some((progress, converted));
        Ok(())
    }

    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        let state = self.buckets.get_mut(bucket);
        let taken = state.and_then(|state| Some((state.submitted.take()?, state.memory.as_mut()?)));
        let Some(((progress, converted), memory)) = taken else {
            return Err(Error::bug(format!("bucket {bucket} was not submitted")));
        };
        self.nccl.wait(&progress)?;
        if let Some(converted) = converted {
            // Once converted, its memory may be reused: the compute stream orders that after the sum.
            ops::cast::convert(&converted, &mut require_free(memory.lend_all(), bucket)?);
        }
        require_free(memory.lend(), bucket)
    }

    fn take_times(&mut self) -> Times {
        self.nccl.times()
    }
}
