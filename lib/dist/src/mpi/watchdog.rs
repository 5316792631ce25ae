//! The watchdog: a thread on each rank that publishes heartbeats, and ends the job when another rank has died, is
//! suspended, or does not reach a collective.
//!
//! It counts its own ticks instead of wall-clock time, so that it does not report its peers as dead after the process
//! itself or the machine was suspended.

use super::calls::CallCounter;
use super::heartbeat::{HEARTBEAT_LEN, Heartbeat, Heartbeats};
use super::peer::Peer;
use super::place::Placement;
use super::window::Window;
use super::world::{self, Communicator};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use unix::{Exit, Result};

/// Returns the exit status with which the job ends when a rank is lost.
pub type Lost = Arc<dyn Fn() -> Exit + Send + Sync>;

/// The length of a tick.
pub const TICK: Duration = Duration::from_millis(200);
/// Maximum number of ticks between two heartbeat messages.
const MAX_HEARTBEAT_TICKS: u64 = 15;
/// Number of ticks without a heartbeat after which a rank counts as dead or suspended.
const SILENT_TICKS: u64 = 75;
/// Number of ticks that a rank may be late for a collective: the minimum, and the limit before
/// [`crate::Collective::watch`] is called.
const LATE: (u64, u64) = (125, 3000);
/// A rank may be late by this multiple of this rank's longest time between two collectives.
const LATE_FACTOR: u64 = 20;
/// Maximum number of ticks that a clean shutdown may take.
const SHUTDOWN_TICKS: u64 = 100;

/// Converts `time` to ticks, rounding up.
pub fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u64::MAX)
}

/// The state shared by the watchdog thread and the collective calls.
struct Shared {
    counters: [Arc<CallCounter>; 2],
    patience: AtomicU64,
    strict: AtomicBool,
    closing: AtomicBool,
    leaving: AtomicBool,
    lost: Lost,
}

/// The watchdog of this rank.
pub struct Watchdog(Arc<Shared>);

impl Watchdog {
    /// Starts to send heartbeats and to watch the heartbeats of the other ranks; called by all ranks.
    pub fn begin(
        place: &Placement,
        window: Option<Arc<Window>>,
        side: Communicator,
        counter: Arc<CallCounter>,
        lost: Lost,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            counters: [counter, Arc::new(CallCounter::new(false))],
            patience: AtomicU64::new(0),
            strict: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            lost,
        });
        let board = vec![[0; HEARTBEAT_LEN]; place.ranks.len()];
        let peers = place.ranks.iter().enumerate().filter(|(number, _)| *number != place.rank);
        let own = &place.ranks[place.rank];
        let same_host: Vec<usize> =
            (0..place.ranks.len()).filter(|n| place.ranks[*n].leader == own.leader).collect();
        let heartbeats = Heartbeats::new(place, side);
        let is_heard = |number: &usize| {
            window.is_some() && same_host.contains(number)
                || heartbeats.as_ref().is_some_and(|heartbeats| heartbeats.receives_from(*number))
        };
        let peers = peers.map(|(number, rank)| Peer::new(number, rank, own, is_heard(&number)));
        let mut thread = Thread {
            shared: shared.clone(),
            rank: place.rank,
            peers: peers.collect(),
            same_host,
            heartbeats,
            window,
            board,
            own: OwnProgress::default(),
        };
        super::spawn("watchdog", move || thread.run())?;
        Ok(Self(shared))
    }

    /// See [`crate::Collective::watch`].
    pub fn be_strict(&self) {
        self.0.strict.store(true, Ordering::Relaxed);
    }

    /// Returns the counter of calls made concurrently with the training loop.
    pub fn side(&self) -> Arc<CallCounter> {
        self.0.counters[1].clone()
    }

    /// Number of ticks that the other ranks should wait for this rank.
    pub fn patience(&self) -> &AtomicU64 {
        &self.0.patience
    }

    /// Records that all ranks have finished: their exit no longer raises an alarm, and the watchdog stops calling MPI.
    pub fn close(&self) {
        let _mpi = world::lock();
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// Stops the watchdog because this process is about to exit.
    pub fn leave(&self) {
        self.0.leaving.store(true, Ordering::Relaxed);
    }
}

/// The progress of this rank, updated every tick.
#[derive(Default)]
struct OwnProgress {
    calls: [u64; 2],
    /// Number of ticks since the training loop last made a call or waited in one (`gap`), and its maximum (`longest`).
    gap: u64,
    longest: u64,
    /// Number of ticks without progress while waiting in a call, per counter.
    stalled: [u64; 2],
    progress: [u64; 2],
    closing: u64,
}

