//! The file in a folder of latents that tells which model made them.

use data::text::SOURCE;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use unix::publish::publish_bytes;
use unix::relative::{located, relative};
use unix::{Error, Result, small};

/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Records in `folder` the path of the model `name`, absolute and relative to the folder. The path is not part of the
/// identity of what the model made, which is in the index.
pub(crate) fn record_source(folder: &Path, name: &str, model: &Path) -> Result<()> {
    let path = model.canonicalize().map_err(|cause| Error::open(model, cause))?;
    let source = json!({ name: path, "relative": relative(&path, folder)? });
    let (file, text) = (folder.join(SOURCE), format!("{source}\n"));
    match small::read(&file, MAX_BYTES) {
        Ok(found) if found == text.as_bytes() => Ok(()),
        _ => publish_bytes(&file, text.as_bytes()),
    }
}

/// Returns the path of the model `name` that is recorded in `folder`, if there is one.
pub(crate) fn recorded_source(folder: &Path, name: &str) -> Option<PathBuf> {
    let source = small::read(&folder.join(SOURCE), MAX_BYTES);
    let source: Option<Value> = source.ok().and_then(|text| serde_json::from_slice(&text).ok());
    let field = |name: &str| Some(PathBuf::from(source.as_ref()?[name].as_str()?));
    located(field(name), field("relative").as_deref(), folder)
}
