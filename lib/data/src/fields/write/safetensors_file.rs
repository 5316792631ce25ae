//! Laying out a safetensors file: one tensor for each dataset, coordinates as f64, attributes as
//! metadata. The field begins at a multiple of 64 bytes.

use super::{Attribute, Dataset, Header, Place};
use crate::fields::field::{Axis, Layout, Part};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use tensor::Dtype;

/// Alignment of the numbers: a cache line, and the widest vector registers.
const ALIGNMENT: usize = 64;

/// Makes the file with everything but the numbers of the field; tells where they belong.
pub(super) fn lay_out(path: &Path, header: &Header) -> io::Result<Vec<Dataset>> {
    let Header { shape, layout, channels, inputs, .. } = header;
    if *layout == Layout::Groups {
        return Err(io::Error::other("safetensors files have no groups; choose layout tensor"));
    }
    let dtype = match header.dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
        other @ (Dtype::F64 | Dtype::I32) => {
            return Err(io::Error::other(format!(
                "fields are kept as f32, f16 or bf16, not {other}"
            )));
        }
    };
    let mut metadata = Map::new();
    for (name, value) in &header.attributes {
        let text = match value {
            Attribute::Real(value) => value.to_string(),
            Attribute::Count(value) => value.to_string(),
            Attribute::Integer(value) => value.to_string(),
            Attribute::Flag(value) => value.to_string(),
            Attribute::Reals(values) => json!(values).to_string(),
            Attribute::Text(value) => value.clone(),
        };
        metadata.insert(name.clone(), text.into());
    }
    for (name, text) in header.own_attributes() {
        metadata.insert(name.into(), text.into());
    }
    let mut tensors = Map::from_iter([("__metadata__".to_string(), Value::Object(metadata))]);
    let mut end = 0usize;
    let mut add = |name: &str, dtype: &str, dims: &[usize], bytes: usize| {
        let numbers: usize = dims.iter().product();
        let offsets = [end, end + numbers * bytes];
        tensors
            .insert(name.into(), json!({"dtype": dtype, "shape": dims, "data_offsets": offsets}));
        end = offsets[1];
        offsets[0]
    };
    let mut datasets = Vec::new();
    for Part { name, axes, channels } in layout.datasets(shape, channels, *inputs) {
        let dims: Vec<usize> = axes.iter().map(|axis| shape.size(axis, channels.len())).collect();
        let begin = add(&name, dtype, &dims, header.dtype.bytes());
        datasets.push((begin, channels, axes.place(Axis::Time).is_none()));
    }
    let mut coordinates: Vec<&[f64]> = Vec::new();
    let axes = Axis::SPACE.into_iter().zip(&header.coordinates).chain([(Axis::Time, &header.t)]);
    for (axis, values) in axes.filter(|(_, values)| !values.is_empty()) {
        add(&format!("{}-coordinate", axis.letter()), "F64", &[values.len()], 8);
        coordinates.push(values);
    }
    let mut text = Value::Object(tensors).to_string().into_bytes();
    text.resize((8 + text.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
    let begin = 8 + text.len();
    let mut file = File::create_new(path)?;
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(&text)?;
    file.set_len((begin + end) as u64)?;
    let numbers: Vec<u8> =
        coordinates.iter().flat_map(|values| values.iter().flat_map(|v| v.to_le_bytes())).collect();
    std::os::unix::fs::FileExt::write_all_at(
        &file,
        &numbers,
        (begin + end - numbers.len()) as u64,
    )?;
    let dataset = |(at, channels, is_static)| Dataset {
        channels,
        is_static,
        place: Place::One((begin + at) as u64),
    };
    Ok(datasets.into_iter().map(dataset).collect())
}
