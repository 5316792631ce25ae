//! The collectives of a single rank.

use crate::{Bucket, Busy, Collective, Reducer, Times};
use std::time::Duration;
use tensor::{Device, Tensor};
use unix::{Error, Result};

/// A single process: every collective is the identity.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn local_rank(&self) -> usize {
        0
    }

    fn host(&self, _rank: usize) -> String {
        unix::host::name()
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(bytes)
    }

    fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec()])
    }

    fn all_gather(&self, _owned: &mut [(usize, &mut Tensor)]) -> Result<()> {
        Ok(())
    }

    fn all_reduce(&self, _tensor: &mut Tensor) -> Result<()> {
        Ok(())
    }

    fn uses_nccl(&self, _device: Device) -> bool {
        false
    }

    fn reducer(&self, _device: Device, buckets: &[Bucket]) -> Result<Box<dyn Reducer>> {
        Ok(Box::new(Own { given: vec![Vec::new(); buckets.len()] }))
    }

    fn watch(&self) {}

    fn busy(&self, _at_most: Duration) -> Busy<'_> {
        Busy(None)
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self, error: Error) -> Error {
        error
    }
}

/// The reducer of a single rank: returns the submitted gradients without a copy.
struct Own {
    given: Vec<Vec<Tensor>>,
}

impl Reducer for Own {
    fn submit(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        self.given[bucket] = gradients;
        Ok(())
    }

    fn wait(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        Ok(std::mem::take(&mut self.given[bucket]))
    }

    fn take_times(&mut self) -> Times {
        Times::default()
    }
}
