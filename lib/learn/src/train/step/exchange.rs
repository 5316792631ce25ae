//! All-reduce of gradients across ranks, concurrent with the backward pass.

use crate::train::sync::broadcast;
use dist::{Collective, Reducer, Times};
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Result};

/// Elements per bucket (4 MiB in f32): large enough for a sum to run at memory bandwidth, small enough for the first
/// sum to start early.
const BUCKET: usize = 1 << 20;
/// Elements per bucket with NCCL (24 MiB in f32), which needs larger buckets to reach the network bandwidth.
const NCCL_BUCKET: usize = 6 << 20;

/// Description of the tensors to sum.
pub struct Layout<'a> {
    pub shapes: &'a [Vec<usize>],
    /// Approximate order in which the tensors are submitted; the order of rank 0 applies.
    pub order: Vec<usize>,
    /// Number of gradients, which come first; they are followed by scalars that all ranks need.
    pub gradients: usize,
    /// The only rank that uses each gradient; empty if all ranks use all gradients. Each parameter has a single owner,
    /// because some optimizers need whole matrices; reducing to one owner after another moves as much data as a
    /// reduce-scatter.
    pub owners: &'a [usize],
    /// Dtype in which NCCL sums gradients.
    pub dtype: Dtype,
}

/// Sums tensors over ranks in buckets (bucketed all-reduce). The sum of a bucket starts once all of its tensors have
/// been submitted.
pub struct Exchange {
    reducer: Box<dyn Reducer>,
    buckets: Vec<Bucket>,
    /// Bucket index of each tensor.
    bucket_of: Vec<usize>,
    /// Tensors whose bucket is still incomplete; later, the sums.
    slots: Vec<Option<Tensor>>,
    /// Number of buckets submitted so far in this update.
    submitted: usize,
}

struct Bucket {
    tensors: Vec<usize>,
    shapes: Vec<Vec<usize>>,
    missing: usize,
}

impl Exchange {
    /// Prepares buckets. A collective call.
    pub fn new(ranks: &dyn Collective, device: Device, layout: Layout) -> Result<Self> {
        let Layout { shapes, order, gradients, owners, dtype } = layout;
        let full = if ranks.uses_nccl(device) { NCCL_BUCKET } else { BUCKET };
        let length = |tensor: usize| shapes[tensor].iter().product::<usize>();
        let mut groups: Vec<(dist::Bucket, Vec<usize>)> = Vec::new();
        for tensor in broadcast(ranks, order)? {
            let owner = owners.get(tensor).copied();
            let dtype = if tensor < gradients { dtype } else { Dtype::F32 };
            let open = |(bucket, _): &&mut (dist::Bucket, Vec<usize>)| {
                bucket.elements < full && (bucket.owner, bucket.dtype) == (owner, dtype)
            };
            match groups.last_mut().filter(open) {
                Some((bucket, tensors)) => {
                    bucket.elements += length(tensor);
                    tensors.push(tensor);
                }
                None => {
                    let bucket = dist::Bucket { elements: length(tensor), owner, dtype };
                    groups.push((bucket, vec![tensor]));
                }
            }
        }
        let buckets: Vec<dist::Bucket> = groups.iter().map(|(bucket, _)| *bucket).collect();
        let mut bucket_of = vec![0; shapes.len()];
        for (bucket, (_, tensors)) in groups.iter().enumerate() {
            tensors.iter().for_each(|tensor| bucket_of[*tensor] = bucket);
        }
        let bucket = |(_, tensors): (dist::Bucket, Vec<usize>)| Bucket {
            missing: tensors.len(),
            shapes: tensors.iter().map(|tensor| shapes[*tensor].clone()).collect(),
            tensors,
        };
        Ok(Self {
            reducer: ranks.reducer(device, &buckets)?,
            buckets: groups.into_iter().map(bucket).collect(),
            bucket_of,
            slots: vec![None; shapes.len()],
            submitted: 0,
        })
    }

    /// Returns the gradient buffers by tensor index; gradients computed in these buffers are summed without a copy.
    /// Empty if the backend has no such memory. The sums of the previous update must have been dropped.
    pub fn buffers(&mut self) -> Result<Vec<Tensor>> {
        let mut buffers = vec![None; self.slots.len()];
        for (number, bucket) in self.buckets.iter().enumerate() {
            let Some(tensors) = self.reducer.buffers(number, &bucket.shapes)? else {
                return Ok(Vec::new());
            };
            for (place, tensor) in bucket.tensors.iter().zip(tensors) {
                buffers[*place] = Some(tensor);
            }
        }
        Ok(buffers.into_iter().flatten().collect())
    }

    /// Returns a function that tells whether a tensor completes its bucket; call it in the order of submission.
    pub fn completes(&self) -> impl FnMut(usize) -> bool + use<> {
        let mut missing: Vec<usize> = self.buckets.iter().map(|b| b.tensors.len()).collect();
        let bucket_of = self.bucket_of.clone();
        move |tensor| {
            missing[bucket_of[tensor]] -= 1;
            missing[bucket_of[tensor]] == 0
        }
    }

    /// Submits the tensor with index `tensor` of this rank. All ranks sum the buckets in the same order.
    pub fn submit(&mut self, tensor: usize, value: Tensor) -> Result<()> {
        self.slots[tensor] = Some(value);
        self.buckets[self.bucket_of[tensor]].missing -= 1;
        while let Some(bucket) = self.buckets.get(self.submitted).filter(|b| b.missing == 0) {
            let tensors: Vec<Tensor> =
                bucket.tensors.iter().filter_map(|t| self.slots[*t].take()).collect();
            self.reducer.submit(self.submitted, tensors)?;
            self.submitted += 1;
        }
        Ok(())
    }

    /// Waits for the sums of all tensors over all ranks. The sums must be dropped before the next tensor is submitted.
    pub fn wait(&mut self) -> Result<Vec<Tensor>> {
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            let sums = self.reducer.wait(number)?;
            for (slot, sum) in bucket.tensors.iter().zip(sums) {
                self.slots[*slot] = Some(sum);
            }
            bucket.missing = bucket.tensors.len();
        }
        self.submitted = 0;
        let all: Option<Vec<Tensor>> = self.slots.iter_mut().map(Option::take).collect();
        all.ok_or_else(|| Error::bug("a gradient was not submitted"))
    }

    /// Returns the communication times since the last call.
    pub fn times(&mut self) -> Times {
        self.reducer.take_times()
    }
}
