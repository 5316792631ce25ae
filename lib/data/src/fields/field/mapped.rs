//! A file that is read where it lies: mapped into memory once, for all arrays in it.
//!
//! While the page cache has the file, a copy from mapped memory takes about half as long as a positional read,
//! most of which is the call. What the page cache lacks the kernel would fetch for a map page by page, or with
//! much that nobody asked for; a positional read fetches just what is read, at once. So reads go by position
//! until many in a row were fast.
//!
//! Pages that were read out of a map count as memory of the process until it ends or lets go of them. A file that
//! is gone through once is therefore read by position, or the pages of a trajectory let go of as soon as it was
//! read: whatever the size of the file, the process stays small. Only who reads it again and again says so
//! ([`MappedFile::read_often`]).

use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use unix::{Error, Result, small};

/// So many reads in a row must have been fast before the map is read.
const IN_A_ROW: u32 = 64;
/// Of [`MappedFile::by_position`]: it is gone through once.
const ONCE: u32 = u32::MAX;
/// A read from the page cache takes at most so many nanoseconds, and one more for each byte: no disk and no
/// network is as fast.
const FAST: u64 = 20_000;
/// After so many nanoseconds a copy looks at the size of the file again.
const LOOK: u64 = 1_000_000;

/// A file in memory. Shared by threads.
#[derive(Debug)]
pub(super) struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    opened: Instant,
    /// When the size was last seen to be what it was, in nanoseconds after `opened`.
    looked: AtomicU64,
    /// How many reads must be fast until the map is read; or [`ONCE`].
    by_position: AtomicU32,
}

impl MappedFile {
    /// Errors: 66 when it is no regular file or cannot be opened, 74 when it cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        small::require_file(path)?;
        Self::of(path, File::open(path).map_err(|cause| Error::open(path, cause))?)
    }

    /// An open file, called `path` in errors.
    pub fn of(path: &Path, file: File) -> Result<Self> {
        // SAFETY: the map is read-only, and the size is looked at before it is read. Who makes the file
        // shorter during a read, or a disk that fails, ends the program; nothing else is done on it.
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

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its size in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.map.len() as u64
    }

    /// It will be read again and again, in any order: what the page cache has is read out of the map.
    pub fn read_often(&self) {
        self.by_position.store(IN_A_ROW, Relaxed);
    }

    /// `count` bytes from `from` on. Panics beyond the size. Errors (74): the file was made shorter.
    pub fn bytes(&self, from: usize, count: usize) -> Result<&[u8]> {
        self.look(self.now())?;
        Ok(&self.map[from..from + count])
    }

    /// What `of` makes of `count` bytes from `from` on, which are let go of unless the file is read often. Panics
    /// and errors as [`bytes`](Self::bytes).
    pub fn with<T>(&self, from: usize, count: usize, of: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let made = of(self.bytes(from, count)?);
        if self.by_position.load(Relaxed) == ONCE {
            // Another thread that reads them finds them in the page cache; without the advice all works the same.
            // SAFETY: the map is shared and read-only: its content is the file's, before and after.
            let _ =
                unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, count) };
        }
        Ok(made)
    }

    /// Copies bytes from `from` on, those of many reads fast. Panics beyond the size. Errors (74): it cannot be
    /// read, or the file was made shorter.
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
        let read = self.file.read_exact_at(out, from as u64);
        read.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Nanoseconds since it was opened.
    fn now(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    /// Compares the size with what it was.
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
