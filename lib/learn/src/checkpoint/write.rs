//! Writing a checkpoint: streamed from memory, hashed on the way, read back before it is relied on.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tensor::Tensor;
use unix::disk::{Disk, RealDisk, Rename};
use unix::fail;
use unix::publish::{FileWriter, Publisher};
use unix::{Context, Error, Result, cli, host, space, time};

use super::bytes::{self, PIECE};
use super::layout;
use super::list::{folder_name, free_name};
use super::manifest::{self, FORMAT, FileEntry, Manifest, TensorEntry, is_plain_name};
use super::verify::verify;
use super::{State, trash};

/// Writes `state` as a checkpoint of the run's attempt `attempt` into `folder` (RUN/ckpt) and returns
/// its path. It is there whole, or not at all; an older checkpoint of the same update is replaced.
///
/// Errors: 73 when space or inodes are short or the folder is not writable, 74 when writing fails; 70
/// when the state has names that cannot be stored.
pub fn write(folder: &Path, state: &State, attempt: u64) -> Result<PathBuf> {
    write_on(&RealDisk, folder, state, attempt).map(|(path, _)| path)
}

/// [`write`]; also how long it took until the checkpoint was durable, before it was read back.
pub(super) fn write_on(
    disk: &dyn Disk,
    folder: &Path,
    state: &State,
    attempt: u64,
) -> Result<(PathBuf, Duration)> {
    let started = Instant::now();
    let target = folder.join(folder_name(state.update));
    step("save.begin", &target)?;
    // The headers and the manifest are small beside the tensors.
    space::ensure_space(&target, bytes::total(state) + (1 << 16))?;
    space::ensure_files(&target, state.tensors.len() as u64 + 2)?;
    let publisher = Publisher::new(disk);
    let publish = |path: &Path| {
        publisher.folder_of_files(path, |inside| fill(publisher, inside, state, attempt))?;
        let took = started.elapsed();
        step("save.after_rename", path)?;
        read_back(disk, path)?;
        step("save.after_verify", path)?;
        Ok(took)
    };
    let took = if fs::symlink_metadata(&target).is_err() {
        publish(&target)?
    } else {
        // A run that went back to an earlier checkpoint arrives here again. The old one stays until
        // the new one is whole.
        replace(disk, &target, publish)?
    };
    Ok((target, took))
}

/// Writes `state` as the checkpoint `path`, which must not exist; for checkpoints that belong to no run.
pub(super) fn write_as(path: &Path, state: &State, attempt: u64) -> Result<()> {
    space::ensure_space(path, bytes::total(state) + (1 << 16))?;
    let publisher = Publisher::new(&RealDisk);
    publisher.folder_of_files(path, |inside| fill(publisher, inside, state, attempt))?;
    read_back(&RealDisk, path)
}

/// Every byte, as the disk gives it where the file was written past the page cache. What reads back wrong is taken away: loading would pass it
/// over, and nothing older may be removed for it.
fn read_back(disk: &dyn Disk, path: &Path) -> Result<()> {
    let report = verify(path)?;
    let Some(damage) = report.damage.first() else { return Ok(()) };
    trash::remove(disk, path)?;
    Err(Error::new(unix::Exit::Io, format!("what was written reads back wrong: {damage}")))
}

/// Puts what `publish` publishes in the place of the older `target`. At every moment one of the two
/// has a name under which it is found.
fn replace<T>(disk: &dyn Disk, target: &Path, publish: impl Fn(&Path) -> Result<T>) -> Result<T> {
    let publisher = Publisher::new(disk);
    let staged = trash::name(target);
    let value = publish(&staged)?;
    if publisher.exchange(&staged, target)? {
        trash::discard(disk, &staged);
        return Ok(value);
    }
    // Some network file systems know no exchange: the new one is found beside the old one, as the same
    // update of a later attempt, before the old one goes.
    let beside = free_name(target);
    publisher.rename(&staged, &beside, Rename::New)?;
    trash::remove(disk, target)?;
    publisher.rename(&beside, target, Rename::New)?;
    Ok(value)
}

/// All files, their sizes as the disk tells them, and the manifest last.
fn fill(publisher: Publisher, folder: &Path, state: &State, attempt: u64) -> Result<()> {
    step("save.after_create", folder)?;
    let mut files = Vec::new();
    for (stem, tensors) in &state.tensors {
        let name = format!("{stem}.safetensors");
        if !is_plain_name(&name) {
            return Err(Error::bug(format!("{name:?} cannot be the name of a file")));
        }
        let entry = write_file(publisher, folder, &name, tensors)?;
        let path = folder.join(name);
        let size = fs::symlink_metadata(&path).map_err(|cause| Error::io(&path, cause))?.len();
        if size != entry.bytes {
            let text = format!("{size} bytes arrived of {}", entry.bytes);
            return Err(Error::io(&path, text));
        }
        files.push(entry);
        step("save.after_shard", folder)?;
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
    // So that no crash leaves a manifest without the files that it names, not even in a folder with a
    // temporary name.
    publisher.names(folder)?;
    step("save.before_manifest", folder)?;
    publisher.inner_file(&folder.join(manifest::NAME), text.len() as u64, |file| {
        file.write_all(&text)
    })?;
    step("save.after_manifest", folder)?;
    state.may_be_written() // the last moment before it gets its name
}

/// A step of a save, at which a test may let it fail.
pub(super) fn step(point: &str, path: &Path) -> Result<()> {
    fail::point(point).map_err(|cause| Error::io(path, cause))
}

fn write_file(
    publisher: Publisher,
    folder: &Path,
    name: &str,
    tensors: &[(String, Tensor)],
) -> Result<FileEntry> {
    let (header, places) = layout::plan(tensors).context(|| name)?;
    let bytes = places.last().map_or(header.len() as u64, |place| place.end);
    let by_name: HashMap<&str, &Tensor> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let contents =
        places.iter().map(|place| by_name.get(place.name.as_str()).map(|t| bytes::of(t)));
    let contents: Vec<&[u8]> = contents.map(Option::unwrap_or_default).collect();
    // The file as a whole is hashed beside: one thread with both hashes is slower than a disk.
    let (hashes, whole) = std::thread::scope(|scope| {
        let whole = scope.spawn(|| hash_of(&header, &contents));
        let hashes = publisher.inner_file(&folder.join(name), bytes, |file| {
            file.write_all(&header)?;
            contents.iter().map(|content| write_hashed(file, content)).collect()
        });
        let whole = whole.join().map_err(|_| Error::bug("the thread that hashes died"));
        Ok::<(Vec<String>, String), Error>((hashes?, whole?))
    })?;
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
        bytes,
        blake3: whole,
        tensors: entries
            .collect::<Option<_>>()
            .ok_or_else(|| Error::bug("a tensor without a place"))?,
    })
}

/// Writes a tensor, and hashes it while it is in the cache.
fn write_hashed(file: &mut FileWriter, content: &[u8]) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    for piece in content.chunks(PIECE) {
        hasher.update(piece);
        file.write_all(piece)?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The hash of a file of this header and content.
fn hash_of(header: &[u8], contents: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header);
    for content in contents {
        hasher.update(content);
    }
    hasher.finalize().to_hex().to_string()
}
