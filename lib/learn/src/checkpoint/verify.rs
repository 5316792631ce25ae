//! Verifies every byte of a checkpoint against its manifest.

use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Serialize;
use unix::Result;

use super::PIECE;
use super::manifest::{FileEntry, Manifest, TensorEntry};
use super::problem::Problem;
use super::tensor_file::{TensorFile, open_sized};

/// Result of verifying a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Path of the checkpoint directory.
    pub path: PathBuf,
    /// Updates completed; None when the manifest cannot be read.
    pub update: Option<u64>,
    /// Number of files in the manifest.
    pub files: usize,
    /// Number of tensors in these files.
    pub tensors: usize,
    /// Total file size in bytes.
    pub bytes: u64,
    /// Damage found; empty when the checkpoint is good.
    pub damage: Vec<Damage>,
}

/// Damage to one file or tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Name of the damaged file.
    pub file: String,
    /// Name of the damaged tensor; None if the damage is not within a single tensor.
    pub tensor: Option<String>,
    /// Description of the damage.
    pub problem: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            Some(tensor) => write!(f, "{}: tensor {tensor}: {}", self.file, self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// Reads and verifies a whole checkpoint. Errors: 66 when it does not exist.
pub fn verify(path: &Path) -> Result<VerifyReport> {
    let mut report = VerifyReport { path: path.to_path_buf(), ..VerifyReport::default() };
    if !path.is_dir() {
        return Err(unix::Error::open(path, "no such checkpoint"));
    }
    match Manifest::read(path) {
        Ok(manifest) => {
            report.update = Some(manifest.update);
            report.files = manifest.files.len();
            report.tensors = manifest.files.iter().map(|file| file.tensors.len()).sum();
            report.bytes = manifest.bytes();
            for file in &manifest.files {
                file_damage(path, file, &mut report.damage);
            }
        }
        Err(problem) => report.damage.push(whole(super::manifest::NAME, &problem)),
    }
    Ok(report)
}

fn whole(file: &str, problem: &Problem) -> Damage {
    Damage { file: file.into(), tensor: None, problem: problem.to_string() }
}

fn file_damage(folder: &Path, entry: &FileEntry, damage: &mut Vec<Damage>) {
    let before = damage.len();
    if let Err(problem) = open_sized(folder, entry) {
        damage.push(whole(&entry.name, &problem));
    }
    match hash_parts(folder, entry) {
        Ok((same, changed)) => {
            if !same && changed.is_empty() && damage.len() == before {
                let problem = Problem::changed(format!("{}: its header", entry.name));
                damage.push(whole(&entry.name, &problem));
            }
            damage.extend(changed.into_iter().map(|(tensor, problem)| Damage {
                file: entry.name.clone(),
                tensor: Some(tensor.name.clone()),
                problem,
            }));
        }
        // A missing file has already been reported.
        Err(_) if damage.len() > before => {}
        Err(cause) => {
            damage.push(whole(&entry.name, &Problem::Damaged(format!("{}: {cause}", entry.name))));
        }
    }
    // Only possible in files written by other programs: an invalid header with a matching hash.
    if damage.len() == before
        && let Err(problem) = TensorFile::open(folder, entry)
    {
        damage.push(whole(&entry.name, &problem));
    }
}

/// Checks whether the file hash matches, and returns the tensors whose hashes do not. Tensor positions are taken from
/// the manifest, so that a damaged header does not hide damaged tensors.
fn hash_parts<'a>(
    folder: &Path,
    entry: &'a FileEntry,
) -> std::io::Result<(bool, Vec<(&'a TensorEntry, String)>)> {
    let path = folder.join(&entry.name);
    // Opening a FIFO would block.
    if !std::fs::symlink_metadata(&path)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut file = std::fs::File::open(&path)?;
    let mut sorted: Vec<&TensorEntry> = entry.tensors.iter().collect();
    sorted.sort_by_key(|tensor| (tensor.start, tensor.end));
    let mut all = blake3::Hasher::new();
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    let mut changed = Vec::new();
    for tensor in sorted {
        at += hash_range(&mut file, at, tensor.start, &mut buffer, &mut all, None)?;
        let mut own = blake3::Hasher::new();
        at += hash_range(&mut file, at, tensor.end, &mut buffer, &mut all, Some(&mut own))?;
        if at < tensor.end {
            changed.push((tensor, "is truncated".into()));
        } else if own.finalize().to_hex().as_str() != tensor.blake3 {
            changed.push((tensor, "was changed after it was written".into()));
        }
    }
    // Stop at the expected size: a longer file has already been reported.
    hash_range(&mut file, at, entry.bytes, &mut buffer, &mut all, None)?;
    Ok((all.finalize().to_hex().as_str() == entry.blake3, changed))
}

/// Hashes the existing part of the bytes `at..end`; returns its length in bytes.
fn hash_range(
    file: &mut std::fs::File,
    at: u64,
    end: u64,
    buffer: &mut [u8],
    all: &mut blake3::Hasher,
    mut own: Option<&mut blake3::Hasher>,
) -> std::io::Result<u64> {
    file.seek(SeekFrom::Start(at))?;
    let mut left = end.saturating_sub(at);
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let got = match file.read(&mut buffer[..wanted]) {
            Ok(0) => break,
            Ok(got) => got,
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(cause) => return Err(cause),
        };
        all.update(&buffer[..got]);
        if let Some(own) = own.as_deref_mut() {
            own.update(&buffer[..got]);
        }
        left -= got as u64;
    }
    Ok(end.saturating_sub(at) - left)
}
