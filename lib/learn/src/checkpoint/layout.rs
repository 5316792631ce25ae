//! Where tensors lie in a safetensors file, written and read with all limits checked.
//!
//! The file is: length of the header (u64), header (JSON, padded to 8 bytes), data without holes.
//! Wider element types come first, so that every tensor is aligned.

use std::collections::{HashMap, HashSet};

use safetensors::tensor::{Metadata, TensorInfo};
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// Largest header, as the safetensors library has it.
const MAX_HEADER: u64 = 100_000_000;
/// Longest name of a tensor, in bytes.
const MAX_NAME: usize = 4096;
/// Most axes of a tensor.
const MAX_RANK: usize = 16;

/// One tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// First byte in the file.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// The header of a file to be, its length and padding included, and the places in the order of the
/// file. Errors: 70 when two tensors share a name or a name cannot be stored.
pub(super) fn plan(tensors: &[(String, Tensor)]) -> Result<(Vec<u8>, Vec<Place>)> {
    let mut order: Vec<&(String, Tensor)> = tensors.iter().collect();
    order.sort_by(|(a, s), (b, t)| t.dtype().bytes().cmp(&s.dtype().bytes()).then(a.cmp(b)));
    let mut names = HashSet::new();
    let mut at = 0;
    let mut infos = Vec::with_capacity(order.len());
    let mut places = Vec::with_capacity(order.len());
    for (name, tensor) in order {
        check_name(name, tensor.shape().len()).map_err(Error::bug)?;
        if !names.insert(name) {
            return Err(Error::bug(format!("two tensors of a checkpoint are named {name}")));
        }
        let end = at + super::bytes::count(tensor);
        let dtype = tensor.dtype();
        infos.push((
            name.clone(),
            TensorInfo {
                dtype: to_file(dtype),
                shape: tensor.shape().to_vec(),
                data_offsets: (at as usize, end as usize),
            },
        ));
        let shape = tensor.shape().to_vec();
        places.push(Place { name: name.clone(), dtype, shape, start: at, end });
        at = end;
    }
    // The word by which Hugging Face's loaders know the layout of weights.
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    let metadata = Metadata::new(Some(format), infos).map_err(Error::bug)?;
    let mut json = serde_json::to_vec(&metadata).map_err(Error::bug)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    for place in &mut places {
        place.start += header.len() as u64;
        place.end += header.len() as u64;
    }
    Ok((header, places))
}

/// Bytes of the header after its first 8, `first`, in a file of `size` bytes.
pub(super) fn header_length(first: [u8; 8], size: u64) -> Result<u64, String> {
    let length = u64::from_le_bytes(first);
    if length > MAX_HEADER || length.saturating_add(8) > size {
        return Err(format!("its header claims {length} bytes of a file of {size}"));
    }
    Ok(length)
}

/// The places that a header tells, in the order of the file; `json` is what follows its first 8
/// bytes. The error says what is wrong with it.
pub(super) fn read(json: &[u8], size: u64) -> Result<Vec<Place>, String> {
    let metadata: Metadata =
        serde_json::from_slice(json).map_err(|cause| format!("its header is damaged: {cause}"))?;
    let start = 8 + json.len() as u64;
    if start + metadata.data_len() as u64 != size {
        return Err("its header and its size do not fit each other".into());
    }
    let mut places = Vec::new();
    for (name, info) in metadata.tensors() {
        check_name(&name, info.shape.len())?;
        let Some(dtype) = from_file(info.dtype) else {
            return Err(format!(
                "tensor {name} is {:?}, which this version cannot hold",
                info.dtype
            ));
        };
        let elements = info.shape.iter().try_fold(1u128, |n, axis| n.checked_mul(*axis as u128));
        let bytes = elements.and_then(|n| n.checked_mul(dtype.bytes() as u128));
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if bytes != to.checked_sub(from).map(u128::from) {
            return Err(format!("tensor {name}: shape and bytes do not fit each other"));
        }
        let shape = info.shape.clone();
        places.push(Place { name, dtype, shape, start: start + from, end: start + to });
    }
    // Empty tensors share their start with the next.
    places.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    let mut at = start;
    for place in &places {
        if place.start != at {
            return Err(format!("tensor {}: a hole or an overlap before it", place.name));
        }
        at = place.end;
    }
    if at == size { Ok(places) } else { Err("bytes after the last tensor".into()) }
}

