//! Signals as requests: a handler only sets a flag, which the program checks at a safe point.
//!
//! | signal | request |
//! |---|---|
//! | TERM, INT, HUP, USR1 | stop: finish the update, save a checkpoint, exit 75 |
//! | a second TERM or INT, at least 0.1 s later | exit at once with 128+n; the last checkpoint is intact |
//! | USR2 | save a checkpoint and continue |
//! | CONT | none (SLURM sends it before every other signal) |
//!
//! INT and HUP stay ignored if they are ignored when the program starts (`nohup`, `&` in a script). MPI and NCCL
//! install their own handlers when they start: call [`Signals::reinstall`] afterwards.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level;

use crate::{Error, Exit, Result};

/// The first signal that requested a stop; 0 for none.
static STOP: AtomicI32 = AtomicI32::new(0);
/// Time of the first TERM or INT, in milliseconds of the monotonic clock; 0 if none has arrived.
static FIRST_KILL: AtomicI64 = AtomicI64::new(0);
/// Whether USR1 and USR2 were caught from the start.
static CAUGHT_EARLY: AtomicBool = AtomicBool::new(false);
static CHECKPOINT: AtomicBool = AtomicBool::new(false);
/// Our handlers as reported by sigaction(2), or why they could not be installed.
static INSTALLED: OnceLock<Result<Vec<Action>, String>> = OnceLock::new();

type Action = (c_int, libc::sigaction);

/// A TERM or INT within this many milliseconds of the first one is the same request: a rank receives it twice if both
/// the scheduler (or the terminal) and `mpirun` deliver it.
const ONE_REQUEST_MS: i64 = 100;

/// Proof that the handlers are installed; cheap to copy and to query.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    actions: &'static [Action],
}

impl Signals {
    /// Installs the handlers; a second call returns the same ones.
    pub fn install() -> Result<Self> {
        match INSTALLED.get_or_init(|| register().map_err(|error| error.to_string())) {
            Ok(actions) => Ok(Self { actions }),
            Err(message) => Err(Error::new(Exit::Failure, message)),
        }
    }

    /// Returns the handlers, if this program has installed them.
    pub fn installed() -> Option<Self> {
        let actions = INSTALLED.get()?.as_ref().ok()?;
        Some(Self { actions })
    }

    /// Returns the name of the signal that requested a stop, if any.
    pub fn stop_requested(&self) -> Option<&'static str> {
        match STOP.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(low_level::signal_name(signal).unwrap_or("signal")),
        }
    }

    /// Whether KILL may follow within seconds: true after TERM, INT or HUP, but not after USR1, which warns of a time
    /// limit.
    pub fn is_urgent(&self) -> bool {
        FIRST_KILL.load(Ordering::Relaxed) != 0 || STOP.load(Ordering::Relaxed) == SIGHUP
    }

    /// Returns an error if a signal requested a stop; for work that can stop between two steps. Errors: 75; the message
    /// ends with `leaves`, which describes what is left behind.
    pub fn check_stop(&self, leaves: impl FnOnce() -> String) -> Result<()> {
        match self.stop_requested() {
            None => Ok(()),
            Some(signal) => {
                Err(Error::new(Exit::Again, format!("stopped by {signal}; {}", leaves())))
            }
        }
    }

    /// Whether a checkpoint has been requested since the last call.
    pub fn take_checkpoint_request(&self) -> bool {
        CHECKPOINT.swap(false, Ordering::Relaxed)
    }

    /// Restores handlers that a library has replaced, and returns the names of the affected signals.
    pub fn reinstall(&self) -> Result<Vec<&'static str>> {
        let mut replaced = Vec::new();
        for (signal, ours) in self.actions {
            let before = set_action(*signal, Some(ours))?;
            if before.sa_sigaction != ours.sa_sigaction {
                replaced.push(low_level::signal_name(*signal).unwrap_or("signal"));
            }
        }
        Ok(replaced)
    }
}

/// Whether the signal is currently ignored; signals that are ignored at the start should stay ignored.
pub fn is_ignored(signal: c_int) -> bool {
    set_action(signal, None).is_ok_and(|action| action.sa_sigaction == libc::SIG_IGN)
}

/// Handles USR1 and USR2, which would otherwise end the program, as requests from now on; [`Signals::install`] keeps
/// requests that arrive before it. Called first in every program.
pub(crate) fn catch_early() {
    let caught = [SIGUSR1, SIGUSR2].into_iter().all(|signal| add(signal).is_ok());
    CAUGHT_EARLY.store(caught, Ordering::Relaxed);
}

