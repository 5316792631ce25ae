//! A memory-mapped file, mapped once for all arrays in it.
//!
//! While the page cache holds the file, copying from mapped memory takes about half as long as `pread`, most of which
//! is the system call. For pages that are not cached, a map makes the kernel fetch page by page, or read ahead data
//! that is not needed; `pread` fetches exactly the requested range at once. Reads therefore use `pread` until many
//! consecutive reads have been fast.
//!
//! Pages that were read through a map count as memory of the process until it exits or releases them. A file that is
//! read once is therefore read with `pread`, or the pages of each trajectory are released right after reading, so the
//! process stays small regardless of the file size. Only callers that read a file repeatedly opt out with
//! [`MappedFile::read_often`].

use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use unix::{Error, Result, retry, small};

/// Number of consecutive reads that must be fast before the map is used.
const IN_A_ROW: u32 = 64;
/// Value of [`MappedFile::by_position`] for a file that is read only once.
const ONCE: u32 = u32::MAX;
/// A read from the page cache takes at most this many nanoseconds, plus one nanosecond per byte: no disk or network is
/// as fast.
const FAST: u64 = 20_000;
/// Interval in nanoseconds after which a copy checks the size of the file again.
const LOOK: u64 = 1_000_000;

/// A mapped file. Can be shared between threads.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    opened: Instant,
    /// Time of the last size check, in nanoseconds after `opened`.
    looked: AtomicU64,
    /// Number of further reads that must be fast before the map is used, or [`ONCE`].
    by_position: AtomicU32,
}

impl MappedFile {
    /// Errors: 66 when it is not a regular file or cannot be opened, 74 when it cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(path, small::open(path)?)
    }

    /// Maps an open file; error messages call it `path`.
    pub fn of(path: &Path, file: File) -> Result<Self> {
        // SAFETY: the map is read-only, and the size is checked before each read. If another process truncates the file
        // during a read, or the disk fails, SIGBUS ends the program without further damage.
        let map = unsafe { Mmap::map(&file) }
            .map_err(|cause| Error::io(path, format_args!("cannot be mapped: {cause}")))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            map,
            opened: Instant::now(),
            looked: AtomicU64::new(0),
            by_position: AtomicU32::new(ONCE),
        })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Size of the file in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.map.len() as u64
    }

    /// Declares that the file will be read repeatedly, in any order: cached data is then read through the map.
    pub fn read_often(&self) {
        self.by_position.store(IN_A_ROW, Relaxed);
    }

    /// Returns `count` bytes at offset `from`. Panics beyond the end of the file. Errors: 74 if the file was truncated.
    pub fn bytes(&self, from: usize, count: usize) -> Result<&[u8]> {
        self.look(self.now())?;
        Ok(&self.map[from..from + count])
    }

    /// Calls `of` with `count` bytes at offset `from`, and releases their pages unless the file is read often. Panics
    /// and errors: see [`bytes`](Self::bytes).
    pub fn with<T>(&self, from: usize, count: usize, of: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let made = of(self.bytes(from, count)?);
        if self.by_position.load(Relaxed) == ONCE {
            // Other threads that read these pages find them in the page cache; the advice is only an optimization.
            // SAFETY: the map is shared and read-only, so its content is that of the file before and after.
            let _ =
                unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, count) };
        }
        Ok(made)
    }

    /// Copies bytes starting at offset `from`. Panics beyond the end of the file. Errors: 74 if the file cannot be read
    /// or was truncated.
    pub fn read(&self, from: usize, out: &mut [u8]) -> Result<()> {
        let left = self.by_position.load(Relaxed);
        if left == ONCE {
            return self.read_at(from, out);
        }
        let start = self.now();
        if left > 0 {
            self.read_at(from, out)?;
        } else {
            if start - self.looked.load(Relaxed).min(start) > LOOK {
                self.look(start)?;
            }
            out.copy_from_slice(&self.map[from..from + out.len()]);
        }
        if self.now() - start > FAST + out.len() as u64 {
            self.by_position.store(IN_A_ROW, Relaxed);
        } else if left > 0 {
            self.by_position.store(left - 1, Relaxed);
        }
        Ok(())
    }

    fn read_at(&self, from: usize, out: &mut [u8]) -> Result<()> {
        let read = retry::reading(&self.path, || self.file.read_exact_at(out, from as u64));
        read.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Nanoseconds since the file was opened.
    fn now(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    /// Checks that the file has not shrunk.
    fn look(&self, now: u64) -> Result<()> {
        let bytes = self.file.metadata().map_err(|cause| Error::io(&self.path, cause))?.len();
        if bytes < self.size() {
            let what = format_args!("{bytes} bytes, {} when it was opened", self.size());
            return Err(Error::io(&self.path, what));
        }
        self.looked.store(now, Relaxed);
        Ok(())
    }
}
