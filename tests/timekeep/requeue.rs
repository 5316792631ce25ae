//! What `timekeep run` requests from SLURM when the command of a batch job has ended.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Captured, path_with, script, see, timekeep};

/// The environment of a batch script.
const BATCH: [(&str, &str); 3] =
    [("SLURM_JOB_ID", "12"), ("ENVIRONMENT", "BATCH"), ("SLURM_JOB_END_TIME", "4000000000")];

/// A folder with an `scontrol` that records its calls and runs `does`; it knows nothing about any job.
fn fake(does: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    answer(folder.path(), does);
    folder
}

fn answer(folder: &Path, does: &str) {
    let calls = folder.join("calls");
    let show = "test \"$1\" != show || exit 0";
    script(
        &folder.join("scontrol"),
        &format!("{show}\necho \"$@\" >> {}\n{does}", calls.display()),
    );
}

/// The recorded requeue requests; queries about the job and changes of its start time are excluded.
fn calls(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("calls")).unwrap_or_default();
    text.lines().filter(|line| line.contains("requeue")).map(|line| format!("{line}\n")).collect()
}

fn job(folder: &Path, options: &[&str], line: &str) -> Command {
    let timekeep = timekeep(&[&["run"], options, &["sh", "-c", line]].concat());
    // Without a terminal, as in a batch job.
    let mut command = Command::new("/usr/bin/setsid");
    command.arg(timekeep.get_program()).args(timekeep.get_args()).stdin(Stdio::null());
    for (name, value) in timekeep.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.envs(BATCH).env("PATH", path_with(folder));
    command
}

fn ended(folder: &Path, options: &[&str], line: &str) -> Captured {
    see(&mut job(folder, options, line))
}

/// A process that stays until it is ended.
struct Staying(Child);

impl Staying {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
    fn is_there(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended
        let _ = self.0.wait();
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "waited too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_job_is_requeued_and_timekeep_stays() {
    let folder = fake("");
    let mut staying = Staying::start(&mut job(folder.path(), &[], "exit 75"));
    wait_until(|| calls(folder.path()) == "requeue incomplete 12\n");
    std::thread::sleep(Duration::from_millis(500));
    assert!(staying.is_there());
    // A shell around it may have a trap for TERM, and would continue with its next line.
    let id = staying.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(500));
    assert!(staying.is_there());
}

#[test]
fn a_session_in_a_terminal_of_the_job_is_left_alone() {
    let folder = fake("");
    let in_terminal = |options: &str| {
        let timekeep = env!("CARGO_BIN_EXE_timekeep");
        let line = format!("{timekeep} run {options} -- sh -c 'exit 75'");
        let mut command = Command::new("script");
        command
            .args(["-qec", &line, "/dev/null"])
            .envs(BATCH)
            .env("PATH", path_with(folder.path()));
        command.env("LONGHAUL_ON_FAILURE", "hold").stdin(Stdio::null());
        command
    };
    let output = see(&mut in_terminal(""));
    assert_eq!(output.status, Some(75), "{}", output.stdout);
    assert!(output.stdout.contains("job 12 is left alone"), "{}", output.stdout);
    assert_eq!(calls(folder.path()), "");
    let mut staying = Staying::start(&mut in_terminal("--requeue always"));
    wait_until(|| calls(folder.path()) == "requeue incomplete 12\n");
    assert!(staying.is_there());
}

