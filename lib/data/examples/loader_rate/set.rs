//! The data set to read: one file, which is entirely training data.

use data::fields::field::Shape;
use data::fields::import::Format;
use data::fields::split::{Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::write::{Header, write_field};
use data::split::{By, DivideRequest, GroupBy, Share, divide};
use rayon::prelude::*;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unix::{Error, Result};

pub struct Set {
    pub format: Format,
    pub path: PathBuf,
    pub trajectories: Arc<TrajectorySet>,
    /// Offset of the field in the file.
    pub offset: u64,
}

impl Set {
    /// Opens the set in `folder`; creates it if it does not exist.
    pub fn open(
        folder: &Path,
        format: Format,
        gib: f64,
        frames: usize,
        frame: &[usize],
    ) -> Result<Self> {
        let Some((&channels, grid)) = frame.split_last() else {
            return Err(Error::usage("--frame names no sizes"));
        };
        let mut shape = Shape { trajectories: 1, frames, grid: grid.to_vec(), channels };
        let bytes = 4 * shape.trajectory_len();
        shape.trajectories = ((gib * (1u64 << 30) as f64) as usize / bytes).max(1);
        let words: Vec<String> =
            [shape.trajectories, frames].iter().chain(frame).map(ToString::to_string).collect();
        let path = folder.join(format!("rate-{}.{format}", words.join("x")));
        // The other programs read HDF5.
        for path in [&path.with_extension("hdf5"), &path] {
            if !path.exists() {
                make(path, &shape)?;
            }
        }
        let manifest = path.with_extension(format!("{format}.json"));
        if !manifest.exists() {
            let shares = [Share::Fraction(1.0), Share::Count(0), Share::Count(0)];
            let (by, group_by) = (By::Trajectory, Some(GroupBy::State));
            let request = DivideRequest { by, group_by, shares, fixed: &[], seed: 0, near: None };
            let split: Split = divide(&request, std::slice::from_ref(&path), &manifest)?;
            split.save(&manifest)?;
        }
        let trajectories = TrajectorySet::open(&manifest, SplitName::Train, Verify::Sizes)?;
        trajectories.read_often();
        let offset = match format {
            Format::Hdf5 => offset_in_hdf5(&path)?,
            Format::Safetensors => offset_in_safetensors(&path)?,
        };
        Ok(Self { format, path, trajectories: Arc::new(trajectories), offset })
    }
}

/// Smooth fields with a little noise, similar to those of solvers.
fn make(path: &Path, shape: &Shape) -> Result<()> {
    let header = Header {
        attributes: vec![("Nu".into(), 0.1.into())],
        ..Header::tensor(shape.clone(), vec![Vec::new(); shape.grid.len()], Vec::new())
    };
    let value = |i: usize, j: usize| ((i * 7919) as f32 + j as f32 * 0.01).sin();
    write_field(path, &header, |writer| {
        (0..shape.trajectories).into_par_iter().try_for_each(|i| {
            let values: Vec<f32> = (0..shape.trajectory_len()).map(|j| value(i, j)).collect();
            writer.write(i, &values)
        })
    })
}

fn offset_in_hdf5(path: &Path) -> Result<u64> {
    let opened =
        hdf5::File::with_options().with_fapl(|access| access.file_locking(false)).open(path);
    let offset = opened.and_then(|file| Ok(file.dataset("tensor")?.offset()));
    let offset = offset.map_err(|cause| Error::data(format!("{}: {cause}", path.display())))?;
    offset.ok_or_else(|| Error::data(format!("{}: not in one piece", path.display())))
}

/// The field is the first tensor.
fn offset_in_safetensors(path: &Path) -> Result<u64> {
    let mut length = [0; 8];
    let file = std::fs::File::open(path);
    file.and_then(|mut file| file.read_exact(&mut length))
        .map_err(|cause| Error::io(path, cause))?;
    Ok(8 + u64::from_le_bytes(length))
}
