//! The supervisor, a process between the worker and the command of a trial. It stops the command if the worker is
//! killed, and ensures that at most one instance of the command runs at a time.

use super::command::code;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use unix::lease::Lease;
use unix::signal::Signals;
use unix::{Error, Exit, Result};

/// The hidden subcommand of hpo that runs the command of a trial ([`supervise`]).
pub const VERB: &str = "supervise";
/// Time that a command has to write a checkpoint after a stop request.
const GRACE: Duration = Duration::from_secs(600);
/// Polling interval. Forwarding a signal within 0.1 s ensures that the command treats a signal sent to both the
/// supervisor and the command as one: a second one counts only after 0.1 s ([`unix::signal`]).
const POLL: Duration = Duration::from_millis(10);

/// Runs a command for the worker `parent` and returns its exit status. While the command runs, this process holds the
/// lease `folder`/command, so that the command is not started twice, even if the worker is killed. When a stop is
/// requested or the worker dies, `signal` is sent to the command and its descendants; processes still running after
/// [`GRACE`] are killed. Errors: 66 if the program does not exist; 75 if the worker is gone or another process holds
/// the lease.
pub fn supervise(parent: u32, signal: &str, folder: &Path, words: &[String]) -> Result<u8> {
    let signals = Signals::install()?;
    set_parent_process_death_signal(Some(Signal::USR1))
        .map_err(|cause| Error::failure(format!("prctl: {cause}")))?;
    if std::os::unix::process::parent_id() != parent {
        return Err(Error::new(Exit::Again, "the worker was killed"));
    }
    let _lease = Lease::take(&folder.join("command"), || Ok(1), &|| false)?;
    let (program, arguments) = words.split_first().ok_or_else(|| Error::usage("no command"))?;
    let guard = Guard::start().map_err(|cause| Error::failure(format!("sh: {cause}")))?;
    let child =
        Command::new(program).args(arguments).process_group(guard.group.as_raw_pid()).spawn();
    let mut child = child.map_err(|cause| Error::open(Path::new(program), cause))?;
    let send = |signal: Signal| {
        let _ = kill_process_group(guard.group, signal); // the group may have just ended
    };
    let signal = if signal == "USR1" { Signal::USR1 } else { Signal::TERM };
    let mut requested: Option<Instant> = None;
    loop {
        let status = child.try_wait();
        let status = status.map_err(|cause| Error::failure(format!("wait: {cause}")))?;
        if let Some(status) = status {
            // Stop descendants that outlived the command.
            send(Signal::TERM);
            return Ok(code(status));
        }
        match requested {
            None if signals.stop_requested().is_some() => {
                requested = Some(Instant::now());
                send(signal);
            }
            Some(since) if since.elapsed() > GRACE => send(Signal::KILL),
            _ => {}
        }
        std::thread::sleep(POLL);
    }
}

/// The leader of the process group in which the command and its descendants run. It kills the group when its stdin is
/// closed, which happens when the supervisor is killed; `PR_SET_PDEATHSIG` would reach only the command itself.
/// Processes that leave the group are not killed.
struct Guard {
    process: Child,
    group: Pid,
}

impl Guard {
    const SCRIPT: &str = "trap '' HUP INT TERM USR1 USR2; echo; read -r _; kill -KILL 0";

    /// Starts the process and waits until it ignores signals sent to the group.
    fn start() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", Self::SCRIPT]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        process.stdout.take().map_or(Ok(()), |mut stdout| stdout.read_exact(&mut [0]))?;
        let group = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        Ok(Self { process, group })
    }
}

/// Kills the leader only, not the group.
impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have been killed with the command
        let _ = self.process.wait();
    }
}