/// Ends a shell and the `timekeep` in its script, whose `scontrol` runs the given commands, the way SLURM ends a job:
/// with TERM to all processes. timekeep exits together with the shell.
fn end_of_the_job(scontrol_does: &str) {
    let folder = fake(scontrol_does);
    let line =
        format!("{} run sh -c 'exit 75'; echo later >> later", env!("CARGO_BIN_EXE_timekeep"));
    let mut shell = Command::new("/usr/bin/setsid");
    shell.args(["sh", "-c", &line]).envs(BATCH).env("PATH", path_with(folder.path()));
    let mut shell = Staying::start(shell.current_dir(folder.path()));
    wait_until(|| !calls(folder.path()).is_empty());
    let children = format!("/proc/{0}/task/{0}/children", shell.0.id());
    let timekeep = fs::read_to_string(children).unwrap().trim().to_string();
    for id in [shell.0.id().to_string(), timekeep.clone()] {
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }
    wait_until(|| !shell.is_there());
    let stat = format!("/proc/{timekeep}/stat");
    wait_until(|| {
        fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
            || !Path::new(&stat).exists()
    });
    assert!(!folder.path().join("later").exists());
}

#[test]
fn no_later_line_of_the_script_runs() {
    end_of_the_job("");
}

#[test]
fn a_shell_that_is_gone_before_slurm_has_answered_is_not_waited_for() {
    end_of_the_job("sleep 1");
}

#[test]
fn a_second_job_of_a_run_comes_back_later_each_time() {
    let folder = fake("");
    let updates = || {
        let text = fs::read_to_string(folder.path().join("calls")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("update")).map(str::to_string).collect()
    };
    let mut command = job(folder.path(), &[], "exit 75");
    let _staying = Staying::start(command.env("SLURM_RESTART_COUNT", "2"));
    wait_until(|| {
        let updates: Vec<String> = updates();
        updates == ["update JobId=12 StartTime=now+120"]
    });
}

#[test]
fn a_task_of_an_array_is_requeued_alone() {
    let folder = fake("");
    let mut command = job(folder.path(), &[], "exit 75");
    command.envs([("SLURM_ARRAY_JOB_ID", "10"), ("SLURM_ARRAY_TASK_ID", "4")]);
    let _staying = Staying::start(&mut command);
    wait_until(|| calls(folder.path()) == "requeue incomplete 10_4\n");
}

#[test]
fn a_busy_controller_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let calls_file = folder.path().join("calls");
    let does = format!(
        "case $(wc -l < {}) in 1) echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1;;
         2) echo 'slurm_suspend error: Socket timed out on send/recv operation' >&2; exit 1;; esac",
        calls_file.display()
    );
    answer(folder.path(), &does);
    let mut staying = Staying::start(&mut job(folder.path(), &[], "exit 75"));
    wait_until(|| calls(folder.path()).lines().count() == 3);
    std::thread::sleep(Duration::from_millis(300));
    assert!(staying.is_there());
}

#[test]
fn an_already_requeued_job_is_not_requeued_again() {
    let folder = fake("echo 'Job is pending execution for job 12' >&2; exit 1");
    let mut staying = Staying::start(&mut job(folder.path(), &[], "exit 75"));
    wait_until(|| !calls(folder.path()).is_empty());
    std::thread::sleep(Duration::from_millis(500));
    assert!(staying.is_there());
    assert_eq!(calls(folder.path()).lines().count(), 1);
}

#[test]
fn permanent_refusals_of_slurm_are_reported() {
    for (complaint, expected) in [
        ("Requested operation is presently disabled for job 12", "--no-requeue"),
        ("Invalid job id specified for job 12", "does not know the job"),
        ("Access/permission denied for job 12", "another user"),
    ] {
        let folder = fake(&format!("echo '{complaint}' >&2; exit 1"));
        let output = ended(folder.path(), &[], "exit 75");
        assert_eq!(output.status, Some(75), "{}", output.stderr);
        assert!(output.stderr.contains(expected), "{}", output.stderr);
        assert!(output.stderr.contains("submit the same job again"), "{}", output.stderr);
        assert_eq!(calls(folder.path()).lines().count(), 1, "{complaint}");
    }
}

