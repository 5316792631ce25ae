//! Messages between ranks, and the collectives built on them. Values of all ranks are combined along the tree of
//! [`crate::sum`], which yields broadcast, gather, barrier and sums.

use super::calls::CallCounter;
use super::world::{Communicator, c_rank, check, lock};
use crate::sum::{self, SumExchange};
use mpi::ffi;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::Scratch;
use unix::{Error, Exit, Result};

/// Maximum length of a message in bytes; longer data is split, because MPI lengths are C integers.
const LONGEST: usize = 1 << 30;
/// Minimum number of elements for which a power-of-two number of ranks uses recursive halving, where each rank sums a
/// part, instead of recursive doubling.
const HALVE: usize = 16 << 10;

/// A group of ranks with its own communicator, used by one thread of each rank.
#[derive(Debug)]
pub struct Wire {
    communicator: Communicator,
    /// The ranks of the group, indexed by their rank in the communicator.
    members: Vec<usize>,
    /// The index of this rank in `members`.
    me: usize,
    counter: Arc<CallCounter>,
    /// Number of calls so far, which is the same on all ranks.
    calls: AtomicU64,
}

/// The kind of a call, sent along to detect ranks that make different calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum CallKind {
    Broadcast = 1,
    Gather,
    AllReduce,
}

impl Wire {
    pub fn new(
        communicator: Communicator,
        members: Vec<usize>,
        me: usize,
        counter: Arc<CallCounter>,
    ) -> Self {
        Self { communicator, members, me, counter, calls: AtomicU64::new(0) }
    }

