//! Writes a checkpoint straight from memory, hashes it concurrently, and reads it back before relying on it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unix::disk::{Disk, RealDisk, Rename};
use unix::fail;
use unix::publish::{Publisher, Written};
use unix::{Error, Result, cli, host, space, time};

use super::image::{Image, ImagePlan};
use super::list::{folder_name, free_name};
use super::manifest::{self, FORMAT, FileEntry, Manifest, is_plain_name};
use super::verify::verify;
use super::{State, Tensors, trash};

/// Maximum number of files that are written but not yet durable; each stays open.
const UNSYNCED: usize = 16;

/// Source of the files of a checkpoint.
#[derive(Clone, Copy)]
pub(super) enum Files<'a> {
    /// File images that are already laid out in memory.
    Images(&'a [Image]),
    /// Built from tensors one file at a time, so that at most one file is duplicated in memory.
    Tensors(&'a Tensors),
}

impl Files<'_> {
    /// Total size of the tensors in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Images(images) => images.iter().map(Image::content).sum(),
            Self::Tensors(tensors) => {
                tensors.values().flatten().map(|(_, tensor)| tensor.bytes() as u64).sum()
            }
        }
    }

    fn count(self) -> usize {
        match self {
            Self::Images(images) => images.len(),
            Self::Tensors(tensors) => tensors.len(),
        }
    }

    fn try_for_each(self, mut what: impl FnMut(&Image) -> Result<()>) -> Result<()> {
        match self {
            Self::Images(images) => images.iter().try_for_each(what),
            Self::Tensors(tensors) => tensors.iter().try_for_each(|(stem, tensors)| {
                what(&Image::of(ImagePlan::new(stem, tensors)?, tensors)?)
            }),
        }
    }
}

/// Writes `state` as a checkpoint of attempt `attempt` into `folder` (RUN/ckpt) and returns its path. The checkpoint
/// appears atomically; an older checkpoint of the same update is replaced.
///
/// Errors: 73 when disk space or inodes are short or the directory is not writable, 74 when writing fails; 70 when the
/// state has names that cannot be stored.
pub fn write(folder: &Path, state: &State, attempt: u64) -> Result<PathBuf> {
    let files = Files::Tensors(&state.tensors);
    write_on(&RealDisk, folder, state, files, attempt).map(|(path, _)| path)
}

/// Checks that there are enough disk space and inodes for the checkpoint `target`. Errors: 73 when there are not.
pub(super) fn ensure_room(target: &Path, files: Files) -> Result<()> {
    // The headers and the manifest are small compared with the tensors.
    space::ensure_space(target, files.bytes() + (1 << 16))?;
    space::ensure_files(target, files.count() as u64 + 2)
}

/// Like [`write`], but writes `files` instead of the tensors of `state`. Also returns the time until the checkpoint was
/// durable, which excludes reading it back.
pub(super) fn write_on(
    disk: &dyn Disk,
    folder: &Path,
    state: &State,
    files: Files,
    attempt: u64,
) -> Result<(PathBuf, Duration)> {
    let started = Instant::now();
    let target = folder.join(folder_name(state.update));
    step("save.begin", &target)?;
    ensure_room(&target, files)?;
    let publisher = Publisher::new(disk);
    let publish = |path: &Path| {
        publisher.folder_of_files(path, |inside| fill(publisher, inside, state, files, attempt))?;
        let took = started.elapsed();
        step("save.after_rename", path)?;
        read_back(disk, path)?;
        step("save.after_verify", path)?;
        Ok(took)
    };
    let took = if fs::symlink_metadata(&target).is_err() {
        publish(&target)?
    } else {
        // A run that rewound reaches the same update again. The old checkpoint stays until the new one is complete.
        replace(disk, &target, publish)?
    };
    Ok((target, took))
}

/// Writes `state` to the checkpoint `path`, which must not exist and may lie outside a run.
pub(super) fn write_as(path: &Path, state: &State, attempt: u64) -> Result<()> {
    let files = Files::Tensors(&state.tensors);
    ensure_room(path, files)?;
    let publisher = Publisher::new(&RealDisk);
    publisher.folder_of_files(path, |inside| fill(publisher, inside, state, files, attempt))?;
    read_back(&RealDisk, path)
}

/// Reads back and verifies every byte; files written with direct I/O come from the disk, not from the page cache. A
/// damaged checkpoint is removed, because loading would skip it and no older checkpoint may be removed in its favour.
fn read_back(disk: &dyn Disk, path: &Path) -> Result<()> {
    let report = verify(path)?;
    let Some(damage) = report.damage.first() else { return Ok(()) };
    trash::remove(disk, path)?;
    Err(Error::new(unix::Exit::Io, format!("the checkpoint reads back damaged: {damage}")))
}

