//! Resource limits of the process (`ulimit`, SLURM), named where one of them made something fail.

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGABRT, SIGXFSZ};
use signal_hook::low_level;

use crate::space::human_bytes;
use crate::{Exit, diagnostics};

/// A limit, the errors that it leads to, and how a shell names it.
struct Limit {
    resource: Resource,
    errors: &'static [Errno],
    what: &'static str,
    name: &'static str,
    option: &'static str,
    /// Whether it is a number of things, not of bytes.
    counts: bool,
}

const LIMITS: [Limit; 5] = [
    Limit {
        resource: Resource::Fsize,
        errors: &[Errno::FBIG],
        what: "the size of a file",
        name: "RLIMIT_FSIZE",
        option: "ulimit -f",
        counts: false,
    },
    Limit {
        resource: Resource::As,
        errors: &[Errno::NOMEM, Errno::AGAIN],
        what: "the address space",
        name: "RLIMIT_AS",
        option: "ulimit -v",
        counts: false,
    },
    Limit {
        resource: Resource::Data,
        errors: &[Errno::NOMEM, Errno::AGAIN],
        what: "the data segment",
        name: "RLIMIT_DATA",
        option: "ulimit -d",
        counts: false,
    },
    Limit {
        resource: Resource::Nofile,
        errors: &[Errno::MFILE],
        what: "the number of open files",
        name: "RLIMIT_NOFILE",
        option: "ulimit -n",
        counts: true,
    },
    Limit {
        resource: Resource::Nproc,
        errors: &[Errno::AGAIN],
        what: "the number of processes and threads",
        name: "RLIMIT_NPROC",
        option: "ulimit -u",
        counts: true,
    },
];

impl Limit {
    /// The limit in words, with how to raise it; none when there is no limit.
    fn in_words(&self) -> Option<String> {
        let found = getrlimit(self.resource);
        let shown = |bound: u64| if self.counts { bound.to_string() } else { human_bytes(bound) };
        let current = found.current?;
        let advice = match found.maximum {
            None => format!("raise it with `{} unlimited`", self.option),
            Some(most) if most > current => {
                format!("raise it with `{}`, up to {}", self.option, shown(most))
            }
            Some(_) => format!(
                "it is a hard limit (`{} -H`): the batch system or an administrator sets it",
                self.option
            ),
        };
        let shown = shown(current);
        Some(format!("{} limits {} to {shown}; {advice}", self.name, self.what))
    }
}

/// The limits behind an error, in words; none when nothing is limited.
fn reason(errno: Errno) -> Option<String> {
    let words: Vec<String> = LIMITS
        .iter()
        .filter(|limit| limit.errors.contains(&errno))
        .filter_map(Limit::in_words)
        .collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Puts the limit and its value in place of the error number of a limit.
///
/// It looks at the text because causes come from std, rustix, HDF5 and MPI, and many reach a message only
/// as words. All of them name the number: `(os error 27)`, `errno = 27`.
/// Every message passes here, so an allocation that failed before is known not to have ended the thread.
pub(crate) fn explain(text: Cow<'_, str>) -> Cow<'_, str> {
    FAILED.set(0);
    if !text.contains("os error ") && !text.contains("errno = ") {
        return text;
    }
    let mut text = text.into_owned();
    // EAGAIN has many causes; a thread or process that cannot be started lacks memory for its stack, or an id.
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

/// Ends the program because memory for `what` cannot be had; in place of an abort.
pub fn out_of_memory(bytes: usize, what: &str) -> ! {
    let reason =
        reason(Errno::NOMEM).unwrap_or_else(|| "the machine or its job has no more".into());
    diagnostics::say(format_args!(
        "cannot allocate {} for {what}: {reason}",
        human_bytes(bytes as u64)
    ));
    low_level::exit(Exit::Failure as i32)
}

thread_local! {
    /// Size of the last allocation of this thread that failed; 0 once there was a message, for then the thread
    /// has survived it.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}
/// The words for an abort after a failed allocation: nothing can be allocated then.
static WORDS: OnceLock<(String, String)> = OnceLock::new();

/// The system's allocator, which remembers what it could not give.
struct Remembering;

fn remembered(start: *mut u8, bytes: usize) -> *mut u8 {
    if start.is_null() {
        FAILED.set(bytes);
    }
    start
}

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Remembering {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of `System`.
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

/// A file that grows beyond its limit gives EFBIG instead of ending the process, and an allocation that
/// fails ends it with a message instead of an abort.
pub(crate) fn install() {
    // A handler of our own and not SIG_IGN, which children would inherit. Without it the process ends as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    let reason =
        reason(Errno::NOMEM).unwrap_or_else(|| "the machine or its job has no more".into());
    let _ = WORDS.set((format!("{}: cannot allocate ", diagnostics::speaker()), reason));
    // SAFETY: the handler formats a number on its stack, writes and ends the process by `_exit`: it allocates
    // nothing, takes no lock and does not panic.
    let _ = unsafe { low_level::register(SIGABRT, aborted) };
}

/// Rust aborts when an allocation failed that its caller could not do without. Any other abort takes its course.
fn aborted() {
    let bytes = FAILED.get();
    let Some((before, reason)) = WORDS.get().filter(|_| bytes > 0) else {
        let _ = low_level::emulate_default_handler(SIGABRT);
        return;
    };
    let mut line = [0_u8; 1024];
    let mut rest = &mut line[..];
    let _ = writeln!(rest, "{before}{bytes} bytes: {reason}"); // cut where it is longer
    let left = rest.len();
    let _ = rustix::io::write(std::io::stderr(), &line[..line.len() - left]);
    low_level::exit(Exit::Failure as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the child of the next test does: it ends by SIGABRT, or with a message.
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
