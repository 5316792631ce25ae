//! Identifies a codec by a hash of its configuration and weights. Latents record this hash, and so does an operator
//! trained on them, because neither can be used with a different codec.

use learn::task::Buffers;
use serde::Serialize;
use tensor::Tensor;
use unix::{Error, Result};

/// Computes the BLAKE3 hash of a model: of its configuration, and of names, shapes and bits of its parameters.
pub fn hash_of_model(config: &impl Serialize, params: &[(String, Tensor)]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(serde_json::to_string(config).map_err(Error::bug)?.as_bytes());
    for (name, tensor) in params {
        hasher.update(format!("\n{name} {:?} {:?}\n", tensor.dtype(), tensor.shape()).as_bytes());
        hasher.update(tensor.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Computes the BLAKE3 hash of buffers, e.g. of a normalisation.
pub fn hash_of_buffers(buffers: &Buffers) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, tensor) in buffers {
        hasher.update(format!("{name} {:?}\n", tensor.shape()).as_bytes());
        hasher.update(bytemuck::cast_slice(&tensor.to_f64()));
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use learn::params::{Builder, Init, Params};

    fn params(value: f64) -> Params {
        let mut builder = Builder::new(0);
        builder.param("w", &[2, 3], Init::Constant(value));
        builder.finish().trained
    }

    #[test]
    fn configuration_names_shapes_and_bits_all_count() {
        let hash =
            |config: &str, params: &Params| hash_of_model(&config, params.entries()).unwrap();
        let base = hash("a", &params(1.0));
        assert_eq!(base, hash("a", &params(1.0)));
        assert_ne!(base, hash("b", &params(1.0)));
        assert_ne!(base, hash("a", &params(1.0 + f64::from(f32::EPSILON))));
        let mut other = Builder::new(0);
        other.param("w", &[3, 2], Init::Constant(1.0));
        assert_ne!(base, hash("a", &other.finish().trained));
    }
}
