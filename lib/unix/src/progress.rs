//! Progress on stderr: on a terminal, a bar with the estimated time left; otherwise one line per minute.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::diagnostics::say;
use crate::time::format_duration;

/// The bar on the screen, which is hidden while messages are printed.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Progress of a task with a known number of steps.
pub struct Progress {
    what: String,
    total: u64,
    /// Number of steps done before this process started, which do not count towards the speed.
    before: u64,
    done: u64,
    bar: Option<ProgressBar>,
    start: Instant,
    last_line: Instant,
    interval: Duration,
}

impl Progress {
    /// Creates a progress display for `total` steps; `what` names the steps (`"updates"`, `"files"`).
    pub fn new(what: &str, total: u64) -> Self {
        let interval = Duration::from_secs(60);
        Self::with(what, total, std::io::stderr().is_terminal(), interval)
    }

    /// Like [`new`](Self::new), but returns a function that any thread can call with the number of steps it has
    /// completed.
    pub fn shared(what: &str, total: u64) -> impl Fn(u64) + Send + Sync {
        let progress = Mutex::new(Self::new(what, total));
        move |steps| progress.lock().unwrap_or_else(PoisonError::into_inner).advance(steps)
    }

    /// Like [`new`](Self::new), with an explicit choice of bar and interval between lines.
    pub fn with(what: &str, total: u64, on_terminal: bool, interval: Duration) -> Self {
        let bar = on_terminal.then(|| bar(what, total));
        *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar.clone();
        let start = Instant::now();
        Self {
            what: what.into(),
            total,
            before: 0,
            done: 0,
            bar,
            start,
            last_line: start,
            interval,
        }
    }

    /// Sets the number of steps done by earlier processes; call it first after a resume.
    pub fn resume_at(&mut self, done: u64) {
        (self.before, self.done) = (done, done);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.reset_eta();
        }
    }

    /// Adds `steps` completed steps.
    pub fn advance(&mut self, steps: u64) {
        self.set(self.done.saturating_add(steps));
    }

    /// Sets the total number of completed steps.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.last_line.elapsed() >= self.interval {
            self.last_line = Instant::now();
            say(self.line());
        }
    }

    /// Sets the text next to the bar, e.g. the loss. Ignored without a terminal, because the log contains it.
    pub fn message(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    /// Formats a line such as `updates 50/200 (25 %), 00:03:00 left`.
    fn line(&self) -> String {
        let Self { what, total, done, .. } = self;
        if *total == 0 {
            return format!("{what} {done}");
        }
        let percent = 100.0 * *done as f64 / *total as f64;
        let mine = done.saturating_sub(self.before);
        let left = if mine == 0 {
            String::new()
        } else {
            let rest = total.saturating_sub(*done) as f64 / mine as f64;
            let seconds = self.start.elapsed().as_secs_f64() * rest;
            let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            format!(", {} left", format_duration(left))
        };
        format!("{what} {done}/{total} ({percent:.0} %){left}")
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            *BAR.lock().unwrap_or_else(PoisonError::into_inner) = None;
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &str, total: u64) -> ProgressBar {
    let form = "{prefix} {bar:30} {pos}/{len} {elapsed_precise} left {eta_precise} {msg}";
    let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_prefix(what.to_string())
}

/// Runs `write` while the bar is hidden. Does not wait for the lock of the bar, because the caller may be a panic in a
/// thread that holds it.
pub(crate) fn without_bar(write: impl FnOnce()) {
    let bar = BAR.try_lock().ok().and_then(|bar| bar.clone());
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_what_is_done_and_left() {
        let mut progress = Progress::with("updates", 200, false, Duration::from_secs(3600));
        assert_eq!(progress.line(), "updates 0/200 (0 %)");
        progress.start -= Duration::from_secs(60);
        progress.set(40);
        progress.advance(10);
        assert_eq!(progress.line(), "updates 50/200 (25 %), 00:03:00 left");
        progress.resume_at(100);
        assert_eq!(progress.line(), "updates 100/200 (50 %)");
        progress.set(150);
        assert_eq!(progress.line(), "updates 150/200 (75 %), 00:01:00 left");
        progress.set(u64::MAX);
        assert!(progress.line().ends_with("00:00:00 left"), "{}", progress.line());
        assert_eq!(Progress::with("files", 0, false, Duration::ZERO).line(), "files 0");
    }
}
