//! The state of another rank, as known to the watchdog.

use super::place::Rank;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// The state of another rank.
pub struct Peer {
    pub number: usize,
    /// The name in messages, such as `rank 2 on n7 (pid 4711)`.
    pub name: String,
    /// A pidfd, which becomes readable when the process exits; only for processes in our PID namespace.
    pub process: Option<OwnedFd>,
    /// Whether this rank should receive the peer's heartbeats, so that a peer that stops before its first heartbeat is
    /// also detected.
    pub is_heard: bool,
    /// The rank that forwards the peer's heartbeats, if the peer does not send them itself.
    pub forwarder: Option<usize>,
    pub count: u64,
    pub silent: u64,
    /// Number of ticks that this rank has waited for the peer, per counter, excluding ticks in which the peer was busy.
    pub late: [u64; 2],
    pub busy: u64,
}

impl Peer {
    pub fn new(number: usize, rank: &Rank, own: &Rank, is_heard: bool) -> Self {
        let pid = i32::try_from(rank.pid).ok().and_then(Pid::from_raw);
        let process = pid.filter(|_| rank.machine == own.machine);
        Self {
            number,
            name: format!("rank {number} on {} (pid {})", rank.host, rank.pid),
            process: process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            is_heard,
            forwarder: (![number, own.leader].contains(&rank.leader)).then_some(rank.leader),
            count: 0,
            silent: 0,
            late: [0; 2],
            busy: 0,
        }
    }
}
