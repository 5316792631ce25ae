//! `timekeep` as its users run it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// timekeep without any trace of a job around the tests, and with the usual signals where the
/// tests run under nohup or in the background of a script.
fn timekeep(words: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=INT,HUP", env!("CARGO_BIN_EXE_timekeep")]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SLURM_") || name == "LONGHAUL_END_TIME" {
            command.env_remove(name);
        }
    }
    command.args(words).stdin(Stdio::null());
    command
}

struct Seen {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn see(command: &mut Command) -> Seen {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Seen { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

fn in_seconds(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (now + seconds).to_string()
}

/// An executable script; renamed into place, since a file open for writing cannot be run.
fn script(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&new, path).unwrap();
}

/// PATH with the fake command first.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

// ---- left

#[test]
fn left_by_slurms_end_time() {
    let end = [("SLURM_JOB_ID", "12".to_string()), ("SLURM_JOB_END_TIME", in_seconds(3600))];
    let seen = see(timekeep(&["left"]).envs(end.clone()));
    assert_eq!((seen.status, seen.stderr.as_str()), (Some(0), ""));
    let (seconds, rest) = seen.stdout.split_once(' ').unwrap();
    assert!((3590..=3600).contains(&seconds.parse::<u64>().unwrap()), "{}", seen.stdout);
    assert!(rest.starts_with("s left (") && rest.ends_with("says SLURM_JOB_END_TIME\n"));

    let seen =
        see(timekeep(&["left", "--json"]).envs(end).env("LONGHAUL_END_TIME", in_seconds(60)));
    let record: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    assert_eq!(record["source"], "LONGHAUL_END_TIME");
    assert!((55..=60).contains(&record["left"].as_u64().unwrap()), "{record}");
}

#[test]
fn left_without_any_limit() {
    let seen = see(&mut timekeep(&["left"]));
    assert_eq!((seen.status, seen.stdout.as_str()), (Some(0), "unlimited\n"));
    let seen = see(&mut timekeep(&["left", "--json"]));
    assert_eq!(seen.stdout, "{\"left\":null,\"source\":null}\n");
}

#[test]
fn left_asks_squeue_once_and_about_this_task_only() {
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    let squeue = folder.path().join("squeue");
    script(&squeue, &format!("echo \"$@\" >> {}; echo 1-02:03:04", asked.display()));
    let job =
        [("SLURM_JOB_ID", "120"), ("SLURM_ARRAY_JOB_ID", "120"), ("SLURM_ARRAY_TASK_ID", "7")];
    let left = || {
        let mut command = timekeep(&["left"]);
        command.envs(job).env("PATH", path_with(folder.path()));
        command
    };
    let seen = see(&mut left());
    assert!(seen.stdout.starts_with("93783 s left"), "{}{}", seen.stdout, seen.stderr);
    assert!(seen.stdout.ends_with("says squeue\n"), "{}", seen.stdout);
    assert_eq!(fs::read_to_string(&asked).unwrap(), "-h -j 120_7 -o %L\n");

    // An end handed in makes the question needless.
    let seen = see(left().env("LONGHAUL_END_TIME", in_seconds(50)));
    assert!(seen.stdout.contains("LONGHAUL_END_TIME"), "{}", seen.stdout);
    assert_eq!(fs::read_to_string(&asked).unwrap().lines().count(), 1);

    script(&squeue, "echo UNLIMITED");
    assert_eq!(see(&mut left()).stdout, "unlimited\n");
    for (text, hint) in [
        ("echo INVALID", "INVALID"),
        ("echo 'slurm_load_jobs error' >&2; exit 1", "failed"),
        ("head -c 1000 /dev/zero", "no time"),
        ("cat /dev/zero", "failed"),
        (":", "no time"),
    ] {
        script(&squeue, text);
        let seen = see(&mut left());
        assert_eq!((seen.status, seen.stdout.as_str()), (Some(0), "unlimited\n"), "{text}");
        let told = seen.stderr.starts_with("timekeep: end of the job unknown: squeue");
        assert!(told && seen.stderr.contains(hint), "{text}: {}", seen.stderr);
    }
    fs::remove_file(&squeue).unwrap();
    let seen = see(left().env("PATH", folder.path()));
    assert!(seen.stderr.contains("squeue: No such file"), "{}", seen.stderr);
}

#[test]
fn a_reader_that_is_gone_is_a_quiet_end() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut left = timekeep(&["left", "--json"]);
    let child = left.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

// ---- run

fn record_of(seen: &Seen) -> serde_json::Value {
    serde_json::from_str(seen.stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn the_status_of_the_command_is_handed_on() {
    for (line, status) in [("exit 0", 0), ("exit 75", 75), ("exit 255", 255), ("kill -9 $$", 137)] {
        let seen = see(&mut timekeep(&["run", "--json", "--", "sh", "-c", line]));
        assert_eq!(seen.status, Some(status), "{line}");
        let record = record_of(&seen);
        assert_eq!((&record["cause"], &record["status"]), (&"itself".into(), &status.into()));
        let told = format!("timekeep: child ended by itself with {status}");
        assert!(seen.stderr.contains(&told), "{}", seen.stderr);
    }
    assert_eq!(see(&mut timekeep(&["run", "no-such-command"])).status, Some(127));
    assert_eq!(see(&mut timekeep(&["run", "/etc/passwd"])).status, Some(126));
    assert_eq!(see(&mut timekeep(&["run"])).status, Some(2));
    let seen = see(&mut timekeep(&["run", "--limit", "60", "true"]));
    assert_eq!(seen.status, Some(2));
    assert!(seen.stderr.contains("--margin 00:05:00 is not shorter"), "{}", seen.stderr);
    let seen = see(&mut timekeep(&["run", "--limit", "soon", "true"]));
    assert!(seen.status == Some(2) && seen.stderr.contains("24:00:00"), "{}", seen.stderr);
}

#[test]
fn the_command_is_warned_before_the_limit_and_knows_the_limit() {
    let line = "trap 'echo warned; sleep 0.3; exit 75' USR1
        echo $LONGHAUL_END_TIME; while :; do sleep 0.05; done";
    let start = Instant::now();
    let words = ["run", "--limit", "3", "--margin", "2s", "--json", "--", "sh", "-c", line];
    let seen = see(&mut timekeep(&words));
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(seen.status, Some(75), "{}", seen.stderr);
    assert!((1.2..2.5).contains(&seconds), "{seconds} s: one until the warning, 0.3 to save");
    let mut lines = seen.stdout.lines();
    let end: u64 = lines.next().unwrap().parse().unwrap();
    let now: u64 = in_seconds(0).parse().unwrap();
    assert!((now..=now + 2).contains(&end), "end {end}, now {now}");
    assert_eq!(lines.next(), Some("warned"));
    let record = record_of(&seen);
    assert_eq!((&record["cause"], &record["limit_source"]), (&"warned".into(), &"--limit".into()));
    assert!(seen.stderr.contains("time limit in 00:00:02: sending SIGUSR1"), "{}", seen.stderr);
}

#[test]
fn slurms_limit_counts_when_it_is_earlier() {
    // It begins within its margin: the warning waits until the command listens.
    let line = "trap 'exit 75' HUP; while :; do sleep 0.05; done";
    let words =
        ["run", "--limit", "1h", "--margin", "59m", "--warn-signal", "hup", "sh", "-c", line];
    let job = [("SLURM_JOB_ID", "12".to_string()), ("SLURM_JOB_END_TIME", in_seconds(3))];
    let seen = see(timekeep(&words).envs(job));
    assert_eq!(seen.status, Some(75), "{}", seen.stderr);
    let told = "left by SLURM_JOB_END_TIME (--limit: 01:00:00)";
    assert!(seen.stderr.contains(told), "{}", seen.stderr);
}

#[test]
fn a_command_that_ignores_everything_is_killed() {
    let line = "trap '' USR1 TERM; while :; do sleep 0.05; done";
    let words =
        ["run", "--limit", "1", "--margin", "0", "--grace", "1", "--json", "sh", "-c", line];
    let start = Instant::now();
    let seen = see(&mut timekeep(&words));
    assert_eq!(seen.status, Some(137), "{}", seen.stderr);
    assert!((2.9..4.5).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    assert_eq!(record_of(&seen)["cause"], "killed");
    let order: Vec<usize> =
        ["SIGUSR1", "SIGTERM", "SIGKILL"].iter().map(|s| seen.stderr.find(s).unwrap()).collect();
    assert!(order.is_sorted(), "{}", seen.stderr);
}

#[test]
fn a_command_that_only_listens_to_term_gets_it_after_the_grace() {
    let words = ["run", "--limit", "1", "--margin", "0", "--grace", "1", "--json", "sh", "-c"];
    let line = "trap '' USR1; trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let seen = see(timekeep(&words).arg(line));
    assert_eq!((seen.status, &record_of(&seen)["cause"]), (Some(3), &"terminated".into()));
}

#[test]
fn what_the_command_leaves_behind_is_waited_for_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let mut command = timekeep(&["run", "--grace", "1", "sh", "-c"]);
    command.arg(format!("sleep 0.5 & sleep 60 & echo $! > {}; exit 4", pid.display()));
    let start = Instant::now();
    let seen = see(&mut command);
    assert_eq!(seen.status, Some(4));
    assert!((0.9..4.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    let left: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    assert!(test_kill_process(Pid::from_raw(left).unwrap()).is_err(), "still there");
}

/// A running timekeep around a script that prints the signals it gets.
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
fn srun_gets_the_warning_in_place_of_term() {
    let folder = tempfile::tempdir().unwrap();
    let step = "trap 'echo killed; exit 9' TERM INT HUP
        trap 'echo warned' USR1; trap 'exit 7' USR2
        echo ready; while :; do sleep 0.02; done";
    script(&folder.path().join("srun"), step);
    let mut command = timekeep(&["run", "srun", "--ntasks=2", "train-stage"]);
    let mut running = Running::start(command.env("PATH", path_with(folder.path())));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        running.send(signal);
        assert_eq!(running.line(), "warned\n");
    }
    running.send(Signal::USR2);
    assert_eq!(running.child.wait().unwrap().code(), Some(7));
}

// ---- the page

#[test]
fn the_manual_page_has_no_faults_and_its_examples_run() {
    let seen = see(&mut timekeep(&["--generate", "man"]));
    assert!(seen.stdout.contains(".SS timekeep run") && seen.stdout.contains(".SH EXIT STATUS"));
    match Command::new("mandoc")
        .args(["-Tlint", "-W", "warning"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    {
        Ok(mut lint) => {
            lint.stdin.take().unwrap().write_all(seen.stdout.as_bytes()).unwrap();
            let output = lint.wait_with_output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
            assert!(output.status.success());
        }
        Err(_) => eprintln!("SKIPPED: no mandoc to check the page"),
    }

    let examples = see(&mut timekeep(&["--generate", "examples"])).stdout;
    assert!(examples.lines().count() >= 4, "{examples}");
    let programs = Path::new(env!("CARGO_BIN_EXE_timekeep")).parent().unwrap();
    let ran = Command::new("sh")
        .args(["-euc", &examples])
        .env("PATH", path_with(programs))
        .current_dir(tempfile::tempdir().unwrap().path())
        .status();
    assert!(ran.unwrap().success());
}

#[test]
fn the_version_names_the_commit() {
    let seen = see(&mut timekeep(&["--version"]));
    let commit = seen.stdout.trim_end().strip_prefix("timekeep 0.1.0 (").unwrap();
    let commit = commit.strip_suffix(')').unwrap();
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    match git {
        Ok(output) if output.status.success() => {
            assert_eq!(commit, String::from_utf8(output.stdout).unwrap().trim());
        }
        _ => assert_eq!(commit, "unknown"),
    }
}
