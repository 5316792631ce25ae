//! A thread that prepares batches while the model works.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unix::{Error, Result};

/// Batches of consecutive updates, made in order by a thread that is at most `depth` ahead.
#[derive(Debug)]
pub struct Prefetch<B> {
    // Taken before the thread is joined: its next send then fails and ends it.
    batches: Option<Receiver<Result<B>>>,
    thread: Option<JoinHandle<()>>,
    stall: Duration,
    total_stall: Duration,
}

impl<B: Send + 'static> Prefetch<B> {
    /// Starts making batches with `make(update)` from `first_update` on.
    pub fn start(
        first_update: u64,
        depth: usize,
        mut make: impl FnMut(u64) -> Result<B> + Send + 'static,
    ) -> Result<Self> {
        let (sender, receiver) = sync_channel(depth.max(1));
        let work = move || {
            for update in first_update.. {
                let made = catch_unwind(AssertUnwindSafe(|| make(update)));
                let batch = made.unwrap_or_else(|panic| {
                    let words = panic.downcast_ref::<&str>().map(ToString::to_string);
                    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
                    let words = words.unwrap_or_default();
                    Err(Error::bug(format!("the batch of update {update} panicked: {words}")))
                });
                let failed = batch.is_err();
                if sender.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loader".into()).spawn(work);
        let thread = thread.map_err(|cause| {
            Error::new(unix::Exit::Failure, format!("cannot start the loader's thread: {cause}"))
        })?;
        Ok(Self {
            batches: Some(receiver),
            thread: Some(thread),
            stall: Duration::ZERO,
            total_stall: Duration::ZERO,
        })
    }

    /// The next batch, or what went wrong when it was made; after an error there is no other.
    #[expect(clippy::should_implement_trait, reason = "batches do not end, and every one may fail")]
    pub fn next(&mut self) -> Result<B> {
        let start = Instant::now();
        let batch = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        self.stall = start.elapsed();
        self.total_stall += self.stall;
        batch.unwrap_or_else(|| Err(Error::bug("the loader ended with an error before")))
    }

    /// How long the last call of `next` waited.
    pub fn stall(&self) -> Duration {
        self.stall
    }

    /// How long all calls of `next` waited.
    pub fn total_stall(&self) -> Duration {
        self.total_stall
    }
}

impl<B> Drop for Prefetch<B> {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // Panics of `make` were caught; there is none to hand on.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread::sleep;

    #[test]
    fn batches_come_in_order_from_any_update() {
        let mut prefetch = Prefetch::start(41, 3, |update| Ok(update * 2)).unwrap();
        for update in 41..100 {
            assert_eq!(prefetch.next().unwrap(), update * 2);
        }
    }

    #[test]
    fn it_is_bounded_and_stops_when_dropped() {
        let made = Arc::new(AtomicU64::new(0));
        let counter = made.clone();
        let prefetch = Prefetch::start(0, 2, move |_| Ok(counter.fetch_add(1, Ordering::SeqCst)));
        // Two wait in the queue, a third is being handed over.
        while made.load(Ordering::SeqCst) < 3 {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(50));
        drop(prefetch);
        assert_eq!(made.load(Ordering::SeqCst), 3);
        assert_eq!(Arc::strong_count(&made), 1, "the thread is gone");
    }

    #[test]
    fn waiting_is_measured() {
        let slow = Duration::from_millis(200);
        let mut prefetch = Prefetch::start(0, 1, move |update| {
            sleep(if update < 2 { slow } else { Duration::ZERO });
            Ok(())
        })
        .unwrap();
        prefetch.next().unwrap();
        assert!(prefetch.stall() > slow / 2, "{:?}", prefetch.stall());
        prefetch.next().unwrap();
        sleep(slow);
        prefetch.next().unwrap();
        assert!(prefetch.stall() < slow / 2, "{:?}", prefetch.stall());
        assert!(prefetch.total_stall() > slow, "{:?}", prefetch.total_stall());
    }

    #[test]
    fn errors_and_panics_come_out_of_next() {
        let mut prefetch = Prefetch::start(0, 2, |update| match update {
            0 => Ok(()),
            _ => Err(Error::data("file x is bad")),
        })
        .unwrap();
        prefetch.next().unwrap();
        assert_eq!(prefetch.next().unwrap_err().to_string(), "file x is bad");
        assert_eq!(prefetch.next().unwrap_err().exit, unix::Exit::Bug);

        let mut prefetch = Prefetch::<()>::start(5, 2, |_| panic!("boom")).unwrap();
        let error = prefetch.next().unwrap_err();
        assert_eq!(error.exit, unix::Exit::Bug);
        assert!(error.to_string().contains("update 5") && error.to_string().contains("boom"));
    }
}
