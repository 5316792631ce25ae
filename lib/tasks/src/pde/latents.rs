//! What an operator needs besides the latent values: their scale, the condition (parameter of the equation and Δt) as
//! features, and the codec that made them.

use super::normalisation::Normalisation;
use data::fields::latents::LatentStore;
use data::fields::parameter::Parameter;
use learn::task::{Buffers, Dependency};
use learn::trained::Parts;
use serde_json::json;
use std::path::{Path, PathBuf};
use tensor::Tensor;
use unix::publish::publish_bytes;
use unix::{Error, Result, small};

/// File next to a latent index that records the path of the codec.
const SOURCE: &str = "source.json";
/// Maximum size of that file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Records in the directory of a latent store which checkpoint or run made it. The path is not part of the identity of
/// the latents, which is in the index.
pub fn record_codec(folder: &Path, codec: &Path) -> Result<()> {
    let path = codec.canonicalize().map_err(|cause| Error::open(codec, cause))?;
    let (file, text) = (folder.join(SOURCE), format!("{}\n", json!({ "codec": path })));
    match small::read(&file, MAX_BYTES) {
        Ok(found) if found == text.as_bytes() => Ok(()),
        _ => publish_bytes(&file, text.as_bytes()),
    }
}

/// The codec of a latent store: its path when the latents were made, if recorded, and its hash.
pub fn codec_of(store: &LatentStore) -> Dependency {
    let source = small::read(&store.folder().join(SOURCE), MAX_BYTES);
    let source: Option<serde_json::Value> =
        source.ok().and_then(|text| serde_json::from_slice(&text).ok());
    let path = source.and_then(|source| Some(PathBuf::from(source["codec"].as_str()?)));
    Dependency { path, hash: codec_hash(&store.key().codec, &store.key().normalisation) }
}

/// Hash of a codec, combined from the hashes of its weights and of its normalisation.
pub fn codec_hash(weights: &str, normalisation: &str) -> String {
    format!("{weights}+{normalisation}")
}

/// Mean square of unnormalised latents over tokens and channels, computed from their normalisation.
pub fn mean_square(scale: &Normalisation) -> f64 {
    let squares = scale.mean.iter().zip(&scale.std).map(|(m, s)| m * m + s * s);
    squares.sum::<f64>() / scale.channels() as f64
}

/// Weight of the squared error of each normalised channel: its variance divided by the mean square of all latents, so
/// that errors count as they do before normalisation.
pub fn channel_weights(scale: &Normalisation) -> Tensor {
    let total = mean_square(scale);
    let weights: Vec<f32> = scale.std.iter().map(|s| (s * s / total) as f32).collect();
    Tensor::from_slice(&weights, &[weights.len()])
}

/// Converts the condition to features: the logarithm of the parameter, standardised over the training data, and the
/// logarithm of the time step in units of the frame interval.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    mean: f64,
    std: f64,
    frame_interval: f64,
}

impl Condition {
    /// Number of features.
    pub const FEATURES: usize = 2;

    /// Fits the features to the parameters of the stores; the frame interval is that of the first store.
    pub fn of(stores: &[&LatentStore]) -> Self {
        let of_store = |store: &&LatentStore| -> Vec<f64> {
            (0..store.len()).map(|i| store.parameter(i).value).collect()
        };
        let parameters: Vec<f64> = stores.iter().flat_map(of_store).collect();
        Self::new(&parameters, stores.first().map_or(1.0, |store| store.frame_interval()))
    }

    /// Fits the features to the parameter values of all trajectories and the frame interval.
    pub fn new(parameters: &[f64], frame_interval: f64) -> Self {
        let n = parameters.len() as f64;
        let logs: Vec<f64> = parameters.iter().map(|value| log(*value)).collect();
        let mean = logs.iter().sum::<f64>() / n;
        let std = (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        let std = if std > 1e-12 { std } else { 1.0 };
        Self { mean, std, frame_interval }
    }

    /// The same condition without the parameter: its feature is always 0.
    pub fn without_parameter(self) -> Self {
        Self { std: f64::INFINITY, ..self }
    }

    /// Features of a sample with this parameter and this time between states.
    pub fn features(&self, parameter: &Parameter, time: f64) -> [f32; 2] {
        let parameter = (log(parameter.value) - self.mean) / self.std;
        [parameter as f32, log(time / self.frame_interval) as f32]
    }

    /// Buffers for a checkpoint.
    pub fn buffers(&self) -> Buffers {
        let values = [self.mean, self.std, self.frame_interval];
        vec![("condition".into(), Tensor::from_slice(&values, &[3]))]
    }

    /// Restores the buffers of [`Condition::buffers`].
    pub fn restore(parts: &Parts) -> Result<Self> {
        match parts.buffer("condition")?[..] {
            [mean, std, frame_interval] => Ok(Self { mean, std, frame_interval }),
            _ => {
                Err(Error::data("the checkpoint's buffer `condition` does not have three numbers"))
            }
        }
    }

    /// Frame interval of the training data.
    pub fn frame_interval(&self) -> f64 {
        self.frame_interval
    }
}

/// Natural logarithm of |x|, clamped at 1e-12 so that it is finite at zero.
fn log(x: f64) -> f64 {
    x.abs().max(1e-12).ln()
}
