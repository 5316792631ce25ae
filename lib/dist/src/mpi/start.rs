//! The start has an end: MPI waits inside its own calls for ranks that may never come to them, and says
//! nothing. Until all are connected, a thread minds the time.

use super::watchdog::{Lost, TURN, ticks};
use crate::launch;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use unix::{Context, Error, Exit, Result, time};

/// How long the ranks may take until all are connected, or `none`.
const LIMIT: &str = "LONGHAUL_START_LIMIT";
/// Unless it is given: as NCCL waits by default.
const USUAL: Duration = Duration::from_secs(600);

/// Ends this process when it is not dropped in time.
pub struct Start(#[expect(dead_code, reason = "the thread sees that it is dropped")] Sender<()>);

impl Start {
    /// Begins to count. Errors: 2 when the environment has no duration.
    pub fn begin(lost: &Lost) -> Result<Option<Self>> {
        let text = std::env::var(LIMIT).unwrap_or_default();
        let limit = match &*text {
            "" => Some(USUAL),
            text => time::parse_limit(text).context(|| LIMIT)?,
        };
        let Some(limit) = limit else { return Ok(None) };
        let (sender, over) = channel::<()>();
        let lost = lost.clone();
        let count = move || {
            // In turns, not by the clock: a machine that slept has missed nothing.
            for _ in 0..ticks(limit) {
                if over.recv_timeout(TURN) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            end(limit, lost())
        };
        let begun = std::thread::Builder::new().name("start".into()).spawn(count);
        begun.map_err(|why| Error::new(Exit::Failure, format!("cannot start a thread: {why}")))?;
        Ok(Some(Self(sender)))
    }
}

/// Says who waits, and ends this process; the launcher then ends the others.
fn end(limit: Duration, exit: Exit) -> ! {
    let who = launch::rank().map_or("a rank".into(), |rank| format!("rank {rank}"));
    unix::diagnostics::say(format_args!(
        "{who} on {} (pid {}) has waited {} for all ranks to start MPI: one was not started, or hangs before \
         or in MPI_Init; ending with status {} ({LIMIT} sets how long to wait)",
        unix::host::name(),
        std::process::id(),
        time::format_duration(limit),
        exit as u8
    ));
    // SAFETY: ends the process without handlers of libraries. MPI is stuck or not there yet: not even
    // its own way to end may be called.
    unsafe { libc::_exit(i32::from(exit as u8)) }
}
