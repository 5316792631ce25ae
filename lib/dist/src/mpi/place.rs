//! The topology of the ranks: their hosts, and the groups that share memory.

use super::calls::CallCounter;
use super::heartbeat::HEARTBEAT_LEN;
use super::window::{CACHE_LINE, Window};
use super::wire::Wire;
use super::world::Communicator;
use std::sync::Arc;
use unix::{Error, Result};

/// Environment variable: the maximum number of ranks that share a window; 0 disables windows. For sites with little
/// shared memory, and for tests.
const SHARED_MEMORY: &str = "LONGHAUL_SHARED_MEMORY";

/// A rank, as described to the others.
#[derive(Clone, Debug)]
pub struct Rank {
    pub host: String,
    pub pid: u32,
    /// Identifies the machine and PID namespace: processes with equal values can compare process ids.
    pub machine: String,
    /// The lowest rank in the window of this rank; the rank itself without a window.
    pub leader: usize,
}

/// The topology of all ranks, as seen from one of them.
#[derive(Debug)]
pub struct Placement {
    pub rank: usize,
    pub ranks: Vec<Rank>,
    /// Index of this rank among the ranks of its host.
    pub local: usize,
    /// The ranks that share a window with this one, if windows are enabled.
    shared: Option<Communicator>,
}

impl Placement {
    /// Determines the topology and creates a shared window for each group of ranks; called by all ranks.
    pub fn find(
        world: Communicator,
        wire: &Wire,
        counter: &Arc<CallCounter>,
    ) -> Result<(Self, Option<Arc<Window>>)> {
        let rank = world.rank()?;
        let host = world.host()?;
        let local = host.rank()?;
        let shared = match agreed_share(wire)? {
            0 => None,
            most => Some(host.split(local / most)?),
        };
        // The lowest rank of a window is its leader.
        let leader = match shared {
            None => rank,
            Some(shared) => {
                let members = (0..shared.size()?).collect();
                let near = Wire::new(shared, members, shared.rank()?, counter.clone());
                let near = near.all_gather(rank.to_string().as_bytes())?;
                String::from_utf8_lossy(&near[0]).parse().map_err(Error::bug)?
            }
        };
        let own =
            format!("{}\n{}\n{}\n{leader}", unix::host::name(), std::process::id(), machine());
        let mut ranks = Vec::new();
        for (number, text) in wire.all_gather(own.as_bytes())?.into_iter().enumerate() {
            let text = String::from_utf8_lossy(&text);
            let wrong = || Error::bug(format!("rank {number} sent {text:?} as its place"));
            ranks.push(read(&text).ok_or_else(wrong)?);
        }
        let mut place = Self { rank, ranks, local, shared };
        let window = place.window(wire, HEARTBEAT_LEN * CACHE_LINE)?;
        if window.is_none() {
            place.shared = None;
            place.ranks.iter_mut().enumerate().for_each(|(number, rank)| rank.leader = number);
        } else if rank == 0 && !place.sums_in_window() && place.ranks.iter().any(|r| r.leader != 0)
        {
            unix::note!(
                "ranks are distributed unevenly over hosts: gradients are summed by messages, not in shared memory \
                 (the same power of two of ranks on each host, numbered host by host, would be faster)"
            );
        }
        Ok((place, window))
    }

    /// Allocates a window with `bytes` for each rank. Returns `None` unless the allocation succeeds on all ranks.
    pub fn window(&self, wire: &Wire, bytes: usize) -> Result<Option<Arc<Window>>> {
        let Some(shared) = self.shared else { return Ok(None) };
        let ranks = shared.size()?;
        let space = check_space(bytes.saturating_mul(ranks));
        if !wire.all(space.is_ok())? {
            if let Err(why) = space {
                unix::note!("{why}: summing by messages instead of shared memory, which is slower");
            }
            return Ok(None);
        }
        let window = Window::allocate(shared, bytes);
        let had = wire.all(window.is_ok())?;
        match window {
            Ok(window) if had => Ok(Some(Arc::new(window))),
            Ok(_) => Ok(None),
            Err(why) => {
                unix::note!(
                    "no shared memory between ranks ({why}): summing by messages, which is slower"
                );
                Ok(None)
            }
        }
    }

    /// Whether summing within each window, then over the ranks at the same position in all windows, follows the tree.
    /// This holds if there is one window, or if all windows hold consecutive ranks and the same power of two of them.
    pub fn sums_in_window(&self) -> bool {
        let block = self.ranks.iter().filter(|rank| rank.leader == 0).count();
        let alone = block == self.ranks.len();
        let regular = || {
            let leads = |(number, rank): (usize, &Rank)| rank.leader == number / block * block;
            block.is_power_of_two()
                && self.ranks.len().is_multiple_of(block)
                && self.ranks.iter().enumerate().all(leads)
        };
        block > 1 && (alone || regular())
    }

    /// Connects the ranks at the same position in all windows; returns `None` if there is only one window.
    pub fn column(&self, communicator: Communicator, counter: &Arc<CallCounter>) -> Option<Wire> {
        let block = self.ranks.iter().filter(|rank| rank.leader == 0).count();
        let members: Vec<usize> = (self.rank % block..self.ranks.len()).step_by(block).collect();
        let me = self.rank / block;
        (members.len() > 1).then(|| Wire::new(communicator, members, me, counter.clone()))
    }
}

/// Returns the value of `SHARED_MEMORY` on rank 0. Errors, on all ranks: the value is not a number.
fn agreed_share(wire: &Wire) -> Result<usize> {
    let text = std::env::var(SHARED_MEMORY).unwrap_or_default();
    let text = wire.broadcast(text.into_bytes())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.is_empty() {
        return Ok(usize::MAX);
    }
    text.parse().map_err(|_| {
        let message = "expected the number of ranks that may share memory, 0 for none";
        Error::usage(format!("{SHARED_MEMORY}={text}: {message}"))
    })
}

/// Checks that `bytes` of shared memory are free: touching a window that exceeds its file system kills the process
/// (SIGBUS).
fn check_space(bytes: usize) -> Result<()> {
    // Without /dev/shm, only MPI knows where it allocates shared memory.
    let Ok(system) = rustix::fs::statvfs("/dev/shm") else { return Ok(()) };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free >= bytes as u64 {
        return Ok(());
    }
    let (has, needed) = (free >> 20, bytes.div_ceil(1 << 20));
    Err(Error::failure(format!("/dev/shm has {has} MiB left, {needed} MiB needed")))
}

/// Returns the boot id and the PID namespace: process ids can be compared only between ranks that share both.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

fn read(text: &str) -> Option<Rank> {
    let mut lines = text.lines();
    let (host, pid, machine, leader) = (lines.next()?, lines.next()?, lines.next()?, lines.next()?);
    Some(Rank {
        host: host.to_string(),
        pid: pid.parse().ok()?,
        machine: machine.to_string(),
        leader: leader.parse().ok()?,
    })
}
