//! Creates safetensors files: one tensor per dataset, coordinates as f64, attributes as metadata. The field is aligned
//! to 64 bytes.

use super::{Dataset, TrajectoryOffsets};
use crate::fields::field::{Axis, FieldLayout, LayoutDataset};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tensor::safetensors::{Entry, Header};
use tensor::{Dtype, FileDtype};

/// Alignment of the field in bytes: a cache line, and the widest vector registers.
const ALIGNMENT: usize = 64;

/// Creates the file with everything except the field values, and returns the datasets to write these to.
pub(super) fn lay_out(path: &Path, header: &super::Header) -> io::Result<Vec<Dataset>> {
    let super::Header { shape, layout, dtype, .. } = header;
    if *layout == FieldLayout::Groups {
        return Err(io::Error::other("safetensors files have no groups; choose layout tensor"));
    }
    if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        let what = format!("fields are kept as f32, f16 or bf16, not {dtype}");
        return Err(io::Error::other(what));
    }
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => f64::NAN.to_string(),
        value => value.to_string(),
    };
    let given = header.attributes.iter().map(|(name, value)| (name.clone(), text(value)));
    let own = header.own_attributes().into_iter().map(|(name, text)| (name.to_string(), text));
    let metadata: BTreeMap<String, String> = given.chain(own).collect();
    let parts = header.parts();
    let mut tensors: Vec<(String, FileDtype, Vec<usize>)> = Vec::new();
    for part in &parts {
        let dims = part.axes.iter().map(|axis| shape.size(axis, part.channels.len()));
        tensors.push((part.name.clone(), (*dtype).into(), dims.collect()));
    }
    let axes = Axis::SPACE.into_iter().zip(&header.coordinates).chain([(Axis::Time, &header.t)]);
    let axes: Vec<_> = axes.filter(|(_, values)| !values.is_empty()).collect();
    tensors.extend(axes.iter().map(|(axis, values)| {
        (format!("{}-coordinate", axis.letter()), FileDtype::F64, vec![values.len()])
    }));
    let planned = tensors.iter().map(|(name, dtype, dims)| (name.as_str(), *dtype, &dims[..]));
    let plan = Header::plan(planned, metadata, ALIGNMENT).map_err(io::Error::other)?;
    let file = File::create_new(path)?;
    file.write_all_at(&plan.bytes, 0)?;
    file.set_len(plan.file_bytes())?;
    for ((_, values), entry) in axes.iter().zip(&plan.entries[parts.len()..]) {
        file.write_all_at(bytemuck::cast_slice(values), entry.start)?;
    }
    let dataset = |(part, entry): (LayoutDataset, &Entry)| Dataset {
        channels: part.channels,
        is_static: part.axes.place(Axis::Time).is_none(),
        place: TrajectoryOffsets::One(entry.start),
    };
    Ok(parts.into_iter().zip(&plan.entries).map(dataset).collect())
}
