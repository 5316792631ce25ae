//! The intermediate result of an interrupted evaluation, in a file from which the next attempt continues.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unix::publish::publish_bytes;
use unix::{Error, Result, small};

/// Maximum file size in bytes that is read.
const MAX_BYTES: u64 = 1 << 30;

/// The intermediate file of one evaluation.
#[derive(Clone, Debug)]
pub struct Partial {
    path: PathBuf,
    protocol: String,
}

#[derive(Serialize, Deserialize)]
struct Stored<E> {
    /// Hash of the protocol.
    protocol: String,
    result: E,
}

impl Partial {
    /// The file `path` for an evaluation with this protocol.
    pub fn new(path: PathBuf, protocol: &impl Serialize) -> Result<Self> {
        let value = serde_json::to_value(protocol).map_err(Error::bug)?;
        Ok(Self { path, protocol: unix::config::hash(&value) })
    }

    /// The stored result of an earlier attempt of the same evaluation, or the default. A file that is damaged or
    /// belongs to another evaluation is ignored, and replaced by [`Partial::save`].
    pub fn load<E: DeserializeOwned + Default>(&self) -> E {
        let text = small::read(&self.path, MAX_BYTES).ok();
        let stored: Option<Stored<E>> = text.and_then(|text| serde_json::from_slice(&text).ok());
        let own = stored.filter(|stored| stored.protocol == self.protocol);
        own.map(|stored| stored.result).unwrap_or_default()
    }

    /// Stores the result so far atomically. Errors: 73, 74.
    pub fn save(&self, result: &impl Serialize) -> Result<()> {
        let stored = Stored { protocol: self.protocol.clone(), result };
        publish_bytes(&self.path, &serde_json::to_vec(&stored).map_err(Error::bug)?)
    }

    /// Removes the file once the evaluation is complete. If this fails, the next evaluation replaces it.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
