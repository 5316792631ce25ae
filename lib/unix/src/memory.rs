//! Checks whether enough memory is available before a large allocation.
//!
//! A failed allocation aborts a Rust program, and overcommitted memory invokes the kernel's OOM killer. Sizes that
//! depend on an input file or the command line are therefore compared with the available memory first.

mod cgroup;

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::space::human_bytes;
use crate::{Error, Result};

/// Minimum size in bytes that is checked: reading the kernel's figures takes about ten microseconds.
const SMALL: u64 = 16 << 20;

/// Returns the number of bytes that this process can still allocate: the memory that the kernel reports as available
/// without swapping, or less if the address space (`ulimit -v`) or a control group (a SLURM job, a container) is limited.
/// `None` if unknown.
pub fn available() -> Option<u64> {
    let limit = getrlimit(Resource::As).current;
    let addresses = limit.map(|limit| limit.saturating_sub(held().unwrap_or(0)));
    let machine = kilobytes("/proc/meminfo", "MemAvailable:");
    [addresses, machine, cgroup::available()].into_iter().flatten().min()
}

/// Returns the size of the address space of this process in bytes.
pub fn held() -> Option<u64> {
    kilobytes("/proc/self/status", "VmSize:")
}

/// Returns the resident memory of this process in bytes.
pub fn resident() -> Option<u64> {
    kilobytes("/proc/self/status", "VmRSS:")
}

/// Returns a figure that the kernel reports in KiB, converted to bytes.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let figure = text.lines().find_map(|line| line.strip_prefix(name))?;
    figure.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Rejects (65) an input that needs more bytes of memory than are available; `None` means that the size overflows.
/// `what` names the input.
pub fn ensure(what: &dyn std::fmt::Display, bytes: Option<u64>) -> Result<()> {
    if bytes.is_some_and(|bytes| bytes < SMALL) {
        return Ok(());
    }
    match (bytes, available()) {
        (Some(bytes), Some(available)) if bytes > available => Err(Error::data(format!(
            "{what} needs {} of memory, {} is available to this process",
            human_bytes(bytes),
            human_bytes(available)
        ))),
        (Some(_), _) => Ok(()),
        (None, _) => Err(Error::data(format!("{what} needs more memory than can be addressed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    #[test]
    fn only_sizes_that_can_be_allocated_pass() {
        let available = available().unwrap();
        assert!(available > SMALL, "{available}");
        ensure(&"a", Some(0)).unwrap();
        ensure(&"a", Some(SMALL)).unwrap();
        for bytes in [Some(u64::MAX), Some(1 << 60), None] {
            let error = ensure(&"file.npy: a frame", bytes).unwrap_err();
            assert_eq!(error.exit, Exit::Data);
            assert!(error.to_string().starts_with("file.npy: a frame needs"), "{error}");
        }
    }
}
