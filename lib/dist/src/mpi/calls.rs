//! Waiting for other ranks: how a thread spends the time, and what the watchdog sees of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Counts the calls that one thread makes, in the same order on all ranks: the others wait for the rank with
/// the fewest.
#[derive(Debug, Default)]
pub struct CallCounter {
    calls: AtomicU64,
    /// Grows with every message and barrier inside a call.
    progress: AtomicU64,
    /// Threads that wait: the one of the calls, and who waits for it.
    waiting: AtomicUsize,
    /// Whether the thread has nothing better to do with its processor than to wait.
    hurry: bool,
}

impl CallCounter {
    pub fn new(hurry: bool) -> Self {
        Self { hurry, ..Self::default() }
    }

    /// A call begins.
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

    /// Waiting for others, until the value is dropped.
    pub fn wait(&self) -> Waiting<'_> {
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Waits until `done`; with `hurry` the thread has nothing better to do with its processor.
    pub fn until(&self, hurry: bool, done: impl Fn() -> bool) {
        if done() {
            return;
        }
        let _waiting = self.wait();
        let mut wait = Wait::new(hurry);
        while !done() {
            wait.pause();
        }
    }

    /// The pauses of the thread of this counter.
    pub fn pauses(&self) -> Wait {
        Wait::new(self.hurry)
    }
}

/// See [`CallCounter::wait`].
pub struct Waiting<'a>(&'a CallCounter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pauses that grow: a microsecond of spinning, then the processor is lent, then sleep. There may be
/// more ranks than processors, and training beside.
#[derive(Debug)]
pub struct Wait {
    turns: u32,
}

const SPINS: u32 = 200;
const YIELDS: u32 = 2000;

impl Wait {
    fn new(hurry: bool) -> Self {
        Self { turns: if hurry { 0 } else { SPINS + YIELDS } }
    }

    pub fn pause(&mut self) {
        if self.turns < SPINS {
            std::hint::spin_loop();
        } else if self.turns < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let since = u64::from(self.turns - SPINS - YIELDS);
            std::thread::sleep(Duration::from_micros((20 + since / 4).min(500)));
        }
        self.turns = self.turns.saturating_add(1);
    }
}
