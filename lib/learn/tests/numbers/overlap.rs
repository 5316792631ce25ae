//! Sums over ranks start while a recorded backward pass is still being submitted.
#![cfg(feature = "emu")]

use super::fine_tune::train_on;
use super::*;
use dist::{Bucket, Busy, Reducer, Times};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensor::kernel::LentMemory;
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Exit, Result};

/// Rank 0 of two, where the other one always has the same values. Sums are in the manner of NCCL.
#[derive(Default)]
struct Twin {
    /// Whether gradients can be computed where they are summed.
    lends: bool,
    seen: Arc<Mutex<Seen>>,
}

/// What the reducer has seen of the gradients of the second bucket, which lie in the same memory in many updates.
#[derive(Default)]
struct Seen {
    /// The gradients of the previous update, if their memory is not lent.
    previous: Vec<Tensor>,
    /// What was in that memory when the first bucket was submitted.
    before: Vec<f32>,
    /// How often the first bucket was submitted before the second was computed.
    early: usize,
    /// How often after.
    late: usize,
}

fn doubled(tensor: &Tensor) -> Result<Tensor> {
    let mut host = tensor.to_host()?;
    match host.dtype() {
        Dtype::F64 => host.write::<f64>().iter_mut().for_each(|x| *x *= 2.0),
        _ => host.write::<f32>().iter_mut().for_each(|x| *x *= 2.0),
    }
    host.to_device(tensor.device())
}

impl Collective for Twin {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        2
    }
    fn local_rank(&self) -> usize {
        0
    }
    fn host(&self, _: usize) -> String {
        "here".into()
    }
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(bytes)
    }
    fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec(); 2])
    }
    fn all_gather(&self, _: &mut [(usize, &mut Tensor)]) -> Result<()> {
        Ok(())
    }
    fn all_reduce(&self, tensor: &mut Tensor) -> Result<()> {
        // The lengths of tensors of other sizes would depend on the rank.
        assert_eq!((tensor.len(), tensor.dtype()), (1, Dtype::F64));
        *tensor = doubled(tensor)?;
        Ok(())
    }
    fn uses_nccl(&self, _: Device) -> bool {
        true
    }
    fn reducer(&self, _: Device, buckets: &[Bucket]) -> Result<Box<dyn Reducer>> {
        // The head, the body, and the losses, which all ranks need.
        let owners: Vec<_> = buckets.iter().map(|b| (b.owner, b.dtype)).collect();
        let expected = [(Some(1), Dtype::Bf16), (Some(0), Dtype::Bf16), (None, Dtype::F32)];
        assert_eq!((&owners[..2], owners.last()), (&expected[..2], expected.last()));
        let memory = buckets.iter().map(|_| None).collect();
        let sums = vec![Vec::new(); buckets.len()];
        Ok(Box::new(TwinReducer { seen: self.seen.clone(), lends: self.lends, memory, sums }))
    }
    fn watch(&self) {}
    fn busy(&self, at_most: Duration) -> Busy<'_> {
        Solo.busy(at_most)
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
    fn abort(&self, error: Error) -> Error {
        error
    }
}

struct TwinReducer {
    seen: Arc<Mutex<Seen>>,
    lends: bool,
    memory: Vec<Option<LentMemory>>,
    sums: Vec<Vec<Tensor>>,
}

