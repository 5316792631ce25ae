//! Resource limits of the process (`ulimit`, SLURM), which error messages name when a limit causes a failure.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGABRT, SIGXFSZ};
use signal_hook::low_level;

use crate::space::human_bytes;
use crate::{Error, Exit, diagnostics};

/// A resource, the errors of calls that exceed its limit, the limit's name after `RLIMIT_`, its `ulimit` option, and a
/// description of the limited quantity.
type Limit = (Resource, &'static [Errno], &'static str, char, &'static str);

const LIMITS: [Limit; 5] = [
    (Resource::Fsize, &[Errno::FBIG], "FSIZE", 'f', "the size of a file"),
    (Resource::As, &[Errno::NOMEM, Errno::AGAIN], "AS", 'v', "the address space"),
    (Resource::Data, &[Errno::NOMEM, Errno::AGAIN], "DATA", 'd', "the data segment"),
    (Resource::Nofile, &[Errno::MFILE], "NOFILE", 'n', "the number of open files"),
    (Resource::Nproc, &[Errno::AGAIN], "NPROC", 'u', "the number of processes and threads"),
];

/// Describes the limit and how to raise it; `None` if there is no limit.
fn in_words(&(resource, _, name, option, what): &Limit) -> Option<String> {
    let found = getrlimit(resource);
    let counts_items = matches!(resource, Resource::Nofile | Resource::Nproc);
    let shown = |bound: u64| if counts_items { bound.to_string() } else { human_bytes(bound) };
    let current = found.current?;
    let advice = match found.maximum {
        None => format!("raise it with `ulimit -{option} unlimited`"),
        Some(most) if most > current => {
            format!("raise it with `ulimit -{option}`, up to {}", shown(most))
        }
        Some(_) => format!(
            "it is a hard limit (`ulimit -{option} -H`): the batch system or an administrator sets it"
        ),
    };
    Some(format!("RLIMIT_{name} limits {what} to {}; {advice}", shown(current)))
}

/// Describes the limits that may have caused an error; `None` if none is set.
fn reason(errno: Errno) -> Option<String> {
    let causes = LIMITS.iter().filter(|(_, errors, ..)| errors.contains(&errno));
    let words: Vec<String> = causes.filter_map(in_words).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

fn why_no_memory() -> String {
    reason(Errno::NOMEM).unwrap_or_else(|| "the machine or its job has no more".into())
}

/// Replaces the error number in a message with the limit that caused it and its value.
///
/// It works on text because errors come from std, rustix, HDF5 and MPI, and many reach a message only as text. All of
/// them contain the number: `(os error 27)`, `errno = 27`. Every message passes through here, which shows that an
/// earlier failed allocation did not end the thread.
pub(crate) fn explain(text: Cow<'_, str>) -> Cow<'_, str> {
    FAILED.set(0);
    if !text.contains("os error ") && !text.contains("errno = ") {
        return text;
    }
    let mut text = text.into_owned();
    // EAGAIN has many causes. If a thread or process cannot be started, its stack has no memory or there is no free id.
    let is_start = text.contains("thread") || text.contains("start a process");
    let of_start = is_start.then_some(Errno::AGAIN);
    for errno in [Errno::FBIG, Errno::NOMEM, Errno::MFILE].into_iter().chain(of_start) {
        let number = errno.raw_os_error();
        for (written, open, close) in
            [(format!("(os error {number})"), "(", ")"), (format!("errno = {number},"), "", ",")]
        {
            if text.contains(&written)
                && let Some(reason) = reason(errno)
            {
                text = text.replace(&written, &format!("{open}{reason}{close}"));
            }
        }
    }
    Cow::Owned(text)
}

/// Records the failure of a program before it exits.
type Recorder = Box<dyn FnOnce(&Error) + Send>;

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// Registers `record` to be called by [`out_of_memory`] before it exits; replaces an earlier one.
pub fn at_out_of_memory(record: impl FnOnce(&Error) + Send + 'static) {
    *RECORDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(record));
}

/// Exits because memory for `what` cannot be allocated; used instead of aborting.
pub fn out_of_memory(bytes: usize, what: &str) -> ! {
    let (size, reason) = (human_bytes(bytes as u64), why_no_memory());
    let error = Error::out_of_memory(format!("cannot allocate {size} for {what}: {reason}"));
    diagnostics::say_error(&error);
    let recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(record) = recorder {
        record(&error);
    }
    low_level::exit(Exit::Failure as i32)
}

thread_local! {
    /// Size in bytes of the last failed allocation of this thread. Every message resets it to 0, because the thread has
    /// then survived the failure.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}
/// The prepared message for an abort after a failed allocation, when no memory can be allocated for a new one.
static WORDS: OnceLock<(String, String)> = OnceLock::new();

/// The system allocator, extended to record the size of a failed allocation.
struct Remembering;

fn remembered(start: *mut u8, bytes: usize) -> *mut u8 {
    if start.is_null() {
        FAILED.set(bytes);
    }
    start
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Remembering {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `System`.
        remembered(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        remembered(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        remembered(unsafe { System.realloc(start, layout, size) }, size)
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Remembering = Remembering;

/// Makes a write beyond the file size limit fail with EFBIG instead of ending the process, and makes a failed
/// allocation exit with a message instead of an abort.
pub(crate) fn install() {
    // Use a handler instead of SIG_IGN, which children would inherit. If it cannot be installed, such a write still
    // ends the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    let _ = WORDS.set((format!("{}: cannot allocate ", diagnostics::speaker()), why_no_memory()));
    // SAFETY: the handler formats a number on its stack, writes, and ends the process with `_exit`: it does not
    // allocate, lock or panic.
    let _ = unsafe { low_level::register(SIGABRT, aborted) };
}

/// Handles the abort that follows a failed allocation; any other abort proceeds as usual.
fn aborted() {
    let bytes = FAILED.get();
    let Some((before, reason)) = WORDS.get().filter(|_| bytes > 0) else {
        let _ = low_level::emulate_default_handler(SIGABRT);
        return;
    };
    let mut line = [0_u8; 1024];
    let mut rest = &mut line[..];
    let _ = writeln!(rest, "{before}{bytes} bytes: {reason}"); // truncated to the buffer
    let left = rest.len();
    let _ = rustix::io::write(std::io::stderr(), &line[..line.len() - left]);
    low_level::exit(Exit::Failure as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The child process of the next test: it ends by SIGABRT or with a message.
    #[test]
    #[ignore = "run by the next test"]
    fn aborts() {
        install();
        match std::env::var("LIMITS_ABORT").as_deref() {
            Ok("memory") => drop(Vec::<u8>::with_capacity(1 << 46)),
            Ok("other") => {
                assert!(Vec::<u8>::new().try_reserve(1 << 46).is_err());
                diagnostics::say("not enough memory for that");
                std::process::abort();
            }
            _ => {}
        }
    }

    #[test]
    fn only_an_abort_for_want_of_memory_is_called_one() {
        let program = std::env::current_exe().unwrap();
        for (reason, code, told) in [("memory", Some(1), true), ("other", None, false)] {
            let mut child = std::process::Command::new(&program);
            child.args(["--ignored", "--exact", "--nocapture", "limits::tests::aborts"]);
            let output = child.env("LIMITS_ABORT", reason).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), code, "{reason}: {stderr}");
            let bytes = format!("cannot allocate {} bytes", 1_u64 << 46);
            assert_eq!(stderr.contains(&bytes), told, "{reason}: {stderr}");
        }
    }

    #[test]
    fn an_error_number_becomes_a_limit() {
        // Every process has a limit on open files.
        let text = "a: Too many open files (os error 24)";
        let told = explain(Cow::Borrowed(text));
        assert!(told.starts_with("a: Too many open files (RLIMIT_NOFILE limits "), "{told}");
        assert!(told.contains("ulimit -n") && !told.contains("os error"), "{told}");
        let told = explain(Cow::Borrowed("H5F: errno = 24, error message = 'x'"));
        assert!(
            told.contains("RLIMIT_NOFILE") && told.ends_with(", error message = 'x'"),
            "{told}"
        );
        let other = "a: No such file or directory (os error 2)";
        assert_eq!(explain(Cow::Borrowed(other)), other);
    }
}
