//! The index of a folder of shards, `index.json`: fields in safetensors that together are a data set.
//!
//! It says of each shard its counts, shape, parameter, BLAKE3 and the statistics of its channels, so that what
//! is there can be known without opening anything, and what was damaged or exchanged since is found. It is
//! made from the shards themselves; programs that read fields need it no more than other files do.

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
    /// Trajectories of all shards.
    pub trajectories: usize,
    /// Bytes of all shards.
    pub bytes: u64,
    /// In the order of their names.
    pub shards: Vec<Shard>,
}

/// One file of fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Its name in the folder of the index.
    pub file: PathBuf,
    /// Size.
    pub bytes: u64,
    /// BLAKE3 of the file.
    pub blake3: String,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Frames of a trajectory.
    pub frames: usize,
    /// Points of a frame along each axis.
    pub grid: Vec<usize>,
    /// Names of the numbers at a point, inputs first.
    pub channels: Vec<String>,
    /// How many of the channels are inputs.
    pub inputs: usize,
    /// The regime, e.g. `nu=0.001`.
    pub parameter: Option<String>,
    /// Of each channel over all trajectories, whichever split they will be in; absent when there are none,
    /// or one has numbers that are not finite.
    pub statistics: Option<Vec<Statistics>>,
}

impl Index {
    /// Where the index of a folder is.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// The index of `files` in `folder`, which was extended by them: what an index that is there says of
    /// these, and of others in the folder, is kept where they have not been written since.
    ///
    /// Errors: as [`Field::open`]; 65 when the index that is there is none.
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

    /// Whether a file is an index, by what it says of itself. Errors (66): it cannot be read.
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

    /// Errors: 66 when it cannot be read, 65 when it is none.
    pub fn load(path: &Path) -> Result<Self> {
        let (index, _) = FILE.read::<Self>(path)?;
        let is_name = |shard: &&Shard| shard.file.file_name() == Some(shard.file.as_os_str());
        match index.shards.iter().find(|shard| !is_name(shard)) {
            Some(shard) => Err(Error::data(format!(
                "{}: `{}` is no name of a shard",
                path.display(),
                shard.file.display()
            ))),
            None => Ok(index),
        }
    }

    /// Publishes it in its folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        FILE.write(&Self::path(folder), self)
    }

    /// Where its shards are, for an index at `path`.
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

    /// What is wrong with the file, when it is not the one that was indexed. Errors: 66, 74 when it cannot
    /// be read.
    pub fn difference(&self, folder: &Path) -> Result<Option<String>> {
        change_of(&folder.join(&self.file), (self.bytes, &self.blake3), true, "in the index")
    }
}

/// How a file differs from its size and BLAKE3 as they were recorded at a `place`; hashes are compared when `hash`.
/// Errors: 66, 74 when it cannot be read.
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

/// The file that holds trajectory `sample` of `path`, and its number in that file: the trajectories of an index
/// are numbered through its shards.
///
/// Errors: 2 for a JSON file that is no index of fields, and for a trajectory that the index does not have; 66,
/// 65 for an index that cannot be read.
pub fn file_of(path: &Path, sample: usize) -> Result<(PathBuf, usize)> {
    if path.extension().is_none_or(|ending| ending != "json") {
        return Ok((path.to_path_buf(), sample));
    }
    if !Index::is_at(path)? {
        return Err(Error::usage(format!(
            "{}: holds no field; name a data file, or the index.json of `ds-prep import`",
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

/// `files`, those that are an index replaced by the shards that it names. Errors: 66, 65 for an index that
/// cannot be read.
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
