//! One shard: a safetensors file whose first tensor begins at a multiple of 64 bytes.
//!
//! The crate `safetensors` aligns to 8 bytes, so the header is written here, filled up with blanks, as
//! the format allows.

use super::index::{Layout, ShardEntry, shard_name};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use unix::{Error, Result, small};

/// Alignment of the latents: a cache line, and the widest vector registers.
const ALIGNMENT: usize = 64;

/// The bytes of a shard.
pub(super) fn encode(layout: &Layout, latents: &[f32], parameters: &[f64]) -> Vec<u8> {
    let [a, b] = [4 * latents.len(), 4 * latents.len() + 8 * parameters.len()];
    let header = serde_json::json!({
        "latents": {
            "dtype": "F32",
            "shape": [parameters.len(), layout.frames, layout.tokens, layout.dim],
            "data_offsets": [0, a],
        },
        "parameters": { "dtype": "F64", "shape": [parameters.len()], "data_offsets": [a, b] },
    });
    let mut header = header.to_string().into_bytes();
    header.resize((8 + header.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
    let mut bytes = Vec::with_capacity(8 + header.len() + b);
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    bytes.extend_from_slice(bytemuck::cast_slice(latents));
    bytes.extend_from_slice(bytemuck::cast_slice(parameters));
    bytes
}

/// Mean, and sum of squares about it, of each channel.
pub(super) fn moments(latents: &[f32], dim: usize) -> Vec<[f64; 2]> {
    let n = (latents.len() / dim) as f64;
    let mut moments = vec![[0.0; 2]; dim];
    for token in latents.chunks_exact(dim) {
        moments.iter_mut().zip(token).for_each(|(m, z)| m[0] += f64::from(*z));
    }
    moments.iter_mut().for_each(|m| m[0] /= n);
    for token in latents.chunks_exact(dim) {
        moments.iter_mut().zip(token).for_each(|(m, z)| m[1] += (f64::from(*z) - m[0]).powi(2));
    }
    moments
}

/// A shard mapped into memory.
#[derive(Debug)]
pub(super) struct Shard {
    map: Mmap,
    latents: Range<usize>,
    pub parameters: Vec<f64>,
}

impl Shard {
    /// Maps shard `number` of the store and compares size and shapes with the index.
    pub fn open(
        folder: &Path,
        number: usize,
        entry: &ShardEntry,
        layout: &Layout,
        samples: usize,
    ) -> Result<Self> {
        let path = folder.join(shard_name(number));
        small::require_file(&path)?;
        let file = File::open(&path).map_err(|cause| Error::open(&path, cause))?;
        let bytes = file.metadata().map_err(|cause| Error::io(&path, cause))?.len();
        if bytes != entry.bytes {
            return Err(damaged(&path, format!("{bytes} bytes, {} in the index", entry.bytes)));
        }
        // SAFETY: the map is read-only, and shards are never written in place: a new one replaces the
        // name, the mapped file stays. The size was just compared, so no access is past its end.
        let map = unsafe { Mmap::map(&file) }.map_err(|cause| Error::io(&path, cause))?;
        let (latents, parameters) = {
            let tensors = SafeTensors::deserialize(&map)
                .map_err(|cause| damaged(&path, cause.to_string()))?;
            let view = |name: &str, dtype: Dtype, shape: &[usize]| {
                let view =
                    tensors.tensor(name).map_err(|cause| damaged(&path, cause.to_string()))?;
                if (view.dtype(), view.shape()) != (dtype, shape) {
                    let found = format!("`{name}` is {} {:?}", view.dtype(), view.shape());
                    return Err(damaged(&path, format!("{found}, not {dtype} {shape:?}")));
                }
                Ok(range_in(&map, view.data()))
            };
            let shape = [samples, layout.frames, layout.tokens, layout.dim];
            let latents = view("latents", Dtype::F32, &shape)?;
            (latents, view("parameters", Dtype::F64, &[samples])?)
        };
        if bytemuck::try_cast_slice::<u8, f32>(&map[latents.clone()]).is_err() {
            return Err(damaged(&path, "the latents are not aligned".into()));
        }
        let parameters = map[parameters].chunks_exact(8);
        let parameters = parameters.map(|b| f64::from_le_bytes(std::array::from_fn(|i| b[i])));
        Ok(Self { parameters: parameters.collect(), latents, map })
    }

    /// All latents, [samples, frames, tokens, dim].
    pub fn latents(&self) -> &[f32] {
        bytemuck::cast_slice(&self.map[self.latents.clone()])
    }
}

fn damaged(path: &Path, what: String) -> Error {
    Error::data(format!(
        "{}: {what}; run latent-cache again, it makes damaged shards anew",
        path.display()
    ))
}

/// Where `part`, a slice of `whole`, lies in it.
fn range_in(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.len()
}
