//! Properties of latents that an operator needs in addition to the values: their normalisation, and their codec.

use crate::common::normalisation::Normalisation;
use data::fields::latents::LatentStore;
use learn::dependency::Dependency;
use serde_json::json;
use std::path::{Path, PathBuf};
use tensor::Tensor;
use unix::publish::publish_bytes;
use unix::relative::{located, relative};
use unix::{Error, Result, small};

/// File next to a latent index that records the path of the codec.
const SOURCE: &str = "source.json";
/// Maximum size of `source.json` in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Records in the directory of a latent store the path of the codec's checkpoint or run, absolute and relative to that
/// directory. The path is not part of the identity of the latents, which is in the index.
pub fn record_codec(folder: &Path, codec: &Path) -> Result<()> {
    let path = codec.canonicalize().map_err(|cause| Error::open(codec, cause))?;
    let source = json!({ "codec": path, "relative": relative(&path, folder)? });
    let (file, text) = (folder.join(SOURCE), format!("{source}\n"));
    match small::read(&file, MAX_BYTES) {
        Ok(found) if found == text.as_bytes() => Ok(()),
        _ => publish_bytes(&file, text.as_bytes()),
    }
}

/// Returns the codec of a latent store: its path, if recorded, and its hash.
pub fn codec_of(store: &LatentStore) -> Dependency {
    let source = small::read(&store.folder().join(SOURCE), MAX_BYTES);
    let source: Option<serde_json::Value> =
        source.ok().and_then(|text| serde_json::from_slice(&text).ok());
    let field = |name: &str| Some(PathBuf::from(source.as_ref()?[name].as_str()?));
    let path = located(field("codec"), field("relative").as_deref(), store.folder());
    Dependency::new(path, codec_hash(&store.key().codec, &store.key().normalisation))
}

/// Returns the hash of a codec, which combines the hashes of its weights and of its normalisation.
pub fn codec_hash(weights: &str, normalisation: &str) -> String {
    format!("{weights}+{normalisation}")
}

/// Computes the mean square of unnormalised latents over tokens and channels from their normalisation.
pub fn mean_square(scale: &Normalisation) -> f64 {
    let squares = scale.mean.iter().zip(&scale.std).map(|(m, s)| m * m + s * s);
    squares.sum::<f64>() / scale.channels() as f64
}

/// Returns the weight of the squared error of each normalised channel: its variance divided by the mean square of all
/// latents, so that errors are weighted as before normalisation.
pub fn channel_weights(scale: &Normalisation) -> Tensor {
    let total = mean_square(scale);
    let weights: Vec<f32> = scale.std.iter().map(|s| (s * s / total) as f32).collect();
    Tensor::from_slice(&weights, &[weights.len()])
}
