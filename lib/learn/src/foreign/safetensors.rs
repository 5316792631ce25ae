//! Where the tensors of a safetensors file lie.

use std::fs::File;
use std::os::unix::fs::FileExt;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{Element, MAX_RANK, MAX_TENSORS, Stored, row_major};

/// Largest header, in bytes, as the safetensors library has it.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a file of `bytes` bytes. The error says what is wrong with it.
pub(super) fn tensors(file: &File, bytes: u64) -> Result<Vec<Stored>, String> {
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).map_err(|cause| cause.to_string())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length.saturating_add(8) > bytes {
        return Err(format!(
            "neither safetensors nor a PyTorch file: its header claims {length} bytes of {bytes}"
        ));
    }
    // Parsed it takes some times its size.
    unix::memory::ensure(&"the header", length.checked_mul(16))
        .map_err(|error| error.to_string())?;
    let mut header = vec![0; length as usize];
    file.read_exact_at(&mut header, 8).map_err(|cause| cause.to_string())?;
    // Checks that tensors follow each other without holes, that shapes and bytes agree, and names.
    let metadata: Metadata = serde_json::from_slice(&header)
        .map_err(|cause| format!("no safetensors header: {cause}"))?;
    let start = 8 + length;
    if start.checked_add(metadata.data_len() as u64) != Some(bytes) {
        return Err("its header and its size do not fit each other".into());
    }
    let mut stored = Vec::new();
    for (name, info) in metadata.tensors() {
        if stored.len() == MAX_TENSORS || info.shape.len() > MAX_RANK {
            return Err(format!("more than {MAX_TENSORS} tensors, or one of rank over {MAX_RANK}"));
        }
        stored.push((
            info.data_offsets,
            Stored {
                element: element(info.dtype).ok_or_else(|| {
                    format!("tensor {name} is {:?}, which is not read", info.dtype)
                })?,
                name,
                shape: info.shape.clone(),
                strides: row_major(&info.shape),
                start: start + info.data_offsets.0 as u64,
            },
        ));
    }
    stored.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    Ok(stored.into_iter().map(|(_, stored)| stored).collect())
}

fn element(dtype: Dtype) -> Option<Element> {
    Some(match dtype {
        Dtype::F64 => Element::F64,
        Dtype::F32 => Element::F32,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::BF16,
        Dtype::I64 => Element::I64,
        Dtype::I32 => Element::I32,
        Dtype::I16 => Element::I16,
        Dtype::I8 => Element::I8,
        Dtype::U8 => Element::U8,
        Dtype::BOOL => Element::Bool,
        _ => return None,
    })
}
