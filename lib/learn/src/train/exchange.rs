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
    shapes: Vec<Vec<usize>>,
    missing: usize,
}

impl Exchange {
    /// For tensors of these shapes, which come in about this `order` (that of rank 0 counts). All ranks
    /// make it together.
    pub fn new(
        ranks: &dyn Collective,
        device: Device,
        shapes: &[Vec<usize>],
        order: &[usize],
    ) -> Result<Self> {
        let length = |tensor: usize| shapes[tensor].iter().product::<usize>();
        let order =
            ranks.broadcast(order.iter().flat_map(|t| (*t as u64).to_le_bytes()).collect())?;
        let order = order
            .chunks_exact(8)
            .map(|bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | *b as usize));
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for tensor in order {
            match groups.last_mut().filter(|(elements, _)| *elements < BUCKET) {
                Some((elements, tensors)) => {
                    *elements += length(tensor);
                    tensors.push(tensor);
                }
                None => groups.push((length(tensor), vec![tensor])),
            }
        }
        let elements: Vec<usize> = groups.iter().map(|(elements, _)| *elements).collect();
        let mut bucket_of = vec![0; shapes.len()];
        for (bucket, (_, tensors)) in groups.iter().enumerate() {
            tensors.iter().for_each(|tensor| bucket_of[*tensor] = bucket);
        }
        let bucket = |(_, tensors): (usize, Vec<usize>)| Bucket {
            missing: tensors.len(),
            shapes: tensors.iter().map(|tensor| shapes[*tensor].clone()).collect(),
            tensors,
        };
        Ok(Self {
            reducer: ranks.reducer(device, &elements)?,
            buckets: groups.into_iter().map(bucket).collect(),
            bucket_of,
            slots: vec![None; shapes.len()],
            given: 0,
        })
    }

    /// By number of the tensor, memory in which it need not be copied when it is given; no tensors where there
    /// is none. The sums of the update before must be dropped.
    pub fn rooms(&mut self) -> Result<Vec<Tensor>> {
        let mut rooms = vec![None; self.slots.len()];
        for (number, bucket) in self.buckets.iter().enumerate() {
            let Some(tensors) = self.reducer.rooms(number, &bucket.shapes)? else {
                return Ok(Vec::new());
            };
            for (place, tensor) in bucket.tensors.iter().zip(tensors) {
                rooms[*place] = Some(tensor);
            }
        }
        Ok(rooms.into_iter().flatten().collect())
    }

    /// This rank's tensor number `tensor`. The buckets that it completes begin to be summed, in their
    /// order, which is the same on all ranks.
    pub fn give(&mut self, tensor: usize, value: Tensor) -> Result<()> {
        self.slots[tensor] = Some(value);
        self.buckets[self.bucket_of[tensor]].missing -= 1;
        while let Some(bucket) = self.buckets.get(self.given).filter(|b| b.missing == 0) {
            let tensors: Vec<Tensor> =
                bucket.tensors.iter().filter_map(|t| self.slots[*t].take()).collect();
            self.reducer.give(self.given, tensors)?;
            self.given += 1;
        }
        Ok(())
    }

    /// The sums over all ranks, when all tensors were given; to be dropped before the next is given.
    pub fn take(&mut self) -> Result<Vec<Tensor>> {
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            let sums = self.reducer.take(number)?;
            for (slot, sum) in bucket.tensors.iter().zip(sums) {
                self.slots[*slot] = Some(sum);
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
