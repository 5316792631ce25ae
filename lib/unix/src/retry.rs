//! Reads input files again after an error that passes, as network file systems report when a server restarts, a lock is
//! moved or a file handle has become stale.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, thread};

use rustix::io::Errno;

/// Waits between the attempts at a read.
const WAITS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Errors that may pass: of a disk or a server, a stale file handle, a time limit, a mount that was lost.
const PASSING: [Errno; 5] =
    [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::REMOTEIO, Errno::NOTCONN];

static RETRIES: AtomicU64 = AtomicU64::new(0);

/// Number of reads that this process has repeated.
pub fn count() -> u64 {
    RETRIES.load(Ordering::Relaxed)
}

/// Calls `read`, which opens or reads the file at `path`; again up to three times, after 1, 2 and 4 seconds, while its error
/// is one that may pass. Every retry is counted and reported as a warning. Errors: the last one.
pub fn reading<T>(path: &Path, read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    reading_with(path, &WAITS, read)
}

fn reading_with<T>(
    path: &Path,
    waits: &[Duration],
    mut read: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut attempt = || crate::fail::point("inputs.read").and_then(|()| read());
    for (number, wait) in waits.iter().enumerate() {
        match attempt() {
            Err(cause) if may_pass(&cause) => {
                RETRIES.fetch_add(1, Ordering::Relaxed);
                let (path, seconds) = (path.display(), wait.as_secs_f64());
                let number = format!("{} of {}", number + 1, waits.len());
                crate::warn!("{path}: {cause}; reading again in {seconds} s ({number})");
                thread::sleep(*wait);
            }
            result => return result,
        }
    }
    attempt()
}

fn may_pass(cause: &io::Error) -> bool {
    Errno::from_io_error(cause).is_some_and(|errno| PASSING.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_may_pass_are_retried_and_others_are_not() {
        let path = Path::new("a file");
        let read = |errors: &[Errno]| {
            let (before, mut left, mut reads) = (count(), errors.iter(), 0);
            let result = reading_with(path, &[Duration::ZERO; 3], || {
                reads += 1;
                left.next().map_or(Ok(reads), |errno| Err((*errno).into()))
            });
            assert!(count() > before || reads == 1);
            (result.map_err(|cause| cause.raw_os_error()), reads)
        };
        assert_eq!(read(&[]), (Ok(1), 1));
        assert_eq!(read(&[Errno::STALE, Errno::TIMEDOUT]), (Ok(3), 3));
        let lasting = [Errno::IO; 9];
        assert_eq!(read(&lasting), (Err(Some(Errno::IO.raw_os_error())), 4));
        assert_eq!(read(&[Errno::NOENT]), (Err(Some(Errno::NOENT.raw_os_error())), 1));
        assert_eq!(read(&[Errno::IO, Errno::ACCESS]), (Err(Some(Errno::ACCESS.raw_os_error())), 2));
    }
}
