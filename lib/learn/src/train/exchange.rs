//! Sums of gradients over ranks, made while the backward pass still runs.

use dist::{Collective, Reducer, Times};
use tensor::{Device, Tensor};
use unix::{Error, Result};

/// Elements of a bucket, beyond which it is closed: 4 MiB. Large enough that a sum runs at the speed of
/// memory, small enough that the first begins early.
const BUCKET: usize = 1 << 20;

/// Sums tensors over ranks in buckets, which begin as soon as all their tensors are there.
pub struct Exchange {
    reducer: Box<dyn Reducer>,
    buckets: Vec<Bucket>,
    /// By tensor: its bucket.
    bucket_of: Vec<usize>,
    slots: Vec<Option<Tensor>>,
    /// Buckets given so far in this update.
    given: usize,
}

struct Bucket {
    tensors: Vec<usize>,
    missing: usize,
}

impl Exchange {
    /// For tensors of these lengths, which come in about this `order` (that of rank 0 counts). All ranks
    /// make it together.
    pub fn new(
        ranks: &dyn Collective,
        device: Device,
        lengths: &[usize],
        order: &[usize],
    ) -> Result<Self> {
        let order =
            ranks.broadcast(order.iter().flat_map(|t| (*t as u64).to_le_bytes()).collect())?;
        let order = order
            .chunks_exact(8)
            .map(|bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | *b as usize));
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for tensor in order {
            match groups.last_mut().filter(|(elements, _)| *elements < BUCKET) {
                Some((elements, tensors)) => {
                    *elements += lengths[tensor];
                    tensors.push(tensor);
                }
                None => groups.push((lengths[tensor], vec![tensor])),
            }
        }
        let elements: Vec<usize> = groups.iter().map(|(elements, _)| *elements).collect();
        let mut bucket_of = vec![0; lengths.len()];
        for (bucket, (_, tensors)) in groups.iter().enumerate() {
            tensors.iter().for_each(|tensor| bucket_of[*tensor] = bucket);
        }
        let bucket = |(_, tensors): (usize, Vec<usize>)| Bucket { missing: tensors.len(), tensors };
        Ok(Self {
            reducer: ranks.reducer(device, &elements)?,
            buckets: groups.into_iter().map(bucket).collect(),
            bucket_of,
            slots: vec![None; lengths.len()],
            given: 0,
        })
    }

    /// This rank's tensor number `tensor`. The buckets that it completes begin to be summed, in their
    /// order, which is the same on all ranks.
    pub fn give(&mut self, tensor: usize, value: Tensor) -> Result<()> {
        self.slots[tensor] = Some(value);
        self.buckets[self.bucket_of[tensor]].missing -= 1;
        while let Some(bucket) = self.buckets.get(self.given).filter(|b| b.missing == 0) {
            let tensors: Vec<Tensor> =
                bucket.tensors.iter().filter_map(|t| self.slots[*t].clone()).collect();
            self.reducer.give(self.given, &tensors)?;
            self.given += 1;
        }
        Ok(())
    }

    /// The sums over all ranks, when all tensors were given.
    pub fn take(&mut self) -> Result<Vec<Tensor>> {
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            let mut tensors: Vec<Tensor> =
                bucket.tensors.iter().filter_map(|t| self.slots[*t].take()).collect();
            self.reducer.take(number, &mut tensors)?;
            for (slot, tensor) in bucket.tensors.iter().zip(tensors) {
                self.slots[*slot] = Some(tensor);
            }
            bucket.missing = bucket.tensors.len();
        }
        self.given = 0;
        let all: Option<Vec<Tensor>> = self.slots.iter_mut().map(Option::take).collect();
        all.ok_or_else(|| Error::bug("a gradient was not given to be summed"))
    }

    /// What it took since it was last asked.
    pub fn times(&mut self) -> Times {
        self.reducer.times()
    }
}
