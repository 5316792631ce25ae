//! Sums over ranks start while a recorded backward pass is still being submitted.
#![cfg(feature = "emu")]

use super::fine_tune::train_on;
use super::*;
use dist::{Bucket, Busy, Reducer, Times};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensor::{Device, Dtype, Tensor};
use unix::{Error, Exit, Result};

/// Rank 0 of two, where the other one always has the same values. Sums are in the manner of NCCL.
#[derive(Default)]
struct Twin {
    seen: Arc<Mutex<Seen>>,
}

/// What the reducer has seen of the second bucket, whose gradients are always in the memory of the graph.
#[derive(Default)]
struct Seen {
    /// The gradients of the previous update.
    previous: Vec<Tensor>,
    /// What was in their memory when the first bucket was submitted.
    before: Vec<Vec<f32>>,
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
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec(); 2])
    }
    fn all_gather(&self, _: &mut [(usize, &mut Tensor)]) -> Result<()> {
        Ok(())
    }
    fn all_reduce(&self, tensor: &mut Tensor) -> Result<()> {
        *tensor = doubled(tensor)?;
        Ok(())
    }
    fn uses_nccl(&self, _: Device) -> bool {
        true
    }
    fn reducer(&self, _: Device, buckets: &[Bucket]) -> Result<Box<dyn Reducer>> {
        // The head, the body, and the losses, which all ranks need.
        let expected =
            [(Some(1), Dtype::Bf16), (Some(0), Dtype::Bf16), (None, Dtype::F32)].to_vec();
        assert_eq!(buckets.iter().map(|b| (b.owner, b.dtype)).collect::<Vec<_>>(), expected);
        let (seen, sums) = (self.seen.clone(), vec![Vec::new(); buckets.len()]);
        Ok(Box::new(TwinReducer { seen, sums }))
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
    sums: Vec<Vec<Tensor>>,
}

impl Reducer for TwinReducer {
    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let mut seen = self.seen.lock().unwrap();
        let values = |tensors: &[Tensor]| -> Result<Vec<Vec<f32>>> {
            tensors.iter().map(|t| Ok(t.to_host()?.read::<f32>().to_vec())).collect()
        };
        if bucket == 0 {
            seen.before = values(&seen.previous)?;
        }
        if bucket == 1 {
            let address =
                |tensors: &[Tensor]| tensors.iter().map(Tensor::address).collect::<Vec<_>>();
            let is_replayed = address(&seen.previous) == address(&gradients);
            let is_early = seen.before != values(&gradients)?;
            seen.early += usize::from(is_replayed && is_early);
            seen.late += usize::from(is_replayed && !is_early);
            seen.previous = gradients.clone();
        }
        // Memory of sums is used again: nobody may hold those of the previous update.
        assert!(
            self.sums[bucket].iter().all(Tensor::is_unique),
            "a sum of bucket {bucket} is held"
        );
        let sums: Result<Vec<Tensor>> = gradients.iter().map(doubled).collect();
        self.sums[bucket] = sums?;
        Ok(())
    }
    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        Ok(self.sums[bucket].clone())
    }
    fn times(&mut self) -> Times {
        Times::default()
    }
}

#[test]
fn a_recorded_backward_pass_overlaps_with_sums_over_ranks() {
    let temporary = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    for (compile, accumulation) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
        let (twin, run) =
            (Twin::default(), temporary.path().join(format!("{compile} {accumulation}")));
        let exit = train_on(&run, 12, Device::Emu, &twin, |config| {
            config["training"]["compile"] = json!(compile);
            // The twin has no parameters of its own to compare.
            config["training"]["hash_every"] = json!(0);
            config["training"]["accumulation"] = json!(accumulation);
            config["training"]["reduce_dtype"] = json!("bf16");
            config["optimizer"]["shard"] = json!(true);
        });
        assert_eq!(exit.unwrap(), Exit::Done);
        let records = unix::log::read(&run.join("log.jsonl")).unwrap().records;
        let updates = records.iter().filter(|record| record["kind"] == "update");
        losses.push(
            updates
                .map(|r| [&r["loss"], &r["gradient_norm"]].map(Value::to_string))
                .collect::<Vec<_>>(),
        );
        let seen = twin.seen.lock().unwrap();
        // The first update is not recorded, and the second has nothing to compare with. With several passes per update,
        // gradients are added up in other memory.
        let replays = if compile && accumulation == 1 { 10 } else { 0 };
        assert_eq!((seen.early, seen.late), (replays, 0), "{compile}, {accumulation}");
    }
    assert_eq!(losses[0].len(), 12);
    assert!(losses[0] == losses[1], "{:?}\n{:?}", losses[0], losses[1]);
    assert!(losses[2] == losses[3], "{:?}\n{:?}", losses[2], losses[3]);
}
