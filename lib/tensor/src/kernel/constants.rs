//! Small tensors that are the same in every pass, kept on the device: copied there once, and part of a
//! recording ([`super::Graph`]) without a copy.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use unix::Result;

/// Larger ones are no constants of a model.
const LARGEST: usize = 1 << 20;
/// When there are more, all are forgotten: what comes again is copied again.
const MOST: usize = 256;

type Key = (Device, Dtype, Vec<usize>, Vec<u8>);

static KEPT: Mutex<Option<HashMap<Key, Tensor>>> = Mutex::new(None);

/// A tensor of the host on `device`; the same memory for the same values. Errors: what went wrong there.
pub fn constant(tensor: &Tensor, device: Device) -> Result<Tensor> {
    if device == Device::Cpu || tensor.bytes() > LARGEST {
        return tensor.to_device(device);
    }
    let key = (device, tensor.dtype(), tensor.shape().to_vec(), tensor.as_bytes().to_vec());
    let find = |kept: &Option<HashMap<Key, Tensor>>| kept.as_ref()?.get(&key).cloned();
    // A lookup is whole, and so is an insertion.
    if let Some(found) = find(&KEPT.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(found);
    }
    let copy = tensor.to_device(device)?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if kept.len() >= MOST {
        kept.clear();
    }
    Ok(kept.entry(key).or_insert(copy).clone())
}
