//! Threads that prepare batches while the model computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};
use unix::{Error, Result};

/// Time to spin for a batch before blocking: sleeping and waking takes longer than making a small batch, and the thread
/// that makes the batches would have to spend time on the wake-up.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Prefetch settings.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Minimum number of batches in the queues; each worker holds one more.
    pub batches: usize,
    /// Number of worker threads; worker i makes every `workers`-th batch.
    pub workers: usize,
}

/// The batches of consecutive updates, in order, whichever worker makes them.
#[derive(Debug)]
pub struct Prefetch<B> {
    // Cleared after an error, and before the threads are joined, which then exit because their next send fails.
    batches: Vec<Receiver<Result<B>>>,
    threads: Vec<JoinHandle<()>>,
    /// The worker that makes the next batch.
    turn: usize,
    stall: Duration,
}

impl<B: Send + 'static> Prefetch<B> {
    /// Starts making batches with `make(update)`, beginning with `first_update`. Errors: 1 when a thread cannot be
    /// started.
    pub fn start(
        first_update: u64,
        ahead: Ahead,
        make: impl Fn(u64) -> Result<B> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (workers, make) = (ahead.workers.max(1), Arc::new(make));
        let mut started =
            Self { batches: Vec::new(), threads: Vec::new(), turn: 0, stall: Duration::ZERO };
        for worker in 0..workers {
            let (sender, receiver) = sync_channel(ahead.batches.div_ceil(workers).max(1));
            let (make, first) = (Arc::clone(&make), first_update + worker as u64);
            let work = move || work(&*make, (first..).step_by(workers), &sender);
            let thread = std::thread::Builder::new().name(format!("loader-{worker}")).spawn(work);
            started.threads.push(thread.map_err(|cause| {
                Error::new(unix::Exit::Failure, format!("cannot start a loader thread: {cause}"))
            })?);
            started.batches.push(receiver);
        }
        Ok(started)
    }

    /// Returns the next batch, or the error that making it returned. After an error there are no more batches.
    #[expect(clippy::should_implement_trait, reason = "batches do not end, and every one may fail")]
    pub fn next(&mut self) -> Result<B> {
        let start = Instant::now();
        let batch = self.batches.get(self.turn).and_then(|batches| {
            while start.elapsed() < SPIN_TIME {
                match batches.try_recv() {
                    Err(TryRecvError::Empty) => yield_now(),
                    found => return found.ok(),
                }
            }
            batches.recv().ok()
        });
        self.stall = start.elapsed();
        let batch = batch.unwrap_or_else(|| Err(Error::bug("the loader has already failed")));
        match batch {
            Ok(_) => self.turn = (self.turn + 1) % self.batches.len(),
            Err(_) => self.batches.clear(),
        }
        batch
    }

    /// Time that the last call to `next` waited.
    pub fn stall(&self) -> Duration {
        self.stall
    }
}

impl<B> Drop for Prefetch<B> {
    fn drop(&mut self) {
        self.batches.clear();
        for thread in self.threads.drain(..) {
            // Panics of `make` were caught, so there is none to propagate.
            let _ = thread.join();
        }
    }
}

/// Makes the batches of `updates` until the receiver is dropped or one fails.
fn work<B>(
    make: &(impl Fn(u64) -> Result<B> + Sync),
    updates: impl Iterator<Item = u64>,
    sender: &SyncSender<Result<B>>,
) {
    for update in updates {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread::sleep;

    fn ahead(batches: usize) -> Ahead {
        Ahead { batches, workers: 1 }
    }

    #[test]
    fn batches_come_in_order_from_any_update_with_any_number_of_workers() {
        for workers in 1..6 {
            let ahead = Ahead { batches: 3, workers };
            // Some batches take longer than others.
            let mut prefetch = Prefetch::start(41, ahead, |update| {
                sleep(Duration::from_micros(update * 7919 % 300));
                Ok(update * 2)
            })
            .unwrap();
            for update in 41..100 {
                assert_eq!(prefetch.next().unwrap(), update * 2, "{workers} workers");
            }
        }
    }

    #[test]
    fn workers_make_batches_at_the_same_time() {
        // Each worker waits for the other, so a single one would never finish its first batch.
        let met = Arc::new(std::sync::Barrier::new(2));
        let ahead = Ahead { batches: 2, workers: 2 };
        let meet = move |update| {
            if update < 10 {
                met.wait();
            }
            Ok(update)
        };
        let mut prefetch = Prefetch::start(0, ahead, meet).unwrap();
        (0..20).for_each(|update| assert_eq!(prefetch.next().unwrap(), update));
    }

    #[test]
    fn it_is_bounded_and_stops_when_dropped() {
        let made = Arc::new(AtomicU64::new(0));
        let counter = made.clone();
        let prefetch =
            Prefetch::start(0, ahead(2), move |_| Ok(counter.fetch_add(1, Ordering::SeqCst)));
        // Two batches are queued while a third is being sent.
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
        let round = || {
            let mut prefetch = Prefetch::start(0, ahead(1), move |update| {
                sleep(if update < 2 { slow } else { Duration::ZERO });
                Ok(())
            })
            .unwrap();
            prefetch.next().unwrap();
            let first = prefetch.stall();
            prefetch.next().unwrap();
            let second = prefetch.stall();
            sleep(slow);
            prefetch.next().unwrap();
            (first, second, prefetch.stall())
        };
        // On a machine under load either thread may be delayed, which changes how long the other waits.
        let mut rounds = Vec::new();
        let measured = (0..20).any(|_| {
            let (first, second, last) = round();
            rounds.push((first, second, last));
            first > slow / 2 && last < slow / 2 && first + second + last > slow
        });
        assert!(measured, "{rounds:?}");
    }

    #[test]
    fn errors_and_panics_come_out_of_next() {
        let mut prefetch = Prefetch::start(0, ahead(2), |update| match update {
            0 => Ok(()),
            _ => Err(Error::data("file x is bad")),
        })
        .unwrap();
        prefetch.next().unwrap();
        assert_eq!(prefetch.next().unwrap_err().to_string(), "file x is bad");
        assert_eq!(prefetch.next().unwrap_err().exit, unix::Exit::Bug);

        // The error of a worker is returned when its turn comes, and no batch follows it.
        let some =
            |update| if update == 5 { Err(Error::data("file y is bad")) } else { Ok(update) };
        let mut prefetch = Prefetch::start(3, Ahead { batches: 8, workers: 3 }, some).unwrap();
        assert_eq!([prefetch.next().unwrap(), prefetch.next().unwrap()], [3, 4]);
        assert_eq!(prefetch.next().unwrap_err().to_string(), "file y is bad");
        assert_eq!(prefetch.next().unwrap_err().exit, unix::Exit::Bug);

        let mut prefetch = Prefetch::<()>::start(5, ahead(2), |_| panic!("boom")).unwrap();
        let error = prefetch.next().unwrap_err();
        assert_eq!(error.exit, unix::Exit::Bug);
        assert!(error.to_string().contains("update 5") && error.to_string().contains("boom"));
    }
}
