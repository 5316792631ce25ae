//! Properties of latents that an operator needs in addition to the values: their normalisation, and their codec.

use crate::common::normalisation::Normalisation;
use crate::common::{record_source, recorded_source};
use data::fields::latents::LatentStore;
use learn::dependency::Dependency;
use std::path::Path;
use tensor::Tensor;
use unix::Result;

/// Records in the directory of a latent store the path of the codec's checkpoint or run.
pub fn record_codec(folder: &Path, codec: &Path) -> Result<()> {
    record_source(folder, "codec", codec)
}

/// Returns the codec of a latent store: its path, if recorded, and its hash.
pub fn codec_of(store: &LatentStore) -> Dependency {
    let path = recorded_source(store.folder(), "codec");
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
