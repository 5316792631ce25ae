//! Runs SLURM commands with a timeout.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::text::line;

/// Maximum number of bytes read from each output stream.
const MAX_BYTES: u64 = 16 << 20;

/// The output of a command, regardless of its exit status.
pub(super) struct Answer {
    program: String,
    status: ExitStatus,
    /// Stdout of the command.
    pub stdout: String,
    /// Stderr of the command.
    pub stderr: String,
}

impl Answer {
    /// Whether the command succeeded.
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Returns stdout if the command succeeded, otherwise stderr as an error in one line.
    pub fn success(self) -> Result<String, String> {
        if self.is_success() {
            return Ok(self.stdout);
        }
        let lines = self.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        // The first lines of stderr describe the problem, and the last ones refer to documentation.
        let message = line(&lines.collect::<Vec<_>>().join("; "));
        let colon = if message.is_empty() { "" } else { ": " };
        Err(format!("{} failed ({}){colon}{message}", self.program, self.status))
    }
}

/// Runs a short command. On timeout, the command and its children are killed.
pub(super) fn run(program: &str, words: &[&str], timeout: Duration) -> Result<Answer, String> {
    let mut command = Command::new(program);
    command.args(words);
    answer(program, command, timeout)
}

/// Like [`run`], for a command prepared by the caller; `program` is its name in messages.
pub(super) fn answer(
    program: &str,
    mut command: Command,
    timeout: Duration,
) -> Result<Answer, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|cause| format!("{program}: {cause}"))?;
    let stdout = read_in_thread(child.stdout.take());
    let stderr = read_in_thread(child.stderr.take());
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let texts = stdout.recv_timeout(left()).and_then(|a| Ok((a, stderr.recv_timeout(left())?)));
    match (wait_until(&mut child, deadline), texts) {
        (Some(status), Ok((stdout, stderr))) => {
            Ok(Answer { program: program.into(), status, stdout, stderr })
        }
        _ => Err(format!("{program} did not answer within {} s", timeout.as_secs_f32())),
    }
}

/// Reads a pipe in a separate thread, so that a command that fills one pipe does not block while the other is read.
fn read_in_thread(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(MAX_BYTES).read_to_end(&mut text);
        }
        let _ = send.send(String::from_utf8_lossy(&text).into_owned()); // the receiver may have timed out
    });
    receive
}

fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn commands_that_fail_or_hang_are_survived() {
        let start = Instant::now();
        let short = Duration::from_millis(200);
        let late = run("sh", &["-c", "sleep 60 & sleep 60"], short).err().unwrap();
        assert!(late.contains("did not answer"), "{late}");
        assert!(start.elapsed() < Duration::from_secs(50));
        let failed = run("sh", &["-c", "echo why >&2; exit 3"], LONG).unwrap();
        assert!(!failed.is_success());
        let failed = failed.success().unwrap_err();
        assert!(failed.contains("failed") && failed.ends_with(": why"), "{failed}");
        let failed = run(
            "sh",
            &[
                "-c",
                "echo 'no such option'; echo 'no such option' >&2; echo >&2; \
                                        echo 'try --help' >&2; exit 1",
            ],
            LONG,
        );
        let failed = failed.unwrap().success().unwrap_err();
        assert!(failed.ends_with(": no such option; try --help"), "{failed}");
        assert!(run("no-such-command", &[], short).is_err());
        assert_eq!(run("echo", &["1:00"], LONG).unwrap().success().unwrap(), "1:00\n");
    }

    #[test]
    fn both_pipes_are_read() {
        let script = "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero";
        let answer = run("sh", &["-c", script], LONG).unwrap();
        assert_eq!((answer.stdout.len(), answer.stderr.len()), (300_000, 300_000));
    }
}
