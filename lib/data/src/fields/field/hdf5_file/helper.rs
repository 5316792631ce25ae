//! The helper process in which the HDF5 library reads files.
//!
//! The library trusts its input: on a damaged file it may crash, allocate without bound or never return. A program
//! therefore reads HDF5 files through a helper, which is the same executable started with [`OPTION`] and answers
//! requests on a pipe under limits on memory and CPU time. If the helper dies, the request becomes an error that names
//! the file, and the next request starts a new helper. Starting a helper takes about 10 ms, a request about 20 µs;
//! contiguous data is read by the program itself, without the library.
//!
//! In programs that have not called [`run_helper_if_requested`] (tests, examples) the library runs in the same process.

use super::library::Library;
use super::message::{Ask, HelperRequest, Reply, receive, send};
use bytemuck::Pod;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::io::{BufReader, stdin, stdout};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use unix::signal::Signals;
use unix::{Error, Exit};

/// Hidden first option that turns a program into the helper.
const OPTION: &str = "--read-hdf5";
/// CPU time per request, in seconds; reading part of a dataset gets one second more per MiB.
const CPU_SECONDS: u64 = 20;
/// CPU time in seconds for requests that open a file or list its contents; a damaged file may prolong them up to this
/// limit. Listing 20,000 groups takes 0.01 s in the dev build, 200 times less than the limit.
const CPU_SECONDS_TO_OPEN: u64 = 2;
/// Memory per request in bytes, on top of what the helper already uses; requests for numbers get an additional 8 times
/// their size. This is several times the maximum chunk size.
const MEMORY: u64 = 2 << 30;

/// Whether this program can start itself as a helper.
static STARTS: AtomicBool = AtomicBool::new(false);
static HELPER: Mutex<Option<Helper>> = Mutex::new(None);
static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// Serves as the helper until the pipe is closed, if the program was started as one. Otherwise HDF5 files are read
/// through a helper from now on. A program that reads fields must call this before anything else.
pub fn run_helper_if_requested() -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_none_or(|word| word != OPTION) {
        STARTS.store(true, Relaxed);
        return None;
    }
    // Signals to the process group are meant for the program, which may still need the helper's data to save its state.
    let _ = Signals::install();
    // When memory is short, the kernel should kill the helper instead of the program.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let (mut library, mut from, mut to) = (Library::default(), BufReader::new(stdin()), stdout());
    while let Ok(Some((request, _))) = receive::<HelperRequest, u8>(&mut from) {
        limit(&request.ask);
        let (reply, numbers) = library.answer(request);
        if send(&mut to, &reply, &numbers).is_err() {
            break;
        }
    }
    Some(ExitCode::SUCCESS)
}

/// Sets the limits for a request.
fn limit(ask: &Ask) {
    // A partial second counts as used.
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec as u64 + 1;
    lower(Resource::Cpu, used.saturating_add(cpu_seconds(ask)));
    let bytes = bytes(ask);
    let held = unix::memory::held().unwrap_or(0);
    lower(Resource::As, held.saturating_add(MEMORY).saturating_add(bytes.saturating_mul(8)));
}

fn cpu_seconds(ask: &Ask) -> u64 {
    match ask {
        Ask::Open | Ask::Names | Ask::Kind(_) | Ask::Shape(_) | Ask::Dataset(_) => {
            CPU_SECONDS_TO_OPEN
        }
        ask => CPU_SECONDS.saturating_add(bytes(ask) >> 20),
    }
}

/// Returns the size in bytes of the numbers in the answer to a request.
fn bytes(ask: &Ask) -> u64 {
    let Ask::Part(_, ranges, _) = ask else { return 0 };
    ranges.iter().fold(4, |bytes: u64, range| bytes.saturating_mul(range.len() as u64))
}

fn lower(resource: Resource, limit: u64) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let current = Some(maximum.map_or(limit, |maximum| maximum.min(limit)));
    let _ = setrlimit(resource, Rlimit { current, maximum }); // never above the hard limit
}

/// Reason why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The library returned an error.
    Refused(String),
    /// The helper died while handling the request: its exit status, and its CPU time limit in seconds.
    Died(ExitStatus, u64),
    /// The helper could not be started.
    NotStarted(std::io::Error),
}