/// Publishes a checkpoint in place of the older `target`. At every moment at least one of the two has a name that
/// readers recognise.
fn replace<T>(disk: &dyn Disk, target: &Path, publish: impl Fn(&Path) -> Result<T>) -> Result<T> {
    let publisher = Publisher::new(disk);
    let staged = trash::name(target);
    let value = publish(&staged)?;
    if publisher.exchange(&staged, target)? {
        trash::discard(disk, &staged);
        return Ok(value);
    }
    // Some network file systems cannot exchange two names. Publish the new checkpoint next to the old one, as the same
    // update of a later attempt, before removing the old one.
    let beside = free_name(target);
    publisher.rename(&staged, &beside, Rename::New)?;
    trash::remove(disk, target)?;
    publisher.rename(&beside, target, Rename::New)?;
    Ok(value)
}

/// Writes all files and checks their sizes on disk, then writes the manifest.
///
/// Files are fsynced in groups after they are written, which keeps the disk busy between files.
fn fill(
    publisher: Publisher,
    folder: &Path,
    state: &State,
    source: Files,
    attempt: u64,
) -> Result<()> {
    step("save.after_create", folder)?;
    let (mut files, mut unsynced) = (Vec::new(), Vec::new());
    source.try_for_each(|image| {
        let (entry, written) = write_file(publisher, folder, image)?;
        unsynced.push((written, entry.bytes));
        files.push(entry);
        if unsynced.len() == UNSYNCED {
            unsynced.drain(..).try_for_each(sync)?;
        }
        step("save.after_shard", folder)
    })?;
    unsynced.into_iter().try_for_each(sync)?;
    state.condition.as_ref().map_or(Ok(()), |holds| holds(&files))?;
    let program = cli::program();
    let manifest = Manifest {
        format: FORMAT,
        created: time::now_utc(),
        version: program.version,
        commit: program.commit,
        host: host::name(),
        attempt,
        task: state.task.clone(),
        update: state.update,
        world: state.world.max(1),
        seed: state.seed,
        config_hash: state.config_hash.clone(),
        data_hash: state.data_hash.clone(),
        dependencies: state.dependencies.clone(),
        metrics: state.metrics.clone(),
        monitor: state.monitor.clone(),
        direction: state.direction,
        progress: state.progress.clone(),
        config: state.config.clone(),
        files,
    };
    let text = manifest.encode()?;
    // Fsync the directory first, so that a crash never leaves a manifest without the files that it lists, not even in a
    // temporary directory.
    publisher.names(folder)?;
    step("save.before_manifest", folder)?;
    let path = folder.join(manifest::NAME);
    publisher.inner_bytes(&path, &text)?.sync()?;
    step("save.after_manifest", folder)?;
    state.may_be_written() // checked last, just before the rename
}

/// A named point at which tests can inject a failure.
pub(super) fn step(point: &str, path: &Path) -> Result<()> {
    fail::point(point).map_err(|cause| Error::io(path, cause))
}

/// Writes a file while two other threads hash the file and its tensors; a single thread computing both hashes is slower
/// than a disk.
fn write_file(publisher: Publisher, folder: &Path, image: &Image) -> Result<(FileEntry, Written)> {
    let name = format!("{}.safetensors", image.stem());
    if !is_plain_name(&name) {
        return Err(Error::bug(format!("{name:?} is not a valid file name")));
    }
    let bytes = image.bytes();
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| blake3::hash(bytes).to_hex().to_string());
        let tensors = scope.spawn(|| image.entries());
        let path = folder.join(&name);
        let written =
            publisher.inner_file(&path, bytes.len() as u64, |file| file.write_all(bytes))?;
        let (Ok(blake3), Ok(tensors)) = (whole.join(), tensors.join()) else {
            return Err(Error::bug("a hashing thread panicked"));
        };
        Ok((FileEntry { name, bytes: bytes.len() as u64, blake3, tensors }, written))
    })
}

/// Fsyncs a file and checks that its size is `bytes` bytes.
fn sync((file, bytes): (Written, u64)) -> Result<()> {
    let path = file.path().to_path_buf();
    file.sync()?;
    let size = fs::symlink_metadata(&path).map_err(|cause| Error::io(&path, cause))?.len();
    if size == bytes {
        return Ok(());
    }
    Err(Error::io(&path, format!("only {size} of {bytes} bytes were written")))
}
