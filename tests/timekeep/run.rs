//! `timekeep run`: limits, signals, the exit status, and leftover processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Captured, in_seconds, path_with, script, see, timekeep};

fn record_of(output: &Captured) -> serde_json::Value {
    serde_json::from_str(output.stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn the_status_of_the_command_is_passed_on() {
    for (line, status) in [("exit 0", 0), ("exit 75", 75), ("exit 255", 255), ("kill -9 $$", 137)] {
        let output = see(&mut timekeep(&["run", "--json", "--", "sh", "-c", line]));
        assert_eq!(output.status, Some(status), "{line}");
        let record = record_of(&output);
        assert_eq!((&record["cause"], &record["status"]), (&"itself".into(), &status.into()));
        let expected = format!("timekeep: child ended by itself with {status}");
        assert!(output.stderr.contains(&expected), "{}", output.stderr);
    }
    assert_eq!(see(&mut timekeep(&["run", "no-such-command"])).status, Some(127));
    assert_eq!(see(&mut timekeep(&["run", "/etc/passwd"])).status, Some(126));
    assert_eq!(see(&mut timekeep(&["run"])).status, Some(2));
    let output = see(&mut timekeep(&["run", "--limit", "60", "true"]));
    assert_eq!(output.status, Some(2));
    assert!(output.stderr.contains("--margin 00:05:00 is not shorter"), "{}", output.stderr);
    let output = see(&mut timekeep(&["run", "--limit", "soon", "true"]));
    assert!(output.status == Some(2) && output.stderr.contains("24:00:00"), "{}", output.stderr);
}

/// The outcome of a command that had set its traps, and printed `ready`, before the first signal. A machine under load
/// may need more than three seconds for that; then `run` is called again with more time.
fn once_ready(run: impl Fn(u64) -> Captured) -> Captured {
    let output =
        [3, 10, 30, 100].into_iter().map(run).find(|output| output.stdout.contains("ready"));
    output.expect("a shell that sets its traps within 100 s")
}

#[test]
fn the_command_is_warned_before_the_limit_and_knows_the_limit() {
    let line = "trap 'echo warned; sleep 0.3; exit 75' USR1
        echo ready $LONGHAUL_END_TIME; while :; do sleep 0.05; done";
    let output = once_ready(|ready_after| {
        let limit = 60 + ready_after;
        let (start, began) = (Instant::now(), in_seconds(0).parse::<u64>().unwrap());
        let words = ["run", "--limit", &limit.to_string(), "--margin", "60s", "--json", "--"];
        let output = see(timekeep(&words).args(["sh", "-c", line]));
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds > ready_after as f64, "warned after {seconds} s");
        if let Some(end) = output.stdout.lines().find_map(|line| line.strip_prefix("ready ")) {
            let (end, ended) = (end.parse().unwrap(), in_seconds(0).parse::<u64>().unwrap());
            let possible = began + limit - 1..=ended + limit;
            assert!(possible.contains(&end), "end {end}, from {began} to {ended}");
        }
        output
    });
    assert_eq!(output.status, Some(75), "{}", output.stderr);
    assert_eq!(output.stdout.lines().nth(1), Some("warned"));
    let record = record_of(&output);
    assert_eq!((&record["cause"], &record["limit_source"]), (&"warned".into(), &"--limit".into()));
    let expected = output.stderr.split_once("time limit in 00:0").unwrap().1;
    assert!(expected[4..].starts_with(": sending SIGUSR1"), "{}", output.stderr);
}

#[test]
fn slurms_limit_counts_when_it_is_earlier() {
    // It starts within its margin: the warning waits until the command has set its trap.
    let line = "trap 'exit 75' HUP; echo ready; while :; do sleep 0.05; done";
    let words =
        ["run", "--limit", "1h", "--margin", "59m", "--warn-signal", "hup", "sh", "-c", line];
    // timekeep itself waits 10 s for the trap; if the machine is too slow, one more try is enough.
    let output = once_ready(|_| {
        let job = [("SLURM_JOB_ID", "12".to_string()), ("SLURM_JOB_END_TIME", in_seconds(60))];
        see(timekeep(&words).envs(job))
    });
    assert_eq!(output.status, Some(75), "{}", output.stderr);
    let expected = "left by SLURM_JOB_END_TIME (--limit: 01:00:00)";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
}

#[test]
fn a_command_that_ignores_everything_is_killed() {
    let line = "trap '' USR1 TERM; echo ready; while :; do sleep 0.05; done";
    let output = once_ready(|limit| {
        let words =
            ["run", "--limit", &limit.to_string(), "--margin", "0", "--grace", "1", "--json"];
        let start = Instant::now();
        let output = see(timekeep(&words).args(["sh", "-c", line]));
        let seconds = start.elapsed().as_secs_f64();
        assert!(!output.stdout.contains("ready") || seconds > limit as f64 + 1.9, "{seconds} s");
        output
    });
    assert_eq!(output.status, Some(137), "{}", output.stderr);
    assert_eq!(record_of(&output)["cause"], "killed");
    let order: Vec<usize> =
        ["SIGUSR1", "SIGTERM", "SIGKILL"].iter().map(|s| output.stderr.find(s).unwrap()).collect();
    assert!(order.is_sorted(), "{}", output.stderr);
}

#[test]
fn a_command_that_only_listens_to_term_gets_it_after_the_grace() {
    let line = "trap '' USR1; trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let output = once_ready(|time| {
        // Two grace periods end in KILL; they are long enough for a machine under load.
        let (limit, grace) = (time.to_string(), (4 * time).to_string());
        let words = ["run", "--limit", &limit, "--margin", "0", "--grace", &grace, "--json"];
        see(timekeep(&words).args(["sh", "-c", line]))
    });
    assert_eq!((output.status, &record_of(&output)["cause"]), (Some(3), &"terminated".into()));
}

