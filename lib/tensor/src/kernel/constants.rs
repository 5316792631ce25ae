//! Tensors that are the same in every step, kept on the device: copied there once, and usable in a graph recording
//! ([`super::Graph`]) without a copy.

use super::{graph, state};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use unix::Result;

/// Bytes of cached tensors at which the cache is cleared, and tensors are copied again on use: far more than the constants
/// of a model, all of which must stay while a graph is recorded.
const MOST: usize = 64 << 20;
/// A tensor occupies at least as many bytes.
const LEAST: usize = 512;

/// Values are identified by their BLAKE3 hash.
type Key = (Device, Dtype, Vec<usize>, [u8; 32]);

#[derive(Default)]
struct Kept {
    tensors: HashMap<Key, Tensor>,
    bytes: usize,
}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// A host tensor on `device`; equal values share memory. Errors: those of the device.
pub fn constant(tensor: &Tensor, device: Device) -> Result<Tensor> {
    if device == Device::Cpu {
        return Ok(tensor.clone());
    }
    let hash = *blake3::hash(tensor.as_bytes()).as_bytes();
    let key = (device, tensor.dtype(), tensor.shape().to_vec(), hash);
    let find = |kept: &Option<Kept>| kept.as_ref()?.tensors.get(&key).cloned();
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
        *kept = Kept::default();
    }
    Ok(match kept.tensors.entry(key) {
        Entry::Occupied(found) => found.get().clone(),
        Entry::Vacant(free) => {
            kept.bytes += bytes;
            free.insert(copy).clone()
        }
    })
}
