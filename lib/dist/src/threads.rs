//! How many threads a rank should compute with.

use crate::Collective;
use unix::{Result, host};

/// The processors that this rank may use, divided among the ranks of its host that may use the same ones:
/// a launcher that gives each rank its own leaves all of them to it. At least one.
pub fn threads(ranks: &dyn Collective) -> Result<usize> {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // As the kernel lists them, `0-3,8`.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let listed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let own = format!("{} {}", host::name(), listed.unwrap_or_default().trim());
    let all = ranks.gather(own.as_bytes())?;
    let same = all.iter().filter(|other| **other == own.as_bytes()).count();
    Ok((available / same.max(1)).max(1))
}