#[test]
fn leftover_processes_are_waited_for_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let mut command = timekeep(&["run", "--grace", "1", "sh", "-c"]);
    command.arg(format!("sleep 0.5 & sleep 60 & echo $! > {}; exit 4", pid.display()));
    let start = Instant::now();
    let output = see(&mut command);
    assert_eq!(output.status, Some(4));
    assert!((0.9..50.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    let left: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    assert!(test_kill_process(Pid::from_raw(left).unwrap()).is_err(), "still there");
}

/// A running timekeep around a script that prints the signals it receives.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, lines };
        assert_eq!(running.line(), "ready\n");
        running
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
    fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }
}

const LISTENER: &str = "for s in INT HUP USR1 USR2 CONT; do trap \"echo $s\" $s; done
    trap 'echo TERM; exit 9' TERM
    echo ready; while :; do sleep 0.02; done";

#[test]
fn signals_are_passed_on() {
    let mut running = Running::start(&mut timekeep(&["run", "sh", "-c", LISTENER]));
    for (signal, name) in [
        (Signal::USR1, "USR1\n"),
        (Signal::USR2, "USR2\n"),
        (Signal::HUP, "HUP\n"),
        (Signal::INT, "INT\n"),
        (Signal::CONT, "CONT\n"),
        (Signal::TERM, "TERM\n"),
    ] {
        running.send(signal);
        assert_eq!(running.line(), name);
    }
    assert_eq!(running.child.wait().unwrap().code(), Some(9));
}

#[test]
fn the_limit_is_kept_when_timekeep_is_killed() {
    // The shell and its child both ignore the warning and TERM.
    let line = "trap 'echo warned' USR1; trap 'echo terminated' TERM
        sh -c \"trap '' USR1 TERM; echo ready; sleep 250\" &
        for i in $(seq 2500); do sleep 0.1; done";
    let words = ["run", "--limit", "7", "--margin", "2s", "--grace", "1s", "sh", "-c", line];
    let mut running = Running::start(&mut timekeep(&words));
    super::wait_for_guard(running.child.id());
    running.child.kill().unwrap();
    assert_eq!(running.line(), "warned\n");
    // If the test is delayed, timekeep has sent the warning before it was killed, and its guard repeats it.
    let next = running.line();
    let next = if next == "warned\n" { running.line() } else { next };
    assert_eq!(next, "terminated\n");
    // End of file on stdout: no process of the group is left.
    assert_eq!(running.line(), "");
}

