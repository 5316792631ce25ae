//! The index of a folder of shards, `index.json`: safetensors files of fields that together form a data set.
//!
//! For each shard it records counts, shape, parameter, BLAKE3 hash and the statistics of the channels, so that a data
//! set can be described without opening a shard, and damaged or replaced shards are detected. It is built from the
//! shards themselves; programs that read fields do not require it.

use crate::fields::field::{Field, Shape};
use crate::fields::stats::{Statistics, channels_of};
use crate::seal::SealedFile;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use unix::publish::hash_file;
use unix::{Error, Result, small};

/// Name of the file.
const NAME: &str = "index.json";
const FILE: SealedFile = SealedFile {
    format: "longhaul-fields",
    version: 1,
    made_by: "ds-prep import",
    max_bytes: 256 << 20,
};

/// The file `index.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// Number of trajectories in all shards.
    pub trajectories: usize,
    /// Size of all shards in bytes.
    pub bytes: u64,
    /// The shards, ordered by name.
    pub shards: Vec<Shard>,
}

/// One file of fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Its path relative to the folder of the index.
    pub file: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the file.
    pub blake3: String,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Frames per trajectory.
    pub frames: usize,
    /// Points of a frame along each axis.
    pub grid: Vec<usize>,
    /// Names of the channels, inputs first.
    pub channels: Vec<String>,
    /// How many of the channels are inputs.
    pub inputs: usize,
    /// The regime, e.g. `nu=0.001`.
    pub parameter: Option<String>,
    /// Statistics of each channel over all trajectories, regardless of splits; absent when there are no trajectories,
    /// or a channel has values that are not finite.
    pub statistics: Option<Vec<Statistics>>,
}

impl Index {
    /// The path of the index of a folder.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// The index of `folder` with `files` added. Entries of an existing index, for these and other files in the folder,
    /// are kept if the file has not been modified since.
    ///
    /// Errors: as [`Field::open`]; 65 when the existing index is invalid.
    pub fn extended(folder: &Path, files: &[PathBuf]) -> Result<Self> {
        let path = Self::path(folder);
        let mut shards = Vec::new();
        if path.exists() {
            let written = modified(&path)?;
            for shard in Self::load(&path)?.shards {
                let file = folder.join(&shard.file);
                let same = fs::metadata(&file).is_ok_and(|found| found.len() == shard.bytes);
                if same && modified(&file)? <= written {
                    shards.push(shard);
                }
            }
        }
        for file in files {
            let name = Path::new(file.file_name().unwrap_or_default());
            if !shards.iter().any(|shard| shard.file == name) {
                shards.push(Shard::of(folder, name)?);
            }
        }
        shards.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(Self {
            trajectories: shards.iter().map(|shard| shard.trajectories).sum(),
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            shards,
        })
    }

    /// Whether a file is an index, judging by its member `format`. Errors: 66 when it cannot be read.
    pub fn is_at(path: &Path) -> Result<bool> {
        #[derive(Deserialize)]
        struct Named {
            format: String,
        }
        if path.extension().is_none_or(|ending| ending != "json") {
            return Ok(false);
        }
        let named = serde_json::from_slice::<Named>(&small::read(path, FILE.max_bytes)?);
        Ok(named.is_ok_and(|named| named.format == FILE.format))
    }

    /// Errors: 66 when it cannot be read, 65 when it is not a valid index.
    pub fn load(path: &Path) -> Result<Self> {
        let (index, _) = FILE.read::<Self>(path)?;
        let is_name = |shard: &&Shard| shard.file.file_name() == Some(shard.file.as_os_str());
        match index.shards.iter().find(|shard| !is_name(shard)) {
            Some(shard) => Err(Error::data(format!(
                "{}: `{}` is not the name of a shard",
                path.display(),
                shard.file.display()
            ))),
            None => Ok(index),
        }
    }

    /// Writes it to its folder atomically.
    pub fn save(&self, folder: &Path) -> Result<()> {
        FILE.write(&Self::path(folder), self)
    }

    /// The paths of its shards, for an index at `path`.
    pub fn files(&self, path: &Path) -> Vec<PathBuf> {
        let folder = path.parent().unwrap_or(Path::new(""));
        self.shards.iter().map(|shard| folder.join(&shard.file)).collect()
    }
}

impl Shard {
    fn of(folder: &Path, name: &Path) -> Result<Self> {
        let path = folder.join(name);
        let field = Field::open(&path)?;
        let Shape { trajectories, frames, grid, .. } = field.shape().clone();
        Ok(Self {
            file: name.into(),
            bytes: fs::metadata(&path).map_err(|cause| Error::open(&path, cause))?.len(),
            blake3: hash_file(&path)?,
            trajectories,
            frames,
            grid,
            channels: field.channels().to_vec(),
            inputs: field.inputs(),
            parameter: field.parameter().map(ToString::to_string),
            statistics: channels_of(&field)?,
        })
    }

    /// Describes how the file differs from the one that was indexed, if it does. Errors: 66, 74 when it cannot be read.
    pub fn difference(&self, folder: &Path) -> Result<Option<String>> {
        change_of(&folder.join(&self.file), (self.bytes, &self.blake3), true, "in the index")
    }
}

/// Describes how a file differs from the size and BLAKE3 hash that were recorded at a `place`; the content is only
/// hashed if `hash` is set. Errors: 66, 74 when it cannot be read.
pub(crate) fn change_of(
    path: &Path,
    (bytes, blake3): (u64, &str),
    hash: bool,
    place: &str,
) -> Result<Option<String>> {
    let found = fs::metadata(path).map_err(|cause| Error::open(path, cause))?.len();
    if found != bytes {
        return Ok(Some(format!("{found} bytes, {bytes} {place}")));
    }
    let found = if hash { hash_file(path)? } else { blake3.into() };
    Ok((found != blake3).then(|| format!("content {found}, {blake3} {place}")))
}

fn modified(path: &Path) -> Result<SystemTime> {
    let time = fs::metadata(path).and_then(|found| found.modified());
    time.map_err(|cause| Error::open(path, cause))
}

/// The file that contains trajectory `sample` of `path`, and its index in that file. For an `index.json`, trajectories
/// are counted through all its shards.
///
/// Errors: 2 for a JSON file that is not an index of fields, and for a trajectory that the index does not have; 66, 65
/// for an index that cannot be read.
pub fn file_of(path: &Path, sample: usize) -> Result<(PathBuf, usize)> {
    if path.extension().is_none_or(|ending| ending != "json") {
        return Ok((path.to_path_buf(), sample));
    }
    if !Index::is_at(path)? {
        return Err(Error::usage(format!(
            "{}: contains no field; name a data file, or the index.json of `ds-prep import`",
            path.display()
        )));
    }
    let index = Index::load(path)?;
    let mut number = sample;
    for (shard, file) in index.shards.iter().zip(index.files(path)) {
        match number.checked_sub(shard.trajectories) {
            None => return Ok((file, number)),
            Some(beyond) => number = beyond,
        }
    }
    Err(Error::usage(format!(
        "{}: no trajectory {sample}, there are {} (from 0)",
        path.display(),
        index.trajectories
    )))
}

/// Replaces each index in `files` by the shards that it lists. Errors: 66, 65 for an index that cannot be read.
pub fn with_shards(files: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut all = Vec::with_capacity(files.len());
    for path in files {
        match Index::is_at(&path)? {
            true => all.extend(Index::load(&path)?.files(&path)),
            false => all.push(path),
        }
    }
    Ok(all)
}
