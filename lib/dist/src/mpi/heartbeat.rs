//! Heartbeats between ranks that share no memory. The leader of each window sends the heartbeats of its ranks to rank
//! 0, and rank 0 sends back the heartbeats of its own window: rank 0 sees all ranks, and every rank sees rank 0.

use super::place::Placement;
use super::world::{Communicator, c_rank};
use mpi::ffi;
use std::ffi::c_int;

/// Number of values in a heartbeat; in a window, each value is a counter.
pub const HEARTBEAT_LEN: usize = 4;
/// Number of ticks between two messages.
const EVERY: u64 = 5;

/// The state that a rank publishes. The fields are in the order in which they are sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heartbeat {
    /// Increases every tick while the process runs.
    pub count: u64,
    /// Number of collective calls made by the training loop, and by the reducer.
    pub calls: [u64; 2],
    /// Number of ticks that the other ranks should wait for this rank; 0 for the default limit.
    pub patience: u64,
}

impl Heartbeat {
    pub fn to_array(self) -> [u64; HEARTBEAT_LEN] {
        [self.count, self.calls[0], self.calls[1], self.patience]
    }

    pub fn from_array(numbers: [u64; HEARTBEAT_LEN]) -> Self {
        let [count, main, side, patience] = numbers;
        Self { count, calls: [main, side], patience }
    }
}

/// The heartbeat messages that a leader exchanges with other leaders.
pub struct Heartbeats {
    communicator: Communicator,
    others: Vec<Other>,
    ticks: u64,
}

/// Another leader. The buffers stay valid while MPI reads or writes them: the watchdog thread runs until the process
/// ends.
struct Other {
    leader: c_int,
    /// The ranks whose heartbeats the other leader sends to this rank (`theirs`) and receives from it (`ours`).
    theirs: Vec<usize>,
    ours: Vec<usize>,
    received: Vec<[u64; HEARTBEAT_LEN]>,
    sent: Vec<[u64; HEARTBEAT_LEN]>,
    receive: Option<ffi::MPI_Request>,
    send: Option<ffi::MPI_Request>,
}

// SAFETY: handles and memory that only one thread at a time uses, while it holds the MPI lock.
unsafe impl Send for Heartbeats {}

impl Heartbeats {
    /// Prepares the messages of this rank, if it is one of several leaders.
    pub fn new(place: &Placement, communicator: Communicator) -> Option<Self> {
        let led = |leader: usize| -> Vec<usize> {
            (0..place.ranks.len()).filter(|rank| place.ranks[*rank].leader == leader).collect()
        };
        let mut leaders: Vec<usize> = place.ranks.iter().map(|rank| rank.leader).collect();
        leaders.sort_unstable();
        leaders.dedup();
        leaders.retain(|leader| *leader != place.rank && (place.rank == 0 || *leader == 0));
        if place.ranks[place.rank].leader != place.rank || leaders.is_empty() {
            return None;
        }
        let others = leaders.into_iter().filter_map(|leader| {
            let (theirs, ours) = (led(leader), led(place.rank));
            Some(Other {
                leader: c_rank(leader).ok()?,
                received: vec![[0; HEARTBEAT_LEN]; theirs.len()],
                sent: vec![[0; HEARTBEAT_LEN]; ours.len()],
                theirs,
                ours,
                receive: None,
                send: None,
            })
        });
        Some(Self { communicator, others: others.collect(), ticks: 0 })
    }

    /// Whether this rank receives the heartbeats of `rank`.
    pub fn receives_from(&self, rank: usize) -> bool {
        self.others.iter().any(|other| other.theirs.contains(&rank))
    }

    /// Sends the heartbeats of this window from `board` and stores received ones in it. The caller must hold the MPI
    /// lock. A failed message counts as one missing heartbeat.
    pub fn exchange(&mut self, board: &mut [[u64; HEARTBEAT_LEN]]) {
        let (due, comm) = (self.ticks.is_multiple_of(EVERY), self.communicator.0);
        self.ticks += 1;
        for other in &mut self.others {
            if is_complete(&mut other.receive) {
                for (rank, heartbeat) in other.theirs.iter().zip(&other.received) {
                    board[*rank] = *heartbeat;
                }
                other.receive = None;
            }
            if other.receive.is_none() {
                other.receive = start(|request| {
                    let (to, count) = (other.received.as_mut_ptr().cast(), count(&other.received));
                    // SAFETY: the buffer is not accessed before the request completes.
                    unsafe {
                        let kind = ffi::RSMPI_UINT64_T;
                        ffi::MPI_Irecv(to, count, kind, other.leader, 0, comm, request)
                    }
                });
            }
            if due && (other.send.is_none() || is_complete(&mut other.send)) {
                for (heartbeat, rank) in other.sent.iter_mut().zip(&other.ours) {
                    *heartbeat = board[*rank];
                }
                other.send = start(|request| {
                    let (from, count) = (other.sent.as_ptr().cast(), count(&other.sent));
                    // SAFETY: as above.
                    unsafe {
                        let kind = ffi::RSMPI_UINT64_T;
                        ffi::MPI_Isend(from, count, kind, other.leader, 0, comm, request)
                    }
                });
            }
        }
    }
}

fn count(heartbeats: &[[u64; HEARTBEAT_LEN]]) -> c_int {
    c_int::try_from(heartbeats.len() * HEARTBEAT_LEN).unwrap_or(c_int::MAX)
}

fn start(call: impl FnOnce(&mut ffi::MPI_Request) -> c_int) -> Option<ffi::MPI_Request> {
    // SAFETY: a constant of the MPI library.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    (call(&mut request) == 0).then_some(request)
}

/// Whether `request` was started and has completed.
fn is_complete(request: &mut Option<ffi::MPI_Request>) -> bool {
    let Some(request) = request else { return false };
    let mut done = 0;
    // SAFETY: the request was started and has not completed yet.
    let status = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
    status == 0 && done != 0
}
