//! `pipeline.sh --local` with fake programs: which steps it runs, and what it refuses. `pipeline_jobs.rs` has its jobs,
//! `pipeline_killed.rs` runs a real pipeline.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::templates::{run, slurm};
use super::{Captured, script};
use crate::common::run::{send, wait_until};

const PIPELINE: &str = "folder: runs
steps:
  - {name: one, run: 'work one -c one.yaml -o {folder}/one/out'}
  - {name: two, run: 'work two -c two.yaml --board board.jsonl -o {folder}/two/out'}
  - {name: side, after: [], run: 'work side -o {folder}/side/out'}
  - name: gate
    after: [two, side]
    run: judge {folder}/two/out 1 --summary {folder}/gate/decision.json
    result: '{folder}/gate/decision.json'
  - {name: last, run: 'work last -o {folder}/last/out'}
";

/// A folder with [`PIPELINE`] and its programs, which append their first argument to `ran`.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("pipeline.yaml", PIPELINE);
    for file in ["one.yaml", "two.yaml", "board.jsonl"] {
        write(file, "1");
    }
    let work = "echo $1 >>ran; echo row >>board.jsonl; for out; do :; done; echo $1 >$out";
    script(&folder.path().join("work"), work);
    let judge = "echo gate >>ran; echo \"{\\\"score\\\": $2}\" >$4; test $2 -gt 0";
    script(&folder.path().join("judge"), judge);
    folder
}

pub fn pipeline(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Captured {
    let script = slurm("pipeline.sh");
    run(folder, &[&[script.to_str().unwrap()], words].concat(), variables)
}

fn local(folder: &Path) -> Captured {
    pipeline(folder, &["--local", "pipeline.yaml"], &[("LONGHAUL_PAUSE", "0")])
}

/// The steps that ran since the last call.
fn ran(folder: &Path) -> String {
    let path = folder.join("ran");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(path); // absent if nothing ran
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn summary(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(folder.join("summary.json")).unwrap()).unwrap()
}

#[test]
fn a_step_runs_again_only_if_something_before_it_has_changed() {
    let place = place();
    let folder = place.path();
    let runs = |expected: &str| {
        let output = local(folder);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert_eq!(ran(folder), expected, "{}", output.stderr);
        let found = summary(&folder.join("runs"));
        assert_eq!(found["state"], "done", "{found}");
        assert_eq!(found["results"], serde_json::json!({"gate": {"score": 1}}));
        assert_eq!(found["steps"].as_object().unwrap().len(), 5);
    };
    runs("one two side gate last");
    runs("");
    fs::write(folder.join("two.yaml"), "2").unwrap();
    runs("two gate last");
    fs::write(folder.join("two.yaml"), "1").unwrap();
    runs("two gate last");
    fs::remove_file(folder.join("runs/side/out")).unwrap();
    runs("side");
    fs::remove_file(folder.join("runs/summary.json")).unwrap();
    runs("");
    let longer = PIPELINE.replace("work last", "work last again");
    fs::write(folder.join("pipeline.yaml"), longer).unwrap();
    runs("last");
    fs::write(folder.join("one.yaml"), "2").unwrap();
    runs("one two gate last");
    let status = timekeep(folder, &["status", "runs/gate", "runs/one"]);
    assert_eq!(status.matches("finished").count(), 2, "{status}");
    script(&folder.join("squeue"), "");
    let output = timekeep_with_path(folder, &["cron", "runs/gate"]);
    assert!(output.stdout.contains("left"), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("finished"), "{}", output.stdout);
}

fn timekeep(folder: &Path, words: &[&str]) -> String {
    let output = super::see(super::timekeep(words).current_dir(folder));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    output.stdout
}

#[test]
fn a_gate_that_fails_stops_the_pipeline() {
    let place = place();
    let folder = place.path();
    fs::write(folder.join("pipeline.yaml"), PIPELINE.replace("out 1", "out 0")).unwrap();
    for _ in 0..2 {
        let output = local(folder);
        assert_eq!(output.status, Some(1), "{}", output.stderr);
        let said = output.stderr.lines().filter(|line| line.starts_with("pipeline.sh: "));
        let expected = "pipeline.sh: step gate failed with status 1; fix it, then run again";
        assert_eq!(said.collect::<Vec<_>>(), [expected]);
        let found = summary(&folder.join("runs"));
        assert_eq!((&found["state"], &found["failed"]), (&"failed".into(), &"gate".into()));
        assert_eq!(found["results"], serde_json::json!({"gate": {"score": 0}}));
        assert_eq!(found["steps"]["last"]["state"], "waiting", "{found}");
    }
    assert_eq!(ran(folder), "one two side gate gate");
    assert!(timekeep(folder, &["status", "runs/gate"]).contains("its command exited with 1"));
    // Its result is an output.
    script(&folder.join("judge"), "echo gate >>ran");
    fs::write(folder.join("pipeline.yaml"), PIPELINE).unwrap();
    let output = local(folder);
    assert_eq!(output.status, Some(66), "{}", output.stderr);
    assert!(output.stderr.contains("has not written its result"), "{}", output.stderr);
    assert_eq!(summary(&folder.join("runs"))["results"], serde_json::json!({}));
}

#[test]
fn a_mistake_is_one_clear_line() {
    let place = place();
    let folder = place.path();
    for (wrong, right, message) in [
        ("afer: []", "after: []", "steps.2.afer: unknown key; did you mean after?"),
        ("[tow, side]", "[two, side]", "tow is not the name of an earlier step; did you mean two?"),
        (
            "{folder}/tow/out 1",
            "{folder}/two/out 1",
            "step gate names runs/tow/out, which no earlier step makes; did you mean runs/two?",
        ),
        ("{foldr}/one", "{folder}/one", "{foldr} is not replaced; did you mean {folder}?"),
        (
            "{name: 'a%j', run: work one}",
            "{name: one, run: 'work one -c one.yaml -o {folder}/one/out'}",
            "steps.0.name: must be the name of a folder",
        ),
    ] {
        fs::write(folder.join("pipeline.yaml"), PIPELINE.replacen(right, wrong, 1)).unwrap();
        let output = local(folder);
        assert_eq!(output.status, Some(78), "{wrong}: {}", output.stderr);
        assert!(output.stderr.contains(message), "{message}\n{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
    fs::write(folder.join("pipeline.yaml"), PIPELINE.replace("work last", "wrok last")).unwrap();
    let output = local(folder);
    assert_eq!(output.status, Some(127), "{}", output.stderr);
    assert_eq!(output.stderr, "pipeline.sh: step last: wrok is not in PATH\n");
    assert!(!folder.join("runs").exists());
}

#[test]
fn a_stopped_step_runs_again_and_a_stopped_pipeline_ends() {
    let place = place();
    let folder = place.path();
    fs::write(folder.join("pipeline.yaml"), PIPELINE.replace("work two", "slow two")).unwrap();
    // Stops by itself once; the next attempt waits for a signal, and the last one succeeds.
    script(
        &folder.join("slow"),
        "echo $1 >>ran; echo >>attempts; for out; do :; done
        case $(wc -l <attempts) in
        1) exit 75 ;;
        2) trap 'exit 75' TERM; echo >waits; while :; do sleep 0.05; done ;;
        *) echo >$out ;;
        esac",
    );
    let programs = Path::new(env!("CARGO_BIN_EXE_timekeep")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), super::path_with(folder));
    let mut child = Command::new(slurm("pipeline.sh"))
        .args(["--local", "pipeline.yaml"])
        .envs([("LONGHAUL_PAUSE", "0"), ("PATH", &path)])
        .env_remove("SLURM_JOB_ID")
        .current_dir(folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| folder.join("waits").exists());
    assert!(send(child.id(), "TERM"));
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert_eq!(ran(folder), "one two two");
    assert_eq!(summary(&folder.join("runs"))["state"], "unfinished");
    let output = local(folder);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert_eq!(ran(folder), "two side gate last");
    assert_eq!(summary(&folder.join("runs"))["times"]["two"]["attempts"], 3);
}

