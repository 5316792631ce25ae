//! Tensors of any device in memory of the host.

use crate::{Reducer, Times, flat};
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

/// Sums over ranks whose buckets are written and read in place: in a round [`InPlace::area`],
/// [`InPlace::begin`], [`InPlace::sum`], [`InPlace::release`].
pub trait InPlace: Send {
    /// Where this rank writes a bucket. The content is arbitrary, and the sum of the round before gone;
    /// waits until no rank reads it any more. May be asked for several times.
    fn area(&mut self, bucket: usize) -> Result<&mut [f32]>;

    /// [`InPlace::area`] as tensors of these shapes, one after the other; none when they cannot have it.
    fn area_as(&mut self, _bucket: usize, _shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// Whether a tensor is one of [`InPlace::area_as`], and begins `at` elements after the first.
    fn is_in_area(&self, _bucket: usize, _at: usize, _tensor: &Tensor) -> bool {
        false
    }

    /// Begins to sum what was written. Errors: there are still tensors in the area.
    fn begin(&mut self, bucket: usize) -> Result<()>;

    /// Waits for the sum.
    fn sum(&mut self, bucket: usize) -> Result<&[f32]>;

    /// [`InPlace::sum`] as tensors, which release it when all of them are dropped; none when they cannot
    /// have it.
    fn sum_as(&mut self, _bucket: usize, _shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// The sum is not read any more: others need not wait for the next [`InPlace::area`] of this rank.
    fn release(&mut self, bucket: usize);

    /// What it took since the last call.
    fn times(&self) -> Times;
}

/// Sums of tensors by sums in place: what is not there is copied there when given, and out when taken.
pub struct Sums<S> {
    inner: S,
    device: Device,
    buckets: Vec<Bucket>,
}

struct Bucket {
    elements: usize,
    /// The shapes of what was given and is not yet taken.
    given: Option<Vec<Vec<usize>>>,
}

impl<S: InPlace> Sums<S> {
    pub fn over(inner: S, device: Device, buckets: &[usize]) -> Self {
        let bucket = |&elements: &usize| Bucket { elements, given: None };
        Self { inner, device, buckets: buckets.iter().map(bucket).collect() }
    }

    /// Errors: the bucket does not have tensors of these shapes, or its sum was not yet taken.
    fn accepts(&self, number: usize, shapes: &[Vec<usize>]) -> Result<()> {
        let elements: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let what = match self.buckets.get(number) {
            Some(Bucket { given: Some(_), .. }) => "again before its sum was taken".to_string(),
            Some(bucket) if bucket.elements == elements => return Ok(()),
            other => format!("as {elements} elements, not {:?}", other.map(|b| b.elements)),
        };
        Err(Error::bug(format!("bucket {number} is given or asked for {what}")))
    }
}

impl<S: InPlace> Reducer for Sums<S> {
    fn rooms(&mut self, bucket: usize, shapes: &[Vec<usize>]) -> Result<Option<Vec<Tensor>>> {
        self.accepts(bucket, shapes)?;
        if self.device != Device::Cpu {
            return Ok(None);
        }
        self.inner.area_as(bucket, shapes)
    }

    fn give(&mut self, bucket: usize, gradients: Vec<Tensor>) -> Result<()> {
        let shapes: Vec<Vec<usize>> = gradients.iter().map(|t| t.shape().to_vec()).collect();
        self.accepts(bucket, &shapes)?;
        let tensors: Vec<Tensor> =
            gradients.into_iter().map(|tensor| tensor.to_host()).collect::<Result<_>>()?;
        flat::len(&tensors)?;
        // Those that are where they belong are dropped before anything else is written there.
        let (mut at, mut elsewhere) = (0, Vec::new());
        for tensor in tensors {
            let len = tensor.len();
            if !self.inner.is_in_area(bucket, at, &tensor) {
                elsewhere.push((at, tensor));
            }
            at += len;
        }
        let area = self.inner.area(bucket)?;
        for (at, tensor) in elsewhere {
            area[at..at + tensor.len()].copy_from_slice(tensor.read());
        }
        self.inner.begin(bucket)?;
        self.buckets[bucket].given = Some(shapes);
        Ok(())
    }

    fn take(&mut self, bucket: usize) -> Result<Vec<Tensor>> {
        let given = self.buckets.get_mut(bucket).and_then(|bucket| bucket.given.take());
        let Some(shapes) = given else {
            return Err(Error::bug(format!("bucket {bucket} is taken, and was not given")));
        };
        if self.device == Device::Cpu
            && let Some(sums) = self.inner.sum_as(bucket, &shapes)?
        {
            return Ok(sums);
        }
        let mut sum = self.inner.sum(bucket)?;
        let mut sums = Vec::with_capacity(shapes.len());
        for shape in &shapes {
            let (values, others) = sum.split_at(shape.iter().product());
            sums.push(Tensor::of(values, shape).to_device(self.device)?);
            sum = others;
        }
        self.inner.release(bucket);
        Ok(sums)
    }

    fn times(&mut self) -> Times {
        self.inner.times()
    }
}
