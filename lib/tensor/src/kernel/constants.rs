//! A cache of tensors that are the same in every step: each is copied to the device once and can then be used while a
//! graph ([`super::Graph`]) is recorded.

use super::{graph, state};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use unix::Result;

/// Maximum size of the cache in bytes. When it is exceeded, the cache is cleared and tensors are copied again on use.
/// It is far above the size of a model's constants, all of which must stay cached while a graph is recorded.
const MOST: usize = 64 << 20;
/// Minimum number of bytes counted per tensor.
const LEAST: usize = 512;

/// Values are identified by their BLAKE3 hash.
type Key = (Device, Dtype, Vec<usize>, [u8; 32]);

#[derive(Default)]
struct ConstantCache {
    tensors: HashMap<Key, Tensor>,
    bytes: usize,
}

static KEPT: Mutex<Option<ConstantCache>> = Mutex::new(None);

/// Returns a host tensor on `device`; tensors with equal values share memory. Errors: device errors.
pub fn constant(tensor: &Tensor, device: Device) -> Result<Tensor> {
    if device == Device::Cpu {
        return Ok(tensor.clone());
    }
    let hash = *blake3::hash(tensor.as_bytes()).as_bytes();
    let key = (device, tensor.dtype(), tensor.shape().to_vec(), hash);
    let find = |kept: &Option<ConstantCache>| kept.as_ref()?.tensors.get(&key).cloned();
    // Lookups and insertions are atomic, so the map is consistent even after a panic.
    let found = find(&KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(found) = found {
        graph::hold(&found);
        return Ok(found);
    }
    let copy = tensor.to_device(device)?;
    if !state::is_sound(device) {
        // The copy did not happen; the error is reported when a value is read.
        return Ok(copy);
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    let bytes = tensor.as_bytes().len().max(LEAST);
    if kept.bytes + bytes > MOST {
        *kept = ConstantCache::default();
    }
    Ok(match kept.tensors.entry(key) {
        Entry::Occupied(found) => found.get().clone(),
        Entry::Vacant(free) => {
            kept.bytes += bytes;
            free.insert(copy).clone()
        }
    })
}
