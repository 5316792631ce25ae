//! Writing a checkpoint: streamed from memory, hashed on the way, read back before it counts.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tensor::Tensor;
use unix::publish::publish_folder;
use unix::{Context, Error, Result, cli, host, space, time};

use super::bytes::{self, PIECE};
use super::layout;
use super::list::folder_name;
use super::manifest::{self, FORMAT, FileEntry, Manifest, TensorEntry, is_plain_name};
use super::verify::verify;
use super::{State, keep};

/// Writes `state` as a checkpoint of the run's attempt `attempt` into `folder` (RUN/ckpt) and returns
/// its path. It is there whole, or not at all; an older checkpoint of the same update is replaced.
///
/// Errors: 73 when space or inodes are short or the folder is not writable, 74 when writing fails; 70
/// when the state has names that cannot be stored.
pub fn write(folder: &Path, state: &State, attempt: u64) -> Result<PathBuf> {
    let target = folder.join(folder_name(state.update));
    // The headers and the manifest are small beside the tensors.
    space::ensure_space(&target, bytes::total(state) + (1 << 16))?;
    space::ensure_files(&target, state.tensors.len() as u64 + 2)?;
    let fill = |inside: &Path| fill(inside, state, attempt);
    if fs::symlink_metadata(&target).is_err() {
        publish_folder(&target, fill)?;
        return Ok(target);
    }
    // A run that went back to an earlier checkpoint arrives here again. The old one stays until the
    // new one is whole.
    let staged = keep::trash_name(&target);
    publish_folder(&staged, fill)?;
    exchange(&staged, &target)?;
    keep::discard(&staged);
    Ok(target)
}

/// Writes `state` as the checkpoint `path`, which must not exist; for checkpoints that belong to no run.
pub(super) fn write_as(path: &Path, state: &State, attempt: u64) -> Result<()> {
    space::ensure_space(path, bytes::total(state) + (1 << 16))?;
    publish_folder(path, |inside| fill(inside, state, attempt))
}

/// Puts the new folder in the place of the old one; both keep existing throughout.
fn exchange(new: &Path, old: &Path) -> Result<()> {
    let done = match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        // Some network file systems know no exchange: two renames, with a moment between them in
        // which only older checkpoints have their names.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            let aside = keep::trash_name(old);
            fs::rename(old, &aside)
                .and_then(|()| fs::rename(new, old))
                .and_then(|()| fs::rename(&aside, new))
        }
        other => other.map_err(io::Error::from),
    };
    done.map_err(|cause| Error::create(old, cause))?;
    let parent = old.parent().unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| Error::io(parent, cause))
}

/// All files, the manifest last, and everything read back.
fn fill(folder: &Path, state: &State, attempt: u64) -> Result<()> {
    let mut files = Vec::new();
    for (stem, tensors) in &state.tensors {
        let name = format!("{stem}.safetensors");
        if !is_plain_name(&name) {
            return Err(Error::bug(format!("{name:?} cannot be the name of a file")));
        }
        files.push(write_file(folder, &name, tensors)?);
    }
    let program = cli::program();
    let manifest = Manifest {
        format: FORMAT,
        created: time::now_utc(),
        version: program.version,
        commit: program.commit,
        host: host::name(),
        attempt,
        stage: state.stage.clone(),
        update: state.update,
        world: 1,
        seed: state.seed,
        config_hash: state.config_hash.clone(),
        data_hash: state.data_hash.clone(),
        metrics: state.metrics.clone(),
        progress: state.progress.clone(),
        config: state.config.clone(),
        files,
    };
    let text = manifest.encode()?;
    let path = folder.join(manifest::NAME);
    let written = create(&path).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()
    });
    written.map_err(|cause| Error::io(&path, cause))?;
    let report = verify(folder)?;
    match report.damage.first() {
        Some(damage) => {
            Err(Error::new(unix::Exit::Io, format!("what was written reads back wrong: {damage}")))
        }
        None => Ok(()),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn write_file(folder: &Path, name: &str, tensors: &[(String, Tensor)]) -> Result<FileEntry> {
    let (header, places) = layout::plan(tensors).context(|| name)?;
    let path = folder.join(name);
    let file = create(&path).map_err(|cause| Error::create(&path, cause))?;
    let mut out =
        Hashed { file: io::BufWriter::with_capacity(PIECE, file), whole: blake3::Hasher::new() };
    let hashes = out.all(&header, &places, tensors).map_err(|cause| Error::io(&path, cause))?;
    let entries = tensors.iter().map(|(name, _)| {
        let (place, blake3) = places.iter().zip(&hashes).find(|(place, _)| place.name == *name)?;
        Some(TensorEntry {
            name: name.clone(),
            dtype: layout::dtype_name(place.dtype).into(),
            shape: place.shape.clone(),
            start: place.start,
            end: place.end,
            blake3: blake3.clone(),
        })
    });
    Ok(FileEntry {
        name: name.into(),
        bytes: places.last().map_or(header.len() as u64, |place| place.end),
        blake3: out.whole.finalize().to_hex().to_string(),
        tensors: entries
            .collect::<Option<_>>()
            .ok_or_else(|| Error::bug("a tensor without a place"))?,
    })
}

/// A file that is hashed while it is written.
struct Hashed {
    file: io::BufWriter<File>,
    whole: blake3::Hasher,
}

impl Hashed {
    /// Everything in the order of `places`; returns the hash of each tensor in that order.
    fn all(
        &mut self,
        header: &[u8],
        places: &[layout::Place],
        tensors: &[(String, Tensor)],
    ) -> io::Result<Vec<String>> {
        let by_name: std::collections::HashMap<&str, &Tensor> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        self.piece(header)?;
        let mut hashes = Vec::with_capacity(places.len());
        for place in places {
            let mut own = blake3::Hasher::new();
            let tensor = by_name.get(place.name.as_str());
            for piece in tensor.map_or(&[][..], |t| bytes::of(t)).chunks(PIECE) {
                own.update(piece);
                self.piece(piece)?;
            }
            hashes.push(own.finalize().to_hex().to_string());
        }
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        Ok(hashes)
    }

    fn piece(&mut self, piece: &[u8]) -> io::Result<()> {
        self.whole.update(piece);
        self.file.write_all(piece)
    }
}
