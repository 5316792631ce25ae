//! What the watchdog of a rank knows about another rank.

use super::place::Rank;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// Another rank.
pub struct Peer {
    pub number: usize,
    /// `rank 2 on n7 (pid 4711)`.
    pub name: String,
    /// A pidfd, readable when the process has exited; only for processes visible from here.
    pub process: Option<OwnedFd>,
    /// Whether its heartbeats should arrive here, so that a rank that stops before its first one is detected as well.
    pub is_heard: bool,
    /// The rank that forwards its heartbeats, if it does not send them itself.
    pub forwarder: Option<usize>,
    pub count: u64,
    pub silent: u64,
    /// Ticks that this rank has waited for it, per counter, excluding those in which it was busy.
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
