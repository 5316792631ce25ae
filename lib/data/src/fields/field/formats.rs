//! Opens files of all supported formats.

use super::hdf5_file::Hdf5File;
use super::numpy::NumpyFile;
use super::safetensors_file::SafetensorsFile;
use super::source::Source;
use super::table::Table;
use super::zarr::ZarrGroup;
use std::path::Path;
use unix::Result;

/// Opens a file by its extension: `.npy`, `.npz`, `.csv`, `.zarr`, `.safetensors`, else HDF5. With `fill_missing`,
/// missing chunks are read as the fill value, which then counts as data.
///
/// Errors: 66 when it cannot be opened, 65 when its format does not match its extension.
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

/// Returns the names at the root of a file. Errors: see [`open`].
pub(crate) fn names_of(path: &Path) -> Result<Vec<String>> {
    let file = open(path, true)?;
    let names = file.names();
    file.check()?;
    Ok(names)
}
