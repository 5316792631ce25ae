//! Creates HDF5 files.

use super::{Dataset, Header, TrajectoryOffsets};
use crate::fields::field::{Axis, FieldLayout, LayoutDataset, Shape};
use hdf5::H5Type;
use hdf5::types::VarLenUnicode;
use serde_json::Value;
use std::path::Path;
use tensor::Dtype;

/// Maximum number of values in a list of numbers: HDF5 stores at most 64 KiB in an attribute.
const MAX_REALS: usize = 4096;

/// Creates the HDF5 file with everything except the field values, and returns the datasets to write these to.
pub(super) fn lay_out(path: &Path, header: &Header) -> hdf5::Result<Vec<Dataset>> {
    let file = hdf5::File::with_options()
        .with_fapl(|access| access.file_locking(false))
        .create_excl(path)?;
    for (name, value) in &header.attributes {
        write_attribute(&file, name, value)?;
    }
    let Header { shape, layout, .. } = header;
    for (name, text) in header.own_attributes() {
        write_attribute(&file, name, &text.into())?;
    }
    let groups: Vec<hdf5::Group> = match layout {
        FieldLayout::Groups => {
            // With leading zeros, names sort like numbers.
            let digits = shape.trajectories.saturating_sub(1).to_string().len().max(4);
            let group = |i| file.create_group(&format!("{i:0digits$}"));
            (0..shape.trajectories).map(group).collect::<hdf5::Result<_>>()?
        }
        _ => vec![(*file).clone()],
    };
    let mut datasets = Vec::new();
    for LayoutDataset { name, axes, channels } in header.parts() {
        let dims: Vec<usize> = axes.iter().map(|axis| shape.size(axis, channels.len())).collect();
        let offsets = groups.iter().map(|group| keep_place(group, &name, &dims, header.dtype));
        let offsets: Vec<u64> = offsets.collect::<hdf5::Result<_>>()?;
        let is_static = axes.place(Axis::Time).is_none();
        let place = match layout {
            FieldLayout::Groups => TrajectoryOffsets::Each(offsets),
            _ => TrajectoryOffsets::One(offsets[0]),
        };
        datasets.push(Dataset { channels, is_static, place });
    }
    for group in &groups {
        write_coordinates(group, header)?;
    }
    drop(groups);
    file.close()?;
    Ok(datasets)
}

/// Creates a contiguous dataset and returns its offset.
fn keep_place(group: &hdf5::Group, name: &str, dims: &[usize], dtype: Dtype) -> hdf5::Result<u64> {
    use hdf5::plist::dataset_create::{AllocTime, FillTime};
    let builder =
        group.new_dataset_builder().alloc_time(Some(AllocTime::Early)).fill_time(FillTime::Never);
    let dataset = match dtype {
        Dtype::F32 => builder.empty::<f32>().shape(dims).create(name)?,
        Dtype::F16 => builder.empty::<half::f16>().shape(dims).create(name)?,
        Dtype::F64 | Dtype::Bf16 | Dtype::I32 | Dtype::U8 => {
            return Err(hdf5::Error::from(format!("HDF5 files hold f32 or f16, not {dtype}")));
        }
    };
    // An empty dataset has no offset, and nothing will be written to it.
    let offset = if dataset.size() == 0 { Some(0) } else { dataset.offset() };
    offset.ok_or_else(|| hdf5::Error::from(format!("HDF5 allocated no space for `{name}`")))
}

fn write_coordinates(group: &hdf5::Group, header: &Header) -> hdf5::Result<()> {
    let (folder, name): (_, fn(char) -> String) = match header.layout {
        FieldLayout::Groups => (group.create_group("grid")?, |letter| letter.into()),
        _ => (group.clone(), |letter| format!("{letter}-coordinate")),
    };
    let real = |name: String, values: &[f64]| {
        let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        folder.new_dataset_builder().with_data(&values).create(name.as_str()).map(drop)
    };
    for (axis, values) in Axis::SPACE.into_iter().zip(&header.coordinates) {
        if !values.is_empty() {
            real(name(axis.letter()), values)?;
        }
    }
    if header.layout == FieldLayout::Incompressible {
        let Shape { trajectories, frames, .. } = header.shape;
        let row = header.t.iter().take(frames).map(|&t| t as f32);
        let rows: Vec<f32> = std::iter::repeat_n(row, trajectories).flatten().collect();
        let made = folder
            .new_dataset_builder()
            .empty::<f32>()
            .shape([trajectories, rows.len() / trajectories.max(1)]);
        return made.create("t")?.write_raw(&rows);
    }
    if header.t.is_empty() { Ok(()) } else { real(name('t'), &header.t) }
}

fn write_attribute(file: &hdf5::Location, name: &str, value: &Value) -> hdf5::Result<()> {
    fn scalar<T: H5Type>(file: &hdf5::Location, name: &str, value: T) -> hdf5::Result<()> {
        file.new_attr::<T>().create(name)?.write_scalar(&value)
    }
    let reals = |values: &Vec<Value>| -> Option<Vec<f64>> {
        let fits = (1..=MAX_REALS).contains(&values.len());
        values.iter().map(Value::as_f64).collect::<Option<_>>().filter(|_| fits)
    };
    let text = match value {
        Value::Null => return scalar(file, name, f64::NAN),
        Value::Bool(flag) => return scalar(file, name, *flag),
        Value::Number(number) => {
            return match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => scalar(file, name, value),
                (_, Some(value)) => scalar(file, name, value),
                _ => scalar(file, name, number.as_f64().unwrap_or(f64::NAN)),
            };
        }
        Value::Array(values) if let Some(values) = reals(values) => {
            return file.new_attr::<f64>().shape(values.len()).create(name)?.write_raw(&values);
        }
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    // A zero byte would terminate the text; our own texts contain none.
    let text: VarLenUnicode = text
        .replace('\0', " ")
        .parse()
        .map_err(|_| hdf5::Error::from(format!("attribute `{name}` is not text")))?;
    scalar(file, name, text)
}