    /// Returns the bytes of the first member; the arguments of the others are ignored.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let mine = if self.me == 0 { bytes } else { Vec::new() };
        self.combine(CallKind::Broadcast, mine, |low, _| low)
    }

    /// Returns the bytes of all members, in order.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        // Values are concatenated, each preceded by its length.
        let mut mine = (bytes.len() as u64).to_le_bytes().to_vec();
        mine.extend_from_slice(bytes);
        let all = self.combine(CallKind::Gather, mine, |low, high| [low, high].concat())?;
        let broken = || Error::new(Exit::Bug, "gathered data is truncated");
        let (mut packed, mut values) = (&*all, Vec::new());
        while !packed.is_empty() {
            let (length, rest) = packed.split_first_chunk().ok_or_else(broken)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(Error::bug)?;
            let (value, rest) = rest.split_at_checked(length).ok_or_else(broken)?;
            values.push(value.to_vec());
            packed = rest;
        }
        Ok(values)
    }

    /// Waits until all members have arrived.
    pub fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(|_| ())
    }

    /// Whether `here` is true on all ranks.
    pub fn all(&self, here: bool) -> Result<bool> {
        Ok(self.all_gather(&[u8::from(here)])?.iter().all(|there| *there == [1]))
    }

    /// Combines the values of all ranks along the tree. `combine` gets the value of the lower ranks as its first
    /// argument.
    fn combine(
        &self,
        kind: CallKind,
        mine: Vec<u8>,
        combine: impl Fn(Vec<u8>, Vec<u8>) -> Vec<u8>,
    ) -> Result<Vec<u8>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut value = mine;
        for step in sum::steps(self.me, self.members.len()) {
            let length = self.exchange_headers(kind, value.len(), &step)?;
            let mut other = vec![0; length];
            let sends: Vec<(usize, &[u8])> = step.to.iter().map(|to| (*to, &*value)).collect();
            self.exchange(&sends, step.from, &mut other)?;
            value = if step.lower { combine(value, other) } else { combine(other, value) };
        }
        Ok(value)
    }

    /// Exchanges the headers of a step and returns the length of the data to receive. Errors: the other rank is in a
    /// different call.
    fn exchange_headers(&self, kind: CallKind, bytes: usize, step: &SumExchange) -> Result<usize> {
        let ours = [self.calls.load(Ordering::Relaxed), kind as u64, bytes as u64];
        let head = ours.map(u64::to_le_bytes);
        let mut theirs = [[0; 8]; 3];
        let sends: Vec<(usize, &[u8])> =
            step.to.iter().map(|to| (*to, head.as_flattened())).collect();
        self.exchange(&sends, step.from, theirs.as_flattened_mut())?;
        let theirs = theirs.map(u64::from_le_bytes);
        let alike = if kind == CallKind::AllReduce { 3 } else { 2 };
        if theirs[..alike] != ours[..alike] {
            return Err(Error::bug(format!(
                "ranks {} and {} are not in the same call: {ours:?} and {theirs:?} (number, kind, bytes)",
                self.members[self.me], self.members[step.from]
            )));
        }
        usize::try_from(theirs[2]).map_err(Error::bug)
    }

    /// All-reduce: replaces `values` on all ranks by their sum along the tree, with the same bits on every rank.
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let ranks = self.members.len();
        let mut other = Scratch::<f32>::uninit(values.len());
        if !ranks.is_power_of_two() || values.len() < HALVE {
            for step in sum::steps(self.me, ranks) {
                self.exchange_headers(CallKind::AllReduce, 4 * values.len(), &step)?;
                let sends: Vec<(usize, &[u8])> =
                    step.to.iter().map(|to| (*to, bytes(values))).collect();
                self.exchange(&sends, step.from, bytes_mut(&mut other))?;
                sum::add(values, &other);
            }
            return Ok(());
        }
        // Reduce-scatter: two neighbouring blocks of ranks split their values, and each sums one half. All-gather: the
        // blocks exchange the halves.
        let mut parts = Vec::new();
        parts.push(0..values.len());
        for step in sum::steps(self.me, ranks) {
            self.exchange_headers(CallKind::AllReduce, 4 * values.len(), &step)?;
            let part = parts[parts.len() - 1].clone();
            let middle = part.start + part.len() / 2;
            let (keep, give) = match step.lower {
                true => (part.start..middle, middle..part.end),
                false => (middle..part.end, part.start..middle),
            };
            let other = &mut other[..keep.len()];
            self.exchange(&[(step.from, bytes(&values[give]))], step.from, bytes_mut(other))?;
            sum::add(&mut values[keep.clone()], other);
            parts.push(keep);
        }
        for step in sum::steps(self.me, ranks).iter().rev() {
            parts.pop();
            let whole = parts[parts.len() - 1].clone();
            let (low, high) = values[whole.clone()].split_at_mut(whole.len() / 2);
            let (mine, theirs) = if step.lower { (low, high) } else { (high, low) };
            self.exchange(&[(step.from, bytes(mine))], step.from, bytes_mut(theirs))?;
        }
        Ok(())
    }

    /// Sends to several ranks and receives from one; the receiver knows the length.
    fn exchange(&self, sends: &[(usize, &[u8])], from: usize, received: &mut [u8]) -> Result<()> {
        let pieces = sends.len() * (sends.first().map_or(0, |s| s.1.len()) / LONGEST + 1);
        let mut requests = Vec::with_capacity(pieces + received.len() / LONGEST + 1);
        let _waiting = self.counter.mark_waiting();
        // Convert the ranks first: the function must not return with an error while a request is in flight.
        let peer = |rank: usize| c_rank(self.members[rank]);
        let peers = sends.iter().map(|(to, _)| peer(*to)).collect::<Result<Vec<c_int>>>()?;
        let from = peer(from)?;
        let mpi = lock();
        // SAFETY: both buffers outlive the requests: this function returns only when all have completed.
        unsafe {
            let (comm, kind) = (self.communicator.0, ffi::RSMPI_UINT8_T);
            for piece in received.chunks_mut(LONGEST) {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let (to, count) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
                let status = ffi::MPI_Irecv(to, count, kind, from, 0, comm, &mut request);
                requests.push(request);
                super::or_end(check(status, "MPI_Irecv"));
            }
            for (to, (_, sent)) in peers.into_iter().zip(sends) {
                for piece in sent.chunks(LONGEST) {
                    let mut request = ffi::RSMPI_REQUEST_NULL;
                    let (from, count) = (piece.as_ptr().cast(), piece.len() as c_int);
                    let status = ffi::MPI_Isend(from, count, kind, to, 0, comm, &mut request);
                    requests.push(request);
                    super::or_end(check(status, "MPI_Isend"));
                }
            }
        }
        drop(mpi);
        let count = c_int::try_from(requests.len()).map_err(Error::bug)?;
        let mut wait = self.counter.backoff();
        loop {
            let mpi = lock();
            let mut done = 0;
            // SAFETY: the requests were started above; MPI sets completed ones to null.
            let status = unsafe {
                let none = ffi::RSMPI_STATUSES_IGNORE;
                ffi::MPI_Testall(count, requests.as_mut_ptr(), &mut done, none)
            };
            drop(mpi);
            super::or_end(check(status, "messages between ranks"));
            if done != 0 {
                return Ok(());
            }
            wait.pause();
        }
    }
}

fn bytes(values: &[f32]) -> &[u8] {
    // SAFETY: the bytes of `values`; bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_mut(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above; every bit pattern is a valid f32.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