/// Returns and clears the requests that [`catch_early`] has recorded, for a program that forwards them instead of
/// acting on them.
pub(crate) fn take_early() -> Vec<c_int> {
    let stop = STOP.swap(0, Ordering::Relaxed) == SIGUSR1;
    let save = CHECKPOINT.swap(false, Ordering::Relaxed);
    [(save, SIGUSR2), (stop, SIGUSR1)]
        .into_iter()
        .filter(|(came, _)| *came)
        .map(|(_, s)| s)
        .collect()
}

fn add(signal: c_int) -> Result<()> {
    // SAFETY: the handler only uses atomics, the clock and `_exit`; all are async-signal-safe, and it cannot panic.
    let registered = unsafe { low_level::register(signal, move || handle(signal)) };
    registered.map(drop).map_err(|cause| refused(signal, cause))
}

fn register() -> Result<Vec<Action>> {
    let mut signals = vec![SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2];
    signals.retain(|signal| !(matches!(*signal, SIGINT | SIGHUP) && is_ignored(*signal)));
    let caught_early = CAUGHT_EARLY.load(Ordering::Relaxed);
    for &signal in &signals {
        if !(caught_early && matches!(signal, SIGUSR1 | SIGUSR2)) {
            add(signal)?;
        }
    }
    // Record the action as reported by the system: signal-hook installs its handler only once and would not notice a
    // replacement.
    signals.into_iter().map(|signal| Ok((signal, set_action(signal, None)?))).collect()
}

fn handle(signal: c_int) {
    if signal == SIGUSR2 {
        CHECKPOINT.store(true, Ordering::Relaxed);
        return;
    }
    let _ = STOP.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
    if signal == SIGTERM || signal == SIGINT {
        let now = monotonic_ms();
        let first = FIRST_KILL.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|first| now - first > ONE_REQUEST_MS) {
            low_level::exit(128 + signal);
        }
    }
}

fn monotonic_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec * 1000 + now.tv_nsec / 1_000_000).max(1)
}

/// Sets an action, if one is given, and returns the previous one.
fn set_action(signal: c_int, action: Option<&libc::sigaction>) -> Result<libc::sigaction> {
    let new = action.map_or(std::ptr::null(), std::ptr::from_ref);
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `new` is null or a valid action that the system returned earlier; `before` is writable memory of the
    // right type, for which all zeros is a valid value.
    let (status, before) = unsafe {
        let status = libc::sigaction(signal, new, before.as_mut_ptr());
        (status, before.assume_init())
    };
    if status != 0 {
        return Err(refused(signal, std::io::Error::last_os_error()));
    }
    Ok(before)
}

fn refused(signal: c_int, cause: std::io::Error) -> Error {
    let name = low_level::signal_name(signal).unwrap_or("signal");
    Error::new(Exit::Failure, format!("cannot set the handler of {name}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A single test: the flags are global to the process. tests/signals.rs tests the second TERM in a separate process.
    #[test]
    fn signals_set_flags_and_survive_a_library_that_takes_them() {
        let signals = Signals::install().unwrap();
        assert_eq!(signals.stop_requested(), None);
        assert!(!signals.take_checkpoint_request());
        signals.check_stop(|| unreachable!("nobody asked to stop")).unwrap();

        low_level::raise(SIGUSR2).unwrap();
        assert!(signals.take_checkpoint_request());
        assert!(!signals.take_checkpoint_request());
        assert_eq!(signals.stop_requested(), None);

        // Simulates MPI_Init, which installs its own handlers.
        // SAFETY: ignoring a signal is a valid action.
        unsafe { libc::signal(SIGUSR1, libc::SIG_IGN) };
        low_level::raise(SIGUSR1).unwrap();
        assert_eq!(signals.stop_requested(), None);
        assert_eq!(signals.reinstall().unwrap(), ["SIGUSR1"]);
        assert_eq!(signals.reinstall().unwrap(), Vec::<&str>::new());
        low_level::raise(SIGUSR1).unwrap();
        assert_eq!((signals.stop_requested(), signals.is_urgent()), (Some("SIGUSR1"), false));
        let error = signals.check_stop(|| "a is not there".into()).unwrap_err();
        assert_eq!(error.exit, Exit::Again);
        assert_eq!(error.to_string(), "stopped by SIGUSR1; a is not there");

        low_level::raise(SIGHUP).unwrap();
        assert_eq!(signals.stop_requested(), Some("SIGUSR1"), "the first one is the reason");
        low_level::raise(SIGTERM).unwrap();
        assert!(signals.is_urgent());
        assert!(Signals::install().unwrap().stop_requested().is_some());
    }
}