#[test]
fn a_limit_within_the_margin_is_warned_about() {
    let output = |left: u64, margin: &str| {
        let mut command = timekeep(&["run", "--margin", margin, "true"]);
        see(command.envs([("SLURM_JOB_ID", "12".into()), ("SLURM_JOB_END_TIME", in_seconds(left))]))
    };
    let short = output(120, "5m");
    assert_eq!(short.status, Some(0), "{}", short.stderr);
    for part in ["warning: 00:0", "told to stop 00:00:10 after its start", "LONGHAUL_MARGIN"] {
        assert!(short.stderr.contains(part), "{part}: {}", short.stderr);
    }
    assert!(output(305, "5m").stderr.contains("does little or nothing"));
    assert!(!output(400, "5m").stderr.contains("does little or nothing"));
    assert!(!output(120, "30s").stderr.contains("does little or nothing"));
}

#[test]
fn a_launcher_gets_the_warning_in_place_of_term() {
    std::thread::scope(|scope| {
        for name in ["srun", "mpirun"] {
            scope.spawn(move || launcher_is_warned(name));
        }
    });
}

fn launcher_is_warned(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let step = "trap 'echo killed; exit 9' TERM INT HUP
        trap 'echo warned' USR1; trap 'exit 7' USR2
        echo ready; while :; do sleep 0.02; done";
    script(&folder.path().join(name), step);
    let mut command = timekeep(&["run", name, "-n", "2", "train-stage"]);
    let start = Instant::now();
    let mut running = Running::start(command.env("PATH", path_with(folder.path())));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        running.send(signal);
        assert_eq!(running.line(), "warned\n");
    }
    // This signal would end a task that has just started, so it has to wait.
    running.send(Signal::USR2);
    assert_eq!(running.child.wait().unwrap().code(), Some(7));
    assert!(start.elapsed().as_secs_f64() > 9.9, "{:?}", start.elapsed());
}

#[test]
fn an_extended_limit_is_noticed_before_the_warning() {
    // At first, the warning is due in one second; when it is due, the limit has been extended by a day.
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    let lines = format!(
        "echo >> {0}; if [ $(wc -l < {0}) -eq 1 ]; then echo 0:12; else echo 1-00:00:00; fi",
        asked.display()
    );
    script(&folder.path().join("squeue"), &lines);
    // A warning would be sent immediately after the second query.
    let line = format!(
        "trap 'exit 75' USR1; while [ $(wc -l < {}) -lt 2 ]; do sleep 0.05; done; sleep 1; exit 0",
        asked.display()
    );
    let mut command = timekeep(&["run", "--margin", "11s", "sh", "-c", &line]);
    command.env("SLURM_JOB_ID", "12").env("PATH", path_with(folder.path()));
    let output = see(&mut command);
    assert_eq!(output.status, Some(0), "it was not warned: {}", output.stderr);
    assert!(
        output.stderr.contains("time limit: 1-00:00:00 left by squeue now"),
        "{}",
        output.stderr
    );
    assert_eq!(fs::read_to_string(&asked).unwrap().lines().count(), 2, "asked once more");
}

#[test]
fn a_signal_waits_until_the_command_handles_it() {
    let folder = tempfile::tempdir().unwrap();
    let line = "sleep 0.7; trap 'echo USR2 >> got' USR2; trap 'echo USR1 >> got; exit 75' USR1; \
                while :; do sleep 0.02; done";
    let mut command = timekeep(&["run", "sh", "-c", line]);
    let mut child = command.current_dir(folder.path()).spawn().unwrap();
    let id = child.id().to_string();
    let start = Instant::now();
    // Once timekeep itself runs and does not end by them.
    let status = format!("/proc/{id}/status");
    let runs = |text: String| {
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        let both = 1 << (Signal::USR1.as_raw() - 1) | 1 << (Signal::USR2.as_raw() - 1);
        text.starts_with("Name:\ttimekeep") && caught.is_some_and(|mask| mask & both == both)
    };
    while !fs::read_to_string(&status).is_ok_and(runs) {
        std::thread::sleep(Duration::from_millis(2));
    }
    for signal in ["-USR2", "-USR1"] {
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert!(start.elapsed() < Duration::from_secs(9), "not only after ten seconds");
    let got = fs::read_to_string(folder.path().join("got")).unwrap();
    assert!(got.ends_with("USR1\n"), "{got}");
}
