//! The number of compute threads of a rank.

use crate::Collective;
use unix::{Result, host};

/// Returns the number of CPUs that this rank may use, divided by the number of ranks on its host with the same CPU
/// mask, and at least one. If the launcher binds each rank to its own CPUs, the rank uses all of them.
pub fn threads(ranks: &dyn Collective) -> Result<usize> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // The CPU list in the kernel's format, such as `0-3,8`.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let listed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let own = format!("{} {}", host::name(), listed.unwrap_or_default().trim());
    let all = ranks.all_gather_bytes(own.as_bytes())?;
    let same = all.iter().filter(|other| **other == own.as_bytes()).count();
    Ok((available / same.max(1)).max(1))
}
