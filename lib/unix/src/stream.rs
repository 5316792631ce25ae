//! Large files written past the page cache.
//!
//! Through the page cache every byte is copied once more and then waits for writeback, at a fraction
//! of what the disk can do. A [`Stream`] gathers bytes in aligned pieces and lets a thread write them
//! with O_DIRECT, so that whoever makes the bytes (and hashes them) goes on meanwhile. Where the file
//! system does not take such writes, they go through the page cache as usual.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::disk::DiskFile;

/// Alignment of addresses, offsets and lengths: no disk or file system asks for more.
const ALIGN: usize = 4096;
/// Bytes of a write: large enough to keep a disk busy.
const PIECE: usize = 4 << 20;
/// Pieces that are filled, waiting or written at one time.
const PIECES: usize = 3;

/// A new file that is written from its start to its end.
#[derive(Debug)]
pub struct Stream {
    full: Option<SyncSender<Piece>>,
    empty: Receiver<Piece>,
    current: Piece,
    writer: Option<JoinHandle<io::Result<File>>>,
}

impl DiskFile for Stream {
    /// Waits until everything is written and durable. Nothing can be written after it.
    fn sync(&mut self) -> io::Result<()> {
        if self.current.filled > 0 {
            self.hand_over()?;
        }
        self.join()?.sync_all()
    }
}

/// Bytes at an aligned address.
#[derive(Debug)]
struct Piece {
    memory: Vec<u8>,
    start: usize,
    filled: usize,
}

impl Piece {
    fn new() -> Self {
        let memory = vec![0; PIECE + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Self { memory, start, filled: 0 }
    }

    /// Takes over as much as fits; returns the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let count = bytes.len().min(PIECE - self.filled);
        let at = self.start + self.filled;
        self.memory[at..at + count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        &bytes[count..]
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }
}

impl Stream {
    /// Creates `path`, which must not exist, for `size` bytes; the disk space is taken at once where
    /// the file system can do that.
    pub fn create(path: &Path, size: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        let file = match direct {
            // Refused by the file system, possibly after the file was made.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => options.open(path)?,
                }
            }
            other => other?,
        };
        let taken = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size.max(1));
        // Any other error: the space is not taken in advance, and writing will tell.
        if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = taken {
            return Err(error.into());
        }
        Self::into(file)
    }

    /// Writes to `file`, which is empty.
    fn into(file: File) -> io::Result<Self> {
        let (full, filled) = sync_channel::<Piece>(PIECES);
        let (give_back, empty) = sync_channel::<Piece>(PIECES);
        for _ in 1..PIECES {
            // The channel has room for all of them.
            give_back.try_send(Piece::new()).map_err(|_| dead())?;
        }
        let writer = std::thread::Builder::new()
            .name("stream".into())
            .spawn(move || write_all(file, &filled, &give_back))?;
        Ok(Self { full: Some(full), empty, current: Piece::new(), writer: Some(writer) })
    }

    /// Gives the current piece to the thread and takes an empty one.
    fn hand_over(&mut self) -> io::Result<()> {
        let Ok(mut next) = self.empty.recv() else { return Err(self.failure()) };
        next.filled = 0;
        let piece = std::mem::replace(&mut self.current, next);
        match self.full.as_ref().map(|full| full.send(piece)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failure()),
        }
    }

    fn failure(&mut self) -> io::Error {
        self.join().err().unwrap_or_else(dead)
    }

    fn join(&mut self) -> io::Result<File> {
        self.full = None; // the thread ends when nothing more can come
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(dead()),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.current.take(rest);
            if self.current.filled == PIECE {
                self.hand_over()?;
            }
        }
        Ok(bytes.len())
    }

    /// Does nothing: bytes are on the disk after [`DiskFile::sync`], and not before.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.join()); // given up: how it ended does not matter any more
    }
}

fn dead() -> io::Error {
    io::Error::other("the thread that writes the file died")
}

fn write_all(file: File, full: &Receiver<Piece>, empty: &SyncSender<Piece>) -> io::Result<File> {
    let mut at = 0;
    for piece in full {
        let bytes = piece.bytes();
        if !bytes.len().is_multiple_of(ALIGN) {
            through_the_cache(&file)?; // the last piece: its end is nobody's border
        }
        match file.write_all_at(bytes, at) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                through_the_cache(&file)?;
                file.write_all_at(bytes, at)?;
            }
            other => other?,
        }
        at += bytes.len() as u64;
        // Nobody waits for it any more when everything has been handed over.
        drop(empty.try_send(piece));
    }
    Ok(file)
}

/// From here on this file is written like any other.
fn through_the_cache(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::DIRECT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a size, none like its neighbours.
    fn content(size: usize) -> Vec<u8> {
        (0..size).map(|i| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
    }

    #[test]
    fn every_size_arrives_whole_however_it_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        for size in [0, 1, ALIGN - 1, ALIGN, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 12_345] {
            for step in [97_531, PIECE, usize::MAX] {
                let path = folder.path().join(format!("{size}-{step}"));
                let bytes = content(size);
                let mut stream = Stream::create(&path, size as u64).unwrap();
                for part in bytes.chunks(step.min(size.max(1))) {
                    stream.write_all(part).unwrap();
                }
                stream.sync().unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "{size} in steps of {step}");
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
        // More than any disk has, asked before anything is written.
        let error = Stream::create(&folder.path().join("b"), 1 << 60).unwrap_err();
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::FileTooLarge];
        assert!(kinds.contains(&error.kind()), "{error}");
    }

    #[test]
    fn a_write_that_fails_is_told_at_the_latest_when_it_must_be_durable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for size in [1, PIECE, 9 * PIECE + 1] {
            std::fs::write(&path, "").unwrap();
            // Not open for writing: every write fails.
            let mut stream = Stream::into(File::open(&path).unwrap()).unwrap();
            let written = stream.write_all(&content(size)).and_then(|()| stream.sync());
            assert_eq!(written.unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
            assert!(stream.sync().is_err(), "and never becomes right");
        }
    }

    #[test]
    fn dropped_halfway_it_ends_its_thread() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = Stream::create(&folder.path().join("a"), 3 * PIECE as u64).unwrap();
        stream.write_all(&content(2 * PIECE + 5)).unwrap();
        drop(stream);
    }
}