impl Reducer for TwinReducer {
    fn buffers(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        if !self.lends {
            return Ok(None);
        }
        let new = || LentMemory::new(Device::Emu, shapes.to_vec());
        let lent = self.memory[bucket].get_or_insert_with(new).lend();
        lent.map(Some).ok_or_else(|| Error::bug(format!("bucket {bucket} is held")))
    }
    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let mut seen = self.seen.lock().unwrap();
        let values = |tensors: &[Tensor]| -> Result<Vec<f32>> {
            let host: Result<Vec<Tensor>> = tensors.iter().map(Tensor::to_host).collect();
            Ok(host?.iter().flat_map(|tensor| tensor.read::<f32>().to_vec()).collect())
        };
        let lent = self.memory.get(1).and_then(Option::as_ref);
        let lent = lent.map(|memory| std::slice::from_ref(memory.all()));
        if bucket == 0 {
            seen.before = values(lent.unwrap_or(&seen.previous))?;
        }
        if bucket == 1 {
            let address = |tensor: &Tensor| tensor.address();
            let old = seen.previous.iter().map(address);
            if lent.is_some() || old.eq(gradients.iter().map(address)) {
                let is_early = seen.before != values(lent.unwrap_or(&gradients))?;
                seen.early += usize::from(is_early);
                seen.late += usize::from(!is_early);
            }
            seen.previous = if self.lends { Vec::new() } else { gradients.clone() };
        }
        let sums: Result<Vec<Tensor>> = gradients.iter().map(doubled).collect();
        if !self.lends {
            // Their memory is used again: nobody may hold the sums of the previous update.
            let is_free = self.sums[bucket].iter().all(Tensor::is_unique);
            assert!(is_free, "a sum of bucket {bucket} is held");
            self.sums[bucket] = sums?;
            return Ok(());
        }
        let shapes: Vec<Vec<usize>> = gradients.iter().map(|t| t.shape().to_vec()).collect();
        drop((gradients, seen));
        let mut places = self.buffers(bucket, &shapes)?.unwrap_or_default();
        places.iter_mut().zip(&sums?).for_each(|(place, sum)| place.assign(sum));
        Ok(())
    }
    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        match &mut self.memory[bucket] {
            Some(memory) => memory.lend().ok_or_else(|| Error::bug("a gradient is held")),
            None => Ok(self.sums[bucket].clone()),
        }
    }
    fn take_times(&mut self) -> Times {
        Times::default()
    }
}

#[test]
fn a_recorded_backward_pass_overlaps_with_sums_over_ranks() {
    let temporary = tempfile::tempdir().unwrap();
    // Gradients in memory of their own; where they are summed, also if a parameter has none; of casts of parameters.
    for (lends, unused, amp) in [(false, false, false), (true, true, false), (true, false, true)] {
        for accumulation in [1, 3] {
            let losses = [true, false].map(|compile| {
                let twin = Twin { lends, ..Twin::default() };
                let name = format!("{lends} {amp} {compile} {accumulation}");
                let run = temporary.path().join(&name);
                let exit = train_on(&run, 12, Device::Emu, &twin, |config| {
                    config["data"]["unused"] = json!(unused);
                    // The twin has no parameters of its own to compare.
                    config["training"]["hash_every"] = json!(0);
                    config["training"]["compile"] = json!(compile);
                    config["training"]["amp"] = json!(amp);
                    config["training"]["accumulation"] = json!(accumulation);
                    config["training"]["reduce_dtype"] = json!("bf16");
                    config["optimizer"]["shard"] = json!(true);
                });
                assert_eq!(exit.unwrap(), Exit::Done, "{name}");
                let seen = twin.seen.lock().unwrap();
                // In the first update nothing overlaps. Memory that is not lent is the same when a graph is replayed,
                // unless gradients of several passes are added up elsewhere.
                let overlaps = match (lends, compile, accumulation) {
                    (true, ..) => 11,
                    (false, true, 1) => 10,
                    _ => 0,
                };
                assert_eq!((seen.early, seen.late), (overlaps, 0), "{name}");
                let records = unix::log::read(&run.join("log.jsonl")).unwrap().records;
                let updates = records.iter().filter(|record| record["kind"] == "update");
                let updates =
                    updates.map(|r| [&r["loss"], &r["gradient_norm"]].map(Value::to_string));
                updates.collect::<Vec<_>>()
            });
            assert_eq!(losses[0].len(), 12);
            assert!(losses[0] == losses[1], "{lends}, {amp}, {accumulation}: {losses:?}");
        }
    }
}
