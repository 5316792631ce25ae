//! The memory of the process while it reads epochs.

use crate::clock::Clock;
use crate::set::Set;
use crate::ways::Samples;
use data::loader::Ahead;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use unix::{Error, Result};

/// Reads epochs of windows of `window` frames for this many minutes; prints a line of JSON every minute.
pub fn watch(set: &Set, window: usize, batch: u64, ahead: Ahead, minutes: u64) -> Result<()> {
    let samples = Samples::new(set, window, batch, Clock::Wall)?;
    let mut batches = samples.loader(ahead, |_| {})?;
    let (begin, mut updates, mut sum) = (Instant::now(), 0u64, 0.0);
    for minute in 0..=minutes {
        let end = Duration::from_secs(60 * minute);
        while begin.elapsed() < end {
            let batch = batches.next()?;
            updates += 1;
            sum += f64::from(batch.read::<f32>()[updates as usize % batch.len()]);
        }
        let mut line = json!({
            "minute": minute,
            "epochs": (samples.order.epoch(updates) * 100.0).round() / 100.0,
            "gb": (updates * batch * samples.bytes() as u64 / 1_000_000_000),
            "sum": sum,
        });
        for name in ["VmRSS", "RssAnon", "RssFile", "VmHWM"] {
            line[format!("{name}_kib")] = json!(held(name)?);
        }
        println!("{line}");
    }
    Ok(())
}

/// The value of a line of /proc/self/status, in KiB.
fn held(name: &str) -> Result<u64> {
    let path = Path::new("/proc/self/status");
    let text = fs::read_to_string(path).map_err(|cause| Error::io(path, cause))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| Error::data(format!("{}: no {name}", path.display())))
}
