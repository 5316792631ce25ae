//! Writes weights for use by other programs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use tensor::Tensor;
use tensor::safetensors::Header;
use unix::publish::REAL;
use unix::{Context, Error, Result};

/// Writes host tensors, in the given order, to a new safetensors file in a directory that has not been published yet.
///
/// Errors: 73 when the file cannot be created, 74 when writing fails; 70 when a name cannot be stored.
pub fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let planned = tensors.iter().map(|(name, t)| (name.as_str(), t.dtype().into(), t.shape()));
    // Hugging Face transformers requires this metadata.
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let header = Header::plan(planned, metadata, 8).map_err(Error::bug);
    let header = header.context(|| path.display().to_string())?;
    let written = REAL.inner_file(path, header.file_bytes(), |file| {
        file.write_all(&header.bytes)?;
        tensors.iter().try_for_each(|(_, tensor)| file.write_all(tensor.as_bytes()))
    });
    written?.sync()
}
