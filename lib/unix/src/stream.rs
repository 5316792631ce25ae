//! Writes large files with direct I/O, bypassing the page cache.
//!
//! Writing through the page cache copies every byte once more and then waits for writeback, at a fraction of the disk's
//! bandwidth. A [`Stream`] writes with O_DIRECT, straight from the caller's buffer, as long as the data is aligned both
//! in memory and in the file. From the first unaligned write on, and on file systems that do not support O_DIRECT, it
//! writes through the page cache.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::disk::DiskFile;

/// Alignment of addresses, offsets and lengths in bytes; no disk or file system requires more.
const ALIGN: usize = 4096;
/// Maximum size of a write in bytes: large enough to keep the disk busy, small enough that a killed process ends
/// quickly.
const PIECE: usize = 16 << 20;

/// A new file that is written sequentially.
#[derive(Debug)]
pub struct Stream {
    file: File,
    at: u64,
    direct: bool,
}

impl DiskFile for Stream {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Stream {
    /// Creates `path`, which must not exist, for `size` bytes; preallocates the space if the file system supports it.
    pub fn create(path: &Path, size: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        let (file, direct) = match direct {
            // The file system rejected O_DIRECT, possibly after creating the file.
            Err(error) if is_refused(&error) => match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => (options.open(path)?, false),
            },
            other => (other?, true),
        };
        let taken = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size.max(1));
        // Ignore other errors: the space is then not preallocated, and a shortage shows when writing.
        if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = taken {
            return Err(error.into());
        }
        Ok(Self { file, at: 0, direct })
    }

    /// Switches this file to writes through the page cache.
    fn through_the_cache(&mut self) -> io::Result<()> {
        let flags = fcntl_getfl(&self.file)?;
        fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        self.direct = false;
        Ok(())
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut bytes = &bytes[..bytes.len().min(PIECE)];
        if self.direct {
            let whole = bytes.len() - bytes.len() % ALIGN;
            if whole > 0
                && self.at.is_multiple_of(ALIGN as u64)
                && bytes.as_ptr().addr().is_multiple_of(ALIGN)
            {
                bytes = &bytes[..whole];
            } else if !bytes.is_empty() {
                self.through_the_cache()?;
            }
        }
        let count = match self.file.write_at(bytes, self.at) {
            Err(error) if self.direct && is_refused(&error) => {
                self.through_the_cache()?;
                self.file.write_at(bytes, self.at)?
            }
            other => other?,
        };
        self.at += count as u64;
        Ok(count)
    }

    /// Does nothing: only [`DiskFile::sync`] makes the data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the error means that O_DIRECT is not supported for this file or this write.
fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns memory with pseudo-random bytes, and the index of their start, `offset` bytes after an aligned address.
    fn content(size: usize, offset: usize) -> (Vec<u8>, usize) {
        let mut memory = vec![0; size + 2 * ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN) + offset;
        for (i, byte) in memory[start..start + size].iter_mut().enumerate() {
            *byte = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7];
        }
        (memory, start)
    }

    #[test]
    fn every_size_arrives_whole_wherever_it_lies_and_however_it_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        for size in [0, 1, ALIGN - 1, ALIGN, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 12_345] {
            for offset in [0, 8] {
                let (memory, start) = content(size, offset);
                let bytes = &memory[start..start + size];
                for step in [97_531, 64 * ALIGN, usize::MAX] {
                    let path = folder.path().join("a");
                    let mut stream = Stream::create(&path, size as u64).unwrap();
                    for part in bytes.chunks(step.min(size.max(1))) {
                        stream.write_all(part).unwrap();
                    }
                    stream.sync().unwrap();
                    let same = std::fs::read(&path).unwrap() == bytes;
                    assert!(same, "{size} from {offset} in steps of {step}");
                    std::fs::remove_file(&path).unwrap();
                }
            }
        }
    }

    #[test]
    fn what_exists_is_not_touched_and_a_full_disk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "kept").unwrap();
        let error = Stream::create(&path, 10).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        // This exceeds any disk, so it is rejected before anything is written.
        let error = Stream::create(&folder.path().join("b"), 1 << 60).unwrap_err();
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}