fn check_name(name: &str, rank: usize) -> Result<(), String> {
    let bad = name.is_empty() || name.len() > MAX_NAME || name.contains('\0');
    if bad || name == "__metadata__" || rank > MAX_RANK {
        return Err(format!(
            "tensor \"{}\" of rank {rank}: a name or rank that cannot be stored",
            unix::text::quote(name)
        ));
    }
    Ok(())
}

fn to_file(dtype: Dtype) -> safetensors::Dtype {
    match dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::F64 => safetensors::Dtype::F64,
        Dtype::Bf16 => safetensors::Dtype::BF16,
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::I32 => safetensors::Dtype::I32,
    }
}

fn from_file(dtype: safetensors::Dtype) -> Option<Dtype> {
    match dtype {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F64 => Some(Dtype::F64),
        safetensors::Dtype::BF16 => Some(Dtype::Bf16),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::I32 => Some(Dtype::I32),
        _ => None,
    }
}

/// The name of an element type, as safetensors has it.
pub(super) fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "F32",
        Dtype::F64 => "F64",
        Dtype::Bf16 => "BF16",
        Dtype::F16 => "F16",
        Dtype::I32 => "I32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> Vec<(String, Tensor)> {
        vec![
            ("b".into(), Tensor::of(&[1.0_f32, 2.0, 3.0], &[3])),
            ("a".into(), Tensor::of(&[1.0_f32], &[])),
            ("z".into(), Tensor::of(&[0.5_f64; 6], &[2, 1, 3])),
            ("empty".into(), Tensor::zeros(&[4, 0], Dtype::F32)),
        ]
    }

    #[test]
    fn what_is_planned_is_read_back() {
        let (header, places) = plan(&tensors()).unwrap();
        let size = places.last().unwrap().end;
        assert_eq!(size, header.len() as u64 + 3 * 4 + 4 + 6 * 8);
        assert!(places.iter().all(|p| p.start % p.dtype.bytes() as u64 == 0));
        let length = header_length(header[..8].try_into().unwrap(), size).unwrap();
        assert_eq!(length, header.len() as u64 - 8);
        assert_eq!(read(&header[8..], size).unwrap(), places);
        let (header, places) = plan(&[]).unwrap();
        assert_eq!(read(&header[8..], header.len() as u64).unwrap(), places);
    }

    #[test]
    fn names_that_cannot_be_stored() {
        let one = Tensor::scalar(1.0_f32);
        for names in [&["a", "a"][..], &["__metadata__"], &[""], &["a\0"]] {
            let list: Vec<_> = names.iter().map(|n| (n.to_string(), one.clone())).collect();
            assert!(plan(&list).is_err(), "{names:?}");
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let tensor = |shape: &str, from: u64, to: u64, dtype: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
        };
        let cases = [
            (tensor("[2]", 0, 8, "F32"), 8, true),
            (tensor("[2]", 0, 8, "F32"), 9, false),
            (tensor("[2]", 0, 4, "F32"), 4, false),
            (tensor("[2]", 4, 12, "F32"), 12, false),
            (tensor("[4]", 0, 4, "F8_E5M2"), 4, false),
            (tensor("[4294967296, 4294967296, 4294967296]", 0, 8, "F32"), 8, false),
            (tensor("[-1]", 0, 8, "F32"), 8, false),
            (tensor("[18446744073709551615, 2]", 0, 8, "F32"), 8, false),
            (tensor(&format!("[{}1]", "1,".repeat(20)), 0, 4, "F32"), 4, false),
            ("[".repeat(5000), 0, false),
            ("{".into(), 0, false),
            ("{}".into(), 0, true),
        ];
        for (json, data, good) in cases {
            let size = 8 + json.len() as u64 + data;
            assert_eq!(read(json.as_bytes(), size).is_ok(), good, "{json}");
        }
        assert!(header_length([255; 8], u64::MAX).is_err());
        assert!(header_length(9u64.to_le_bytes(), 16).is_err());
        assert_eq!(header_length(8u64.to_le_bytes(), 16), Ok(8));
    }
}