#[test]
fn a_controller_outage_longer_than_the_time_left_does_not_fail_the_job() {
    let folder = fake("echo 'Unable to contact slurm controller' >&2; exit 1");
    // Its time is over, but nothing ends it because the controller is down.
    let mut staying =
        Staying::start(&mut job(folder.path(), &["--limit", "2", "--margin", "0"], "exit 75"));
    wait_until(|| calls(folder.path()).lines().count() >= 3);
    assert!(staying.is_there());
    answer(folder.path(), "");
    let before = calls(folder.path()).lines().count();
    wait_until(|| calls(folder.path()).lines().count() > before);
    assert!(staying.is_there());
}

#[test]
fn the_time_limit_that_passes_during_an_outage_is_no_reason_to_give_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    // When it is back, the controller ends the job for its time limit, and ignores requests about it as `incomplete`.
    let does = format!(
        "echo \"$@\" >> {path}/calls
         if [ ! -e {path}/up ]; then echo 'Unable to contact slurm controller' >&2; exit 1; fi
         case \"$*\" in
             show*) echo \"JobId=12 Reason=TimeLimit Restarts=$(cat {path}/restarts)\" ;;
             'requeue 12') echo 1 > {path}/restarts ;;
         esac"
    );
    script(&folder.path().join("scontrol"), &does);
    fs::write(folder.path().join("restarts"), "0\n").unwrap();
    let mut staying = Staying::start(&mut job(folder.path(), &[], "exit 75"));
    wait_until(|| calls(folder.path()).lines().count() >= 2);
    fs::write(folder.path().join("up"), "").unwrap();
    let id = staying.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    wait_until(|| calls(folder.path()).contains("requeue 12\n"));
    assert!(staying.is_there());
}

#[test]
fn a_cancelled_job_is_not_reported_as_requeued() {
    // SLURM ignores requests about a job that it is ending, and reports success.
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("scontrol"), "echo JobId=12 Reason=None Restarts=0");
    let output = ended(folder.path(), &[], "kill -TERM $PPID; sleep 60");
    assert_eq!(output.status, Some(143), "{}", output.stderr);
    assert!(!output.stderr.contains("will start job"), "{}", output.stderr);
    assert!(output.stderr.contains("another reason, such as scancel"), "{}", output.stderr);
}

/// `timekeep run srun` with an `srun` that fails to start a step `failures` times.
fn srun(folder: &Path, failures: u32) -> Command {
    let does = format!(
        "echo >> {0}/steps; test $(wc -l < {0}/steps) -gt {failures} || exit ${{SLURM_EXIT_ERROR:-1}}",
        folder.display()
    );
    script(&folder.join("srun"), &does);
    let mut command = timekeep(&["run", "srun", "train-stage"]);
    command.envs(BATCH).env("PATH", path_with(folder));
    command
}

fn steps(folder: &Path) -> usize {
    fs::read_to_string(folder.join("steps")).unwrap().lines().count()
}

#[test]
fn srun_that_could_not_start_a_step_is_run_again() {
    let folder = fake("");
    let output = see(&mut srun(folder.path(), 2));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert_eq!((steps(folder.path()), calls(folder.path()).as_str()), (3, ""));
    assert!(output.stderr.contains("srun could not start a step"), "{}", output.stderr);
    // A program that itself exits with this status has failed.
    assert_eq!(ended(folder.path(), &[], "exit 254").status, Some(254));
}

#[test]
fn a_step_that_never_starts_holds_the_job_or_requeues_it_when_the_controller_is_away() {
    let folder = fake("");
    let _held = Staying::start(&mut srun(folder.path(), 99));
    wait_until(|| calls(folder.path()) == "requeuehold incomplete 12\n");
    assert_eq!(steps(folder.path()), 3);
    let folder = tempfile::tempdir().unwrap();
    let does =
        format!("test \"$1\" != show || exit 1; echo \"$@\" >> {}/calls", folder.path().display());
    script(&folder.path().join("scontrol"), &does);
    let _requeued = Staying::start(&mut srun(folder.path(), 99));
    wait_until(|| calls(folder.path()) == "requeue incomplete 12\n");
    assert_eq!(steps(folder.path()), 1);
}

