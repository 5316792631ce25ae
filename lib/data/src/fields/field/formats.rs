//! The formats of files.

use super::hdf5_file::Hdf5File;
use super::numpy::NumpyFile;
use super::safetensors_file::SafetensorsFile;
use super::source::Source;
use super::table::Table;
use super::zarr::ZarrGroup;
use std::path::Path;
use unix::Result;

/// Opens a file by its extension: `.npy`, `.npz`, `.csv`, `.zarr`, `.safetensors`, else HDF5. `fill_missing`: chunks
/// that are not there hold the fill value, which is a value.
///
/// Errors: 66 when it cannot be opened, 65 when it is not of the format of its extension.
pub(super) fn open(path: &Path, fill_missing: bool) -> Result<Box<dyn Source>> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    Ok(match ending.to_ascii_lowercase().as_str() {
        "npy" | "npz" => Box::new(NumpyFile::open(path)?),
        "csv" => Box::new(Table::open(path)?),
        "zarr" => Box::new(ZarrGroup::open(path, fill_missing)?),
        "safetensors" => Box::new(SafetensorsFile::open(path)?),
        _ => Box::new(Hdf5File::open(path, fill_missing)?),
    })
}

/// Names at the root of a file. Errors: as [`open`].
pub(crate) fn names_of(path: &Path) -> Result<Vec<String>> {
    let file = open(path, true)?;
    let names = file.names();
    file.check()?;
    Ok(names)
}
