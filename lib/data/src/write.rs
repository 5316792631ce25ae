//! Writing fields in PDEBench's HDF5 layout.
//!
//! HDF5 lays out the file and writes everything but the field; the trajectories then go by positional
//! writes into the place it kept for them, from any thread and in any order. The file appears under
//! its name when it is whole.

use crate::field::Shape;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// Sizes and coordinates of a file, and what is said about them.
pub struct Header {
    /// Sizes of the field; one dimension of space and one channel.
    pub shape: Shape,
    /// Points of the grid.
    pub x: Vec<f64>,
    /// Times of the frames.
    pub t: Vec<f64>,
    /// Attributes of the root, in order.
    pub attributes: Vec<(String, Attribute)>,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A double.
    Real(f64),
    /// An unsigned number.
    Count(u64),
    /// UTF-8 text.
    Text(String),
}

/// The place of the trajectories in a file being made. Shared by threads.
pub struct FieldWriter {
    file: fs::File,
    path: PathBuf,
    offset: u64,
    trajectory_len: usize,
    trajectories: usize,
}

impl FieldWriter {
    /// Writes one trajectory, [frames, grid].
    pub fn write(&self, trajectory: usize, values: &[f32]) -> Result<()> {
        if values.len() != self.trajectory_len || trajectory >= self.trajectories {
            return Err(Error::bug(format!(
                "{}: trajectory {trajectory} with {} numbers into {} of {}",
                self.path.display(),
                values.len(),
                self.trajectories,
                self.trajectory_len
            )));
        }
        let at = self.offset + 4 * (trajectory * self.trajectory_len) as u64;
        self.file
            .write_all_at(bytemuck::cast_slice(values), at)
            .map_err(|cause| Error::io(&self.path, cause))
    }
}

/// Makes the file `path`, which must not exist: `fill` writes every trajectory.
///
/// Errors: 73 when it cannot be created or there is no space for it, 74 when writing fails, and what
/// `fill` says; then nothing is left behind.
pub fn write_field<T>(
    path: &Path,
    header: &Header,
    fill: impl FnOnce(&FieldWriter) -> Result<T>,
) -> Result<T> {
    let shape = &header.shape;
    let numbers = shape.trajectories * shape.trajectory_len();
    unix::space::ensure_space(path, 4 * numbers as u64)?;
    unix::publish::publish_new_file(path, |temporary| {
        let offset = lay_out(temporary, header)
            .map_err(|cause| Error::create(path, cause))?
            .ok_or_else(|| Error::bug(format!("{}: HDF5 kept no place", path.display())))?;
        let file = fs::OpenOptions::new().write(true).open(temporary);
        let file = file.map_err(|cause| Error::create(path, cause))?;
        fill(&FieldWriter {
            file,
            path: path.to_path_buf(),
            offset,
            trajectory_len: shape.trajectory_len(),
            trajectories: shape.trajectories,
        })
    })
}

/// Makes the HDF5 file with everything but the numbers of `tensor`; tells where they belong.
fn lay_out(path: &Path, header: &Header) -> hdf5::Result<Option<u64>> {
    use hdf5::plist::dataset_create::{AllocTime, FillTime};
    let file = hdf5::File::with_options()
        .with_fapl(|access| access.file_locking(false))
        .create_excl(path)?;
    for (name, value) in &header.attributes {
        match value {
            Attribute::Real(value) => {
                file.new_attr::<f64>().create(name.as_str())?.write_scalar(value)?;
            }
            Attribute::Count(value) => {
                file.new_attr::<u64>().create(name.as_str())?.write_scalar(value)?;
            }
            Attribute::Text(value) => {
                // A zero byte would end the text early; none of ours has one.
                let text: hdf5::types::VarLenUnicode = value
                    .replace('\0', " ")
                    .parse()
                    .map_err(|_| hdf5::Error::from(format!("attribute `{name}` is no text")))?;
                file.new_attr::<hdf5::types::VarLenUnicode>()
                    .create(name.as_str())?
                    .write_scalar(&text)?;
            }
        }
    }
    let real = |name: &str, values: &[f64]| {
        let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        file.new_dataset_builder().with_data(&values).create(name).map(drop)
    };
    real("x-coordinate", &header.x)?;
    real("t-coordinate", &header.t)?;
    let Shape { trajectories, frames, ref grid, .. } = header.shape;
    let mut dims = vec![trajectories, frames];
    dims.extend(grid);
    let tensor = file
        .new_dataset_builder()
        .alloc_time(Some(AllocTime::Early))
        .fill_time(FillTime::Never)
        .empty::<f32>()
        .shape(dims)
        .create("tensor")?;
    // Of nothing there is no place, and nothing will be written to it.
    let offset = if tensor.size() == 0 { Some(0) } else { tensor.offset() };
    drop(tensor);
    file.close()?;
    Ok(offset)
}