impl Failure {
    /// Returns exit code 65 if the file is to blame, 74 if the helper could not be started or was killed from outside.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Refused(_) => Exit::Data,
            Self::Died(status, _) if status.signal().is_none_or(is_of_the_file) => Exit::Data,
            Self::Died(..) | Self::NotStarted(_) => Exit::Io,
        }
    }

    /// Converts the failure to an error about `what`, a file or part of one.
    pub fn about(self, what: impl fmt::Display) -> Error {
        Error::new(self.exit(), format_args!("{what}: {self}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let xcpu = rustix::process::Signal::XCPU.as_raw();
        match self {
            Self::Refused(text) => f.write_str(text),
            Self::Died(status, seconds) if status.signal() == Some(xcpu) => {
                write!(f, "the HDF5 library did not finish within {seconds} s of CPU time")
            }
            Self::Died(status, _) if self.exit() == Exit::Io => {
                write!(
                    f,
                    "the process that reads HDF5 files was killed ({status}); is the machine out of memory?"
                )
            }
            Self::Died(status, _) => {
                write!(f, "the HDF5 library crashed ({status}): the file is damaged")
            }
            Self::NotStarted(cause) => {
                write!(f, "cannot start a process to read HDF5 files: {cause}")
            }
        }
    }
}

/// Sends a request about a file; the second value holds the numbers of the answer.
pub(super) fn ask<T: DeserializeOwned, N: Pod>(
    request: &HelperRequest,
) -> Result<(T, Vec<N>), Failure> {
    let (reply, numbers) =
        if STARTS.load(Relaxed) { ask_helper(request)? } else { ask_library(request) };
    let value = reply.and_then(|value| serde_json::from_value(value).map_err(|e| e.to_string()));
    Ok((value.map_err(Failure::Refused)?, numbers))
}

fn ask_library<T: Pod>(request: &HelperRequest) -> (Reply, Vec<T>) {
    let (reply, numbers) = held(&LIBRARY).get_or_insert_default().answer(request.clone());
    let mut values = vec![T::zeroed(); numbers.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(&numbers);
    (reply, values)
}

/// Sends a request to the helper. If an external signal kills the helper, it is restarted once, because the signal may
/// have arrived before its handlers were installed.
fn ask_helper<T: Pod>(request: &HelperRequest) -> Result<(Reply, Vec<T>), Failure> {
    let mut helper = held(&HELPER);
    let mut again = true;
    loop {
        let mut asked = match helper.take() {
            Some(running) => running,
            None if matches!(request.ask, Ask::Close) => return Ok((Ok(Value::Null), Vec::new())),
            None => Helper::start().map_err(Failure::NotStarted)?,
        };
        let sent = send(&mut asked.to, request, &[]);
        if let Ok(Some(answer)) = sent.and_then(|()| receive(&mut asked.from)) {
            *helper = Some(asked);
            return Ok(answer);
        }
        let status = asked.end().map_err(Failure::NotStarted)?;
        if !std::mem::take(&mut again) || status.signal().is_none_or(is_of_the_file) {
            return Err(Failure::Died(status, cpu_seconds(&request.ask)));
        }
    }
}

/// Whether a process killed by `signal` usually caused the signal itself.
fn is_of_the_file(signal: i32) -> bool {
    use rustix::process::Signal;
    let own = [Signal::SEGV, Signal::BUS, Signal::ABORT, Signal::FPE, Signal::ILL, Signal::XCPU];
    own.iter().any(|own| own.as_raw() == signal)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Helper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Helper {
    fn start() -> std::io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg0(std::env::args_os().next().unwrap_or_default())
            .arg(OPTION)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or_else(|| std::io::Error::other("a process without pipes"))?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Waits for the process and returns its exit status.
    fn end(self) -> std::io::Result<ExitStatus> {
        let Self { mut child, to, from } = self;
        drop((to, from));
        child.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::packing::Packing;
    use super::*;

    #[test]
    fn opening_a_file_has_less_time_than_reading_it() {
        let name = || "a".to_string();
        for ask in [Ask::Open, Ask::Names, Ask::Kind(name()), Ask::Shape(name())] {
            assert_eq!(cpu_seconds(&ask), 2, "{ask:?}");
        }
        assert_eq!(cpu_seconds(&Ask::Numbers(name(), Packing::default())), 20);
        let part = Ask::Part(name(), vec![0..1024, 0..1024], Packing::default());
        assert_eq!(cpu_seconds(&part), 24);
        let killed = ExitStatus::from_raw(rustix::process::Signal::XCPU.as_raw());
        let failure = Failure::Died(killed, cpu_seconds(&Ask::Names));
        assert_eq!(failure.exit(), Exit::Data);
        assert!(failure.to_string().ends_with("within 2 s of CPU time"), "{failure}");
    }
}