/// The signal arrives while timekeep checks whether the controller answers, before it pauses to run srun again.
#[test]
fn a_signal_between_two_attempts_of_srun_stops_the_job() {
    for signal in ["TERM", "INT", "HUP", "USR1"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let does = format!(
            "if [ \"$1\" != show ]; then echo \"$@\" >> {path}/calls; exit; fi
             touch {path}/asked; while [ ! -e {path}/sent ]; do sleep 0.05; done"
        );
        script(&folder.path().join("scontrol"), &does);
        let staying = Staying::start(&mut srun(folder.path(), 99));
        wait_until(|| folder.path().join("asked").exists());
        let (option, id) = (format!("-{signal}"), staying.0.id().to_string());
        assert!(Command::new("kill").args([option, id]).status().unwrap().success());
        fs::write(folder.path().join("sent"), "").unwrap();
        wait_until(|| !calls(folder.path()).is_empty());
        assert_eq!((steps(folder.path()), &*calls(folder.path())), (1, "requeue incomplete 12\n"));
    }
}

#[test]
fn without_scontrol_the_user_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = timekeep(&["run", "/bin/sh", "-c", "exit 75"]);
    let output = see(command.envs(BATCH).env("PATH", folder.path()));
    assert_eq!(output.status, Some(75), "{}", output.stderr);
    assert!(output.stderr.contains("scontrol: No such file"), "{}", output.stderr);
    assert!(output.stderr.contains("Run timekeep outside of it"), "{}", output.stderr);
}

#[test]
fn slurm_is_only_asked_when_necessary() {
    let folder = fake("");
    let without = |name: &str, value: Option<&str>, options: &[&str], line: &str| {
        let mut command = job(folder.path(), options, line);
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
        let output = see(&mut command);
        assert_eq!(calls(folder.path()), "", "{name}");
        output.status
    };
    assert_eq!(without("X", None, &[], "exit 0"), Some(0), "finished");
    assert_eq!(without("X", None, &[], "exit 1"), Some(1), "failed");
    assert_eq!(without("X", None, &["--requeue", "never"], "exit 75"), Some(75));
    assert_eq!(without("SLURM_JOB_ID", None, &[], "exit 75"), Some(75), "no job");
    assert_eq!(without("ENVIRONMENT", None, &[], "exit 75"), Some(75), "salloc");
    assert_eq!(without("SLURM_STEP_ID", Some("0"), &[], "exit 75"), Some(75), "a step");
    assert_eq!(without("SLURM_RESTART_COUNT", Some("1000"), &[], "exit 75"), Some(75));
}

#[test]
fn failures_and_too_many_restarts_are_held_if_requested() {
    let hold = ["--on-failure", "hold", "--max-restarts", "3"];
    for (line, restarts, verb) in [
        ("exit 1", "0", "requeuehold"),
        ("exit 78", "2", "requeuehold"),
        ("kill -SEGV $$", "0", "requeuehold"),
        ("exit 75", "3", "requeuehold"),
        ("exit 75", "2", "requeue"),
        ("kill -TERM $$", "0", "requeue"),
        ("kill -KILL $$", "0", "requeue"),
    ] {
        let folder = fake("");
        let mut command = job(folder.path(), &hold, line);
        let mut staying = Staying::start(command.env("SLURM_RESTART_COUNT", restarts));
        wait_until(|| calls(folder.path()) == format!("{verb} incomplete 12\n"));
        assert!(staying.is_there(), "{line}");
    }
    let folder = fake("");
    assert_eq!(ended(folder.path(), &hold, "exit 0").status, Some(0));
    assert_eq!(calls(folder.path()), "");
}

#[test]
fn invalid_job_ids_reach_no_command() {
    let folder = fake("");
    let mut command = job(folder.path(), &[], "exit 75");
    let output = see(command.env("SLURM_JOB_ID", "12; reboot"));
    assert_eq!((output.status, calls(folder.path()).as_str()), (Some(75), ""));
    assert!(output.stderr.contains("is not a job id"), "{}", output.stderr);
}
