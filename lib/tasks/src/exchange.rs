//! Models to and from folders of transformers and PEFT, whichever task reads them.

pub use crate::common::transformers::Pretrained;
pub use crate::common::transformers::export::{Comparison, ExportRequest, Exported, Format};

use crate::common::transformers::export::parts_of;
use crate::common::transformers::{DECODERS, MODEL_TYPES, config_of, model_type};
use crate::language::{self, SftTask};
use crate::text;
use learn::task::Define;
use serde_json::Value;
use std::path::Path;
use unix::Result;

/// The configuration that starts training from a pretrained model: section `model` with its shape, and `init`, which reads its
/// weights.
///
/// Errors: 2 for options that the model does not have; 66 when config.json or the weights are missing; 65 when they are damaged,
/// contradict each other, or are of a model that is not supported.
pub fn configuration(request: &Pretrained) -> Result<Value> {
    let (path, keys) = config_of(&request.folder)?;
    match DECODERS.contains(&model_type(&path, &keys, &MODEL_TYPES)?) {
        true => language::configuration(request),
        false => text::pretrained::configuration(request),
    }
}

/// Writes the model of a checkpoint as the folder `to`, which must not exist.
///
/// Errors: 1 when the exported files are not the model that was trained; 2 for a model that transformers or PEFT does not have;
/// 66 when the checkpoint or the tokens are missing; 65 when they are damaged or do not belong together; 73, 74.
pub fn export(request: &ExportRequest, to: &Path) -> Result<Exported> {
    let parts = parts_of(request)?;
    match parts.task == SftTask::SPEC.name {
        true => language::export(request, parts, to),
        false => text::export::export(request, parts, to),
    }
}
