//! Tensors of devices by way of the host.

use super::reducer::Timed;
use crate::{InPlace, Reducer, Times, flat};
use tensor::{Device, Tensor};
use unix::{Error, Result};

/// Does to tensors of any device what `work` does to tensors on the host.
pub fn through(
    tensors: &mut [Tensor],
    work: impl FnOnce(&mut [Tensor]) -> Result<()>,
) -> Result<()> {
    if tensors.iter().all(|tensor| tensor.device() == Device::Cpu) {
        return work(tensors);
    }
    let mut copies = tensors.iter().map(Tensor::to_host).collect::<Result<Vec<_>>>()?;
    work(&mut copies)?;
    for (tensor, copy) in tensors.iter_mut().zip(copies) {
        *tensor = copy.to_device(tensor.device())?;
    }
    Ok(())
}

/// Overwrites a tensor of any device with bytes, as many as it has.
pub fn fill(tensor: &mut Tensor, bytes: &[u8]) -> Result<()> {
    let device = tensor.device();
    if device == Device::Cpu {
        tensor.as_bytes_mut().copy_from_slice(bytes);
        return Ok(());
    }
    let mut copy = Tensor::arbitrary(tensor.shape(), tensor.dtype());
    copy.as_bytes_mut().copy_from_slice(bytes);
    *tensor = copy.to_device(device)?;
    Ok(())
}

/// Sums of tensors by sums in place: they are copied in when given and out when taken.
pub struct Sums<S> {
    inner: S,
    /// Elements of each bucket.
    buckets: Vec<usize>,
}

impl<S: InPlace + Timed> Sums<S> {
    pub fn over(inner: S, buckets: &[usize]) -> Self {
        Self { inner, buckets: buckets.to_vec() }
    }

    fn expect(&self, bucket: usize, tensors: &[Tensor]) -> Result<()> {
        let wanted = self.buckets.get(bucket).copied();
        let elements = tensors.iter().map(Tensor::len).sum();
        if wanted == Some(elements) {
            return Ok(());
        }
        let message =
            format!("bucket {bucket}, of {wanted:?} elements, is given or taken as {elements}");
        Err(Error::bug(message))
    }
}

impl<S: InPlace + Timed> Reducer for Sums<S> {
    fn give(&mut self, bucket: usize, gradients: &[Tensor]) -> Result<()> {
        self.expect(bucket, gradients)?;
        let tensors = gradients.iter().map(Tensor::to_host).collect::<Result<Vec<_>>>()?;
        flat::len(&tensors)?;
        flat::read(&tensors, 0, self.inner.area(bucket)?);
        self.inner.begin(bucket)
    }

    fn take(&mut self, bucket: usize, gradients: &mut [Tensor]) -> Result<()> {
        self.expect(bucket, gradients)?;
        let sum = self.inner.sum(bucket)?;
        through(gradients, |gradients| {
            flat::len(gradients)?;
            flat::write(gradients, 0, sum);
            Ok(())
        })?;
        self.inner.release(bucket);
        Ok(())
    }

    fn times(&mut self) -> Times {
        self.inner.times()
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace> {
        Some(&mut self.inner)
    }
}