struct Thread {
    shared: Arc<Shared>,
    rank: usize,
    peers: Vec<Peer>,
    /// The ranks that share the window, in the order of their indices in it.
    same_host: Vec<usize>,
    window: Option<Arc<Window>>,
    heartbeats: Option<Heartbeats>,
    /// The latest known heartbeat of each rank.
    board: Vec<[u64; HEARTBEAT_LEN]>,
    own: OwnProgress,
}

impl Thread {
    fn run(&mut self) {
        let mut count = 0;
        loop {
            let gone = self.wait_tick();
            if self.shared.leaving.load(Ordering::Relaxed) {
                return;
            }
            let closing = self.shared.closing.load(Ordering::Relaxed);
            if closing {
                // Windows and communicators are being freed.
                self.own.closing += 1;
                if self.own.closing > SHUTDOWN_TICKS {
                    self.end_job("MPI_Finalize does not return although all ranks have finished");
                }
                continue;
            }
            count += 1;
            let calls = [0, 1].map(|counter| self.shared.counters[counter].calls());
            let patience = self.shared.patience.load(Ordering::Relaxed);
            self.board[self.rank] = Heartbeat { count, calls, patience }.to_array();
            self.exchange();
            self.track(calls);
            let problem = match gone {
                Some(peer) => Some(format!("{} is gone", self.peers[peer].name)),
                None => self
                    .find_silent_rank()
                    .or_else(|| self.find_late_rank())
                    .or_else(|| self.stalled()),
            };
            if let Some(problem) = problem {
                self.end_job(&problem);
            }
        }
    }

    /// Waits for a tick, or until the process of a peer has exited, and returns the index of that peer.
    fn wait_tick(&self) -> Option<usize> {
        let with =
            self.peers.iter().enumerate().filter_map(|(i, p)| Some((i, p.process.as_ref()?)));
        let (who, mut fds): (Vec<usize>, Vec<PollFd>) =
            with.map(|(i, fd)| (i, PollFd::new(fd, PollFlags::IN))).unzip();
        if fds.is_empty() || self.shared.closing.load(Ordering::Relaxed) {
            std::thread::sleep(TICK);
            return None;
        }
        let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        match poll(&mut fds, Some(&tick)) {
            Ok(0) => None,
            Ok(_) => fds.iter().position(|fd| !fd.revents().is_empty()).map(|i| who[i]),
            Err(_) => {
                std::thread::sleep(TICK);
                None
            }
        }
    }

    /// Publishes the heartbeat of this rank and reads the heartbeats of the others.
    fn exchange(&mut self) {
        if let Some(window) = &self.window {
            for (i, number) in self.board[self.rank].iter().enumerate() {
                window.counter(window.rank(), i).store(*number, Ordering::Relaxed);
            }
            for (part, rank) in self.same_host.iter().enumerate() {
                let number = |i| window.counter(part, i).load(Ordering::Relaxed);
                self.board[*rank] = std::array::from_fn(number);
            }
        }
        if let Some(heartbeats) = &mut self.heartbeats
            && let Some(_mpi) = world::try_lock()
            && !self.shared.closing.load(Ordering::Relaxed)
        {
            heartbeats.exchange(&mut self.board);
        }
    }

    /// Updates the numbers of ticks for which this rank has been computing and waiting.
    fn track(&mut self, calls: [u64; 2]) {
        let own = &mut self.own;
        let counters = &self.shared.counters;
        // A thread that reads a value from a GPU waits for the collectives there.
        let waiting = counters[0].waiting() || counters[1].runs_on_device();
        let computing = calls == own.calls && !waiting;
        own.gap = if computing { own.gap + 1 } else { 0 };
        if self.shared.strict.load(Ordering::Relaxed) {
            own.longest = own.longest.max(own.gap);
        }
        for (i, counter) in counters.iter().enumerate() {
            let same = counter.waiting() && counter.progress() == own.progress[i];
            own.stalled[i] = if same { own.stalled[i] + 1 } else { 0 };
            own.progress[i] = counter.progress();
        }
        own.calls = calls;
    }

    /// Number of ticks that this rank waits for a rank that still sends heartbeats.
    fn limit(&self) -> u64 {
        match self.shared.strict.load(Ordering::Relaxed) {
            true => LATE.0.max(LATE_FACTOR * self.own.longest),
            false => LATE.1,
        }
    }

    /// Finds a rank that has stopped sending heartbeats.
    fn find_silent_rank(&mut self) -> Option<String> {
        for peer in &mut self.peers {
            let count = Heartbeat::from_array(self.board[peer.number]).count;
            peer.silent = if count == peer.count { peer.silent + 1 } else { 0 };
            peer.count = count;
        }
        // The state of a rank is unknown while the rank that forwards its heartbeats is silent.
        let speaks = |number| {
            self.peers
                .iter()
                .all(|peer| peer.number != number || peer.silent <= MAX_HEARTBEAT_TICKS)
        };
        let silent = self.peers.iter().find(|peer| {
            peer.is_heard && peer.silent > SILENT_TICKS && peer.forwarder.is_none_or(speaks)
        })?;
        let seconds = SILENT_TICKS * TICK.as_millis() as u64 / 1000;
        Some(format!(
            "{} has not run for {seconds} s: it is suspended, or its host is down",
            silent.name
        ))
    }

