//! A time limit for startup: MPI blocks silently inside its own calls while it waits for ranks that may never arrive. A
//! thread measures the time until all ranks are connected.

use super::watchdog::{Lost, TICK, ticks};
use crate::launch;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use unix::{Context, Exit, Result, time};

/// Environment variable: the time limit until all ranks are connected, or `none`.
const LIMIT: &str = "LONGHAUL_START_LIMIT";
/// The default time limit, which is also NCCL's.
const USUAL: Duration = Duration::from_secs(600);

/// Ends this process when the time limit is reached, unless the value is dropped before that.
pub struct StartupTimer(
    #[expect(dead_code, reason = "the thread sees that it is dropped")] Sender<()>,
);

impl StartupTimer {
    /// Starts the time limit. Errors: 2 if the variable is not a duration.
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
            // Count ticks instead of wall-clock time, so that time during which the machine is suspended does not
            // count.
            for _ in 0..ticks(limit) {
                if over.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            end(limit, lost())
        };
        super::spawn("start", count)?;
        Ok(Some(Self(sender)))
    }
}

/// Reports that this rank is still waiting and ends the process; the launcher then ends the others.
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
    // SAFETY: ends the process without running the exit handlers of libraries. MPI is stuck or not initialised, so not
    // even MPI_Abort may be called.
    unsafe { libc::_exit(i32::from(exit as u8)) }
}