#[test]
fn a_command_ends_when_its_timekeep_is_killed() {
    let place = place();
    let folder = place.path();
    script(
        &folder.join("work"),
        "trap 'echo >stopped; exit 75' USR1; echo >waits; while :; do sleep 0.05; done",
    );
    let path = super::path_with(folder);
    let mut child = super::timekeep(&["run", "--step", "pipeline.yaml:one"]);
    let mut child =
        child.env("PATH", path).current_dir(folder).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| folder.join("waits").exists());
    super::wait_for_guard(child.id());
    assert!(send(child.id(), "KILL"));
    child.wait().unwrap();
    wait_until(|| folder.join("stopped").exists());
}

pub fn timekeep_with_path(folder: &Path, words: &[&str]) -> Captured {
    super::see(super::timekeep(words).current_dir(folder).env("PATH", super::path_with(folder)))
}

/// A job that runs a command other than that of its step would be recorded as the step.
#[test]
fn a_job_runs_the_command_of_its_step_only() {
    let place = place();
    let folder = place.path();
    let words =
        ["run", "--step", "pipeline.yaml:one", "--", "env", "A=1", "work", "one", "-c", "one.yaml"];
    let output = timekeep_with_path(folder, &words);
    assert_eq!(output.status, Some(78), "{}", output.stderr);
    assert!(output.stderr.contains("the command of step one has changed"), "{}", output.stderr);
    let whole = [&words[..], &["-o", "runs/one/out"]].concat();
    assert_eq!(timekeep_with_path(folder, &whole).status, Some(0));
    // side does not come after two, but gate does.
    let output = timekeep_with_path(folder, &["run", "--step", "pipeline.yaml:gate"]);
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("step gate comes after two, which is not"), "{}", output.stderr);
}