    /// Finds a rank that is running but has not reached the call in which this rank waits.
    fn find_late_rank(&mut self) -> Option<String> {
        let limit = self.limit();
        for peer in self.peers.iter_mut().filter(|peer| peer.is_heard) {
            let heartbeat = Heartbeat::from_array(self.board[peer.number]);
            let behind = [0, 1].map(|counter| {
                self.own.stalled[counter] > 0 && heartbeat.calls[counter] < self.own.calls[counter]
            });
            let busy = heartbeat.patience > 0 && behind != [false; 2];
            peer.busy = if busy { peer.busy + 1 } else { 0 };
            for (late, behind) in peer.late.iter_mut().zip(behind) {
                *late = if behind { *late + u64::from(!busy) } else { 0 };
            }
            let late = peer.late[0].max(peer.late[1]);
            if late > limit || peer.busy > heartbeat.patience.max(limit) {
                let waited = late.max(peer.busy) * TICK.as_millis() as u64 / 1000;
                return Some(format!(
                    "{} is running but {waited} s late for the collective in which rank {} waits",
                    peer.name, self.rank
                ));
            }
        }
        None
    }

    /// Detects a call that all ranks have reached but in which messages no longer arrive.
    fn stalled(&self) -> Option<String> {
        let stalled = self.own.stalled[0].max(self.own.stalled[1]);
        let known = self.peers.iter().all(|peer| peer.is_heard && peer.late == [0; 2]);
        (known && stalled > 2 * self.limit()).then(|| {
            let seconds = stalled * TICK.as_millis() as u64 / 1000;
            format!(
                "no message has arrived for {seconds} s although all ranks are in the same call: the network has failed"
            )
        })
    }

    /// Reports the problem `what` and ends all ranks.
    fn end_job(&self, what: &str) -> ! {
        // The lowest healthy rank reports the problem at once. The others wait a second, and report it if they are
        // still running.
        let first = (0..self.board.len()).find(|rank| {
            let peer = self.peers.iter().find(|peer| peer.number == *rank);
            peer.is_none_or(|peer| peer.silent == 0 && !what.contains(&peer.name))
        });
        if first != Some(self.rank) {
            std::thread::sleep(Duration::from_secs(1));
        }
        let exit = (self.shared.lost)();
        unix::diagnostics::say(format_args!("{what}; ending all ranks with status {}", exit as u8));
        super::end(exit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::Rank;
    use super::*;

    fn rank(number: usize, leader: usize) -> Rank {
        Rank { host: format!("n{number}"), machine: String::new(), pid: 1, leader }
    }

    #[test]
    fn a_rank_that_stops_before_its_first_heartbeat_is_detected() {
        let own = rank(0, 0);
        let peer =
            |number, leader, is_heard| Peer::new(number, &rank(number, leader), &own, is_heard);
        let mut thread = Thread {
            shared: Arc::new(Shared {
                counters: [true, false].map(|may_spin| Arc::new(CallCounter::new(may_spin))),
                patience: AtomicU64::new(0),
                strict: AtomicBool::new(false),
                closing: AtomicBool::new(false),
                leaving: AtomicBool::new(false),
                lost: Arc::new(|| Exit::Again),
            }),
            rank: 0,
            peers: vec![peer(1, 1, true), peer(2, 2, false), peer(3, 4, true), peer(4, 4, true)],
            same_host: Vec::new(),
            window: None,
            heartbeats: None,
            board: vec![[0; HEARTBEAT_LEN]; 5],
            own: OwnProgress::default(),
        };
        // Rank 4, which forwards the heartbeats of rank 3, stops after a first heartbeat that did not yet cover rank 3.
        let heartbeat = |tick| Heartbeat { count: tick, calls: [0; 2], patience: 0 }.to_array();
        for tick in 1..=SILENT_TICKS + 1 {
            thread.board[1] = heartbeat(tick);
            thread.board[4] = heartbeat(1);
            assert_eq!(thread.find_silent_rank(), None, "tick {tick}");
        }
        let told = thread.find_silent_rank().unwrap_or_default();
        assert!(
            told.starts_with("rank 4 on n4") && told.contains("has not run for 15 s"),
            "{told}"
        );
        // Rank 4 is running again, but rank 3 has never sent a heartbeat.
        thread.board[4] = heartbeat(2);
        let told = thread.find_silent_rank().unwrap_or_default();
        assert!(told.starts_with("rank 3 on n3"), "{told}");
    }
}
