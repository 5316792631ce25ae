//! The behaviour that every program inherits from the frame of `unix::cli`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::common::frame;
use rustix::process::{Pid, Signal, kill_process};

fn run(words: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = frame().args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[test]
fn help_and_version_go_to_stdout_and_usage_errors_exit_with_2() {
    let version = run(&["--version"]);
    assert_eq!(version, (0, "frame 1.2.3 (abcdef123456)\n".into(), "".into()));
    let (status, stdout, stderr) = run(&["--help"]);
    assert!(status == 0 && stdout.contains("Usage: frame") && stderr.is_empty());
    let (status, stdout, stderr) = run(&["signal"]);
    assert_eq!((status, stdout.as_str()), (2, ""));
    assert!(stderr.starts_with("frame: ") && stderr.contains("'signals'"), "{stderr}");
}

#[test]
fn errors_are_one_line_and_their_own_status() {
    let line = "frame: model.width: 0 is no width; use 1 or more\n";
    assert_eq!(run(&["fail"]), (78, "".into(), line.into()));
}

#[test]
fn panics_of_any_thread_are_one_line_and_exit_with_70() {
    let start = Instant::now();
    for (words, what) in
        [(&["panic"][..], "first line\\nsecond line"), (&["panic", "--thread"], "in a worker")]
    {
        let output = frame().args(words).env_remove("RUST_BACKTRACE").output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(70));
        assert!(stderr.starts_with(&format!("frame: internal error: {what} at ")), "{stderr}");
        assert!(stderr.ends_with("(please report)\n") && stderr.lines().count() == 1, "{stderr}");
    }
    assert!(start.elapsed() < Duration::from_secs(50), "a dead worker must not be waited for");
}

#[test]
fn a_broken_pipe_ends_quietly() {
    for form in [&["rows", "1000000", "--json"][..], &["rows", "100000"], &["--help"]] {
        let mut child =
            frame().args(form).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::with_capacity(16, child.stdout.take().unwrap());
        reader.read_line(&mut String::new()).unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), output.stderr.as_slice()),
            (Some(0), &b""[..]),
            "{form:?}"
        );
    }
}

#[test]
fn progress_away_from_a_terminal_is_plain_lines() {
    let (status, stdout, stderr) = run(&["progress"]);
    assert_eq!((status, stdout.as_str()), (0, ""));
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 10);
    assert!(lines[4].starts_with("frame: steps 5/10 (50 %), 00:00:"), "{}", lines[4]);
    assert!(!stderr.contains('\x1b') && !stderr.contains('\r'));
}

struct Listener {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Listener {
    fn start() -> Self {
        // With default signal handling even if the tests run under nohup or in the background.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=INT,HUP").arg(frame().get_program()).arg("signals");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut listener = Self { child, lines };
        assert_eq!(listener.line(), "ready\n");
        listener
    }
    fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_first_stop_signal_is_a_request_and_the_second_ends_the_program() {
    use std::os::unix::process::ExitStatusExt;
    for (first, name, second) in
        [(Signal::TERM, "SIGTERM", Signal::TERM), (Signal::INT, "SIGINT", Signal::TERM)]
    {
        let mut listener = Listener::start();
        listener.send(Signal::USR2);
        assert_eq!(listener.line(), "checkpoint\n");
        listener.send(Signal::CONT);
        listener.send(first);
        assert_eq!(listener.line(), format!("stop {name}\n"));
        std::thread::sleep(Duration::from_millis(150));
        let start = Instant::now();
        listener.send(second);
        let status = loop {
            match listener.child.try_wait().unwrap() {
                Some(status) => break status,
                None => {
                    assert!(start.elapsed() < Duration::from_secs(60), "{second:?} did nothing")
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!((status.code(), status.signal()), (Some(128 + second.as_raw()), None));
    }
}

#[test]
fn user_signals_may_come_again_and_again() {
    let mut listener = Listener::start();
    listener.send(Signal::USR1);
    assert_eq!(listener.line(), "stop SIGUSR1\n");
    for signal in [Signal::USR1, Signal::HUP, Signal::USR1, Signal::TERM, Signal::USR2] {
        listener.send(signal);
    }
    assert_eq!(listener.line(), "checkpoint\n", "still there after all of them");
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let program = frame().get_program().to_os_string();
    let mut child = Command::new("nohup")
        .arg(program)
        .arg("signals")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    stdout.read_exact(&mut ready).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    kill_process(pid, Signal::USR2).unwrap();
    let mut next = [0; 11];
    stdout.read_exact(&mut next).unwrap();
    assert_eq!(&next, b"checkpoint\n", "no stop by HUP before it");
    kill_process(pid, Signal::KILL).unwrap();
    child.wait().unwrap();
}
