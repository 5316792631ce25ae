//! Call counters and waiting: how a thread waits for other ranks, and the state that it exposes to the watchdog.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts the collective calls of one thread, which all ranks make in the same order: the rank with the lowest count is
/// the one that the others wait for.
#[derive(Debug, Default)]
pub struct CallCounter {
    calls: AtomicU64,
    /// Increases with every message and barrier inside a call.
    progress: AtomicU64,
    /// Number of waiting threads: the calling thread, and any threads that wait for its result.
    waiting: AtomicUsize,
    /// Whether a collective runs on the GPU. While it does, reading a value from the GPU blocks.
    runs_on_device: AtomicBool,
    /// Whether the thread may spin, because it has no other use for its CPU.
    may_spin: bool,
}

impl CallCounter {
    pub fn new(may_spin: bool) -> Self {
        Self { may_spin, ..Self::default() }
    }

    /// Records the start of a call.
    pub fn enter(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    pub fn waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub fn runs_on_device(&self) -> bool {
        self.runs_on_device.load(Ordering::Relaxed)
    }

    /// Sets whether a collective runs on the GPU.
    pub fn set_on_device(&self, runs: bool) {
        self.runs_on_device.store(runs, Ordering::Relaxed);
    }

    /// Marks the thread as waiting until the returned guard is dropped.
    pub fn mark_waiting(&self) -> Waiting<'_> {
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Waits until `done` returns true. `may_spin` allows spinning, for a thread that has no other use for its CPU.
    pub fn until(&self, may_spin: bool, done: impl Fn() -> bool) {
        if done() {
            return;
        }
        let _waiting = self.mark_waiting();
        let mut wait = Backoff::new(may_spin);
        while !done() {
            wait.pause();
        }
    }

    /// Returns the backoff for the thread of this counter.
    pub fn backoff(&self) -> Backoff {
        Backoff::new(self.may_spin)
    }
}

/// Guard returned by [`CallCounter::mark_waiting`].
pub struct Waiting<'a>(&'a CallCounter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Backoff with increasing pauses: it spins for about a microsecond, then yields, then sleeps. It must yield because a
/// host may have fewer CPUs than ranks and training threads.
#[derive(Debug)]
pub struct Backoff {
    rounds: u32,
}

const SPINS: u32 = 200;
const YIELDS: u32 = 2000;

impl Backoff {
    fn new(may_spin: bool) -> Self {
        Self { rounds: if may_spin { 0 } else { SPINS + YIELDS } }
    }

    pub fn pause(&mut self) {
        if self.rounds < SPINS {
            std::hint::spin_loop();
        } else if self.rounds < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let since = u64::from(self.rounds - SPINS - YIELDS);
            std::thread::sleep(Duration::from_micros((20 + since / 4).min(500)));
        }
        self.rounds = self.rounds.saturating_add(1);
    }
}
