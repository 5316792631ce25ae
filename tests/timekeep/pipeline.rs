//! `pipeline.sh` with fake programs: which steps it runs, checks and submits. `pipeline_killed.rs` runs a real pipeline.

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

fn pipeline(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Captured {
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
    assert!(send(child.id(), "KILL"));
    child.wait().unwrap();
    wait_until(|| folder.join("stopped").exists());
}

const STAGES: &str = "folder: runs
steps:
  - name: codec
    run: train-stage codec -c c.yaml --run {folder}/codec
  - name: operator
    run: train-stage operator -c o.yaml --run {folder}/operator -s data.train={folder}/codec/x
    sbatch: --nodes=2
  - name: small
    run: evaluate score {folder}/operator --data split.json --steps=4 --stride 2 -o {folder}/small
  - name: side
    after: [codec]
    run: evaluate analyze {folder}/codec
";

/// A folder with [`STAGES`]: `sbatch` appends its arguments to `submitted`, the programs theirs to `checked`.
fn stages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in
        [("c.yaml", ""), ("o.yaml", ""), ("split.json", ""), ("pipeline.yaml", STAGES)]
    {
        fs::write(folder.path().join(file), text).unwrap();
    }
    script(&folder.path().join("squeue"), "");
    script(
        &folder.path().join("sbatch"),
        "echo \"$LONGHAUL_STEP $*\" >>submitted; echo $((100 + $(wc -l <submitted)))",
    );
    for program in ["train-stage", "evaluate"] {
        let text = format!(
            "echo {program} \"$@\" >>checked
            case \"$*\" in *--dry-run*) echo '{{\"updates\":20,\"seconds\":5400.0,\"cost\":0}}' ;; esac"
        );
        script(&folder.path().join(program), &text);
    }
    folder
}

#[test]
fn a_job_waits_for_those_of_the_steps_before_it() {
    let place = stages();
    let folder = place.path();
    let output = pipeline(folder, &["pipeline.yaml", "--account=us"], &[]);
    assert_eq!(
        (output.status, output.stdout.as_str()),
        (Some(0), "101 102 103 104\n"),
        "{}",
        output.stderr
    );
    let text = fs::read_to_string(folder.join("submitted")).unwrap();
    let submitted: Vec<&str> = text.lines().collect();
    for (job, parts) in [
        (0, ["pipeline.yaml:codec ", "--job-name=codec", "--output=runs/codec/slurm-%j.out"]),
        (
            1,
            [
                "--dependency=afterok:101 ",
                "--account=us --nodes=2 ",
                "train.sbatch train-stage operator",
            ],
        ),
        (2, ["--dependency=afterok:102 ", "LONGHAUL_ON_FAILURE=hold", "data split.json --steps=4"]),
        (3, ["--dependency=afterok:101 ", "pipeline.yaml:side ", "evaluate analyze runs/codec"]),
    ] {
        for part in parts {
            assert!(submitted[job].contains(part), "{part}: {}", submitted[job]);
        }
    }
    assert!(!submitted[0].contains("--dependency"), "{}", submitted[0]);
    let checked = fs::read_to_string(folder.join("checked")).unwrap();
    assert_eq!(
        checked,
        "train-stage codec -c c.yaml --run runs/codec --check\n\
         evaluate check --config o.yaml --data split.json --steps 4 --stride 2\n"
    );
    assert_eq!(summary(&folder.join("runs"))["state"], "unfinished");

    // A step that is up to date is not submitted, and the next one does not wait for it.
    let word = timekeep_with_path(folder, &["run", "--step", "pipeline.yaml:codec"]);
    assert_eq!(word.status, Some(0), "{}", word.stderr);
    fs::remove_file(folder.join("submitted")).unwrap();
    let output = pipeline(folder, &["pipeline.yaml"], &[]);
    assert_eq!(
        (output.status, output.stdout.as_str()),
        (Some(0), "done 101 102 103\n"),
        "{}",
        output.stderr
    );
    let text = fs::read_to_string(folder.join("submitted")).unwrap();
    assert!(!text.lines().next().unwrap().contains("--dependency"), "{text}");

    // The message of sbatch is shown completely.
    script(&folder.join("sbatch"), "echo 'no such option: x' >&2; echo 'Try --help' >&2; exit 1");
    let output = pipeline(folder, &["pipeline.yaml"], &[]);
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("no such option: x; Try --help"), "{}", output.stderr);
}

fn timekeep_with_path(folder: &Path, words: &[&str]) -> Captured {
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

#[test]
fn nothing_is_submitted_if_a_step_could_not_work() {
    let place = stages();
    let folder = place.path();
    for (options, variables) in [
        (&["--time=5"][..], &[][..]),
        (&["-t", "4:30"], &[]),
        (&[], &[("SBATCH_TIMELIMIT", "3")]),
        (&["--time=00:20:00"], &[("LONGHAUL_MARGIN", "20m")]),
    ] {
        let output = pipeline(folder, &[&["pipeline.yaml"], options].concat(), variables);
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{options:?}");
        assert!(output.stderr.contains("time limit"), "{}", output.stderr);
    }
    // sbatch treats zero as no limit.
    for (options, variables) in [
        (&["--time=0"][..], &[][..]),
        (&["-t", " 0:00 "], &[]),
        (&["--time=INFINITE"], &[]),
        (&[], &[("SBATCH_TIMELIMIT", "0")]),
        (&["--time= 60 "], &[("LONGHAUL_MARGIN", " 20m\t")]),
    ] {
        let output =
            pipeline(folder, &[&["--check", "pipeline.yaml"], options].concat(), variables);
        assert_eq!(output.status, Some(0), "{options:?} {variables:?}: {}", output.stderr);
    }
    for program in ["train-stage", "evaluate"] {
        script(&folder.join(program), "echo too few frames >&2; exit 2");
        let output = pipeline(folder, &["pipeline.yaml"], &[]);
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{}", output.stderr);
        assert!(output.stderr.contains("too few frames\npipeline.sh: step"), "{}", output.stderr);
        script(&folder.join(program), "");
    }
    assert!(!folder.join("runs").exists() && !folder.join("submitted").exists());
}

#[test]
fn a_dry_run_shows_time_and_cost() {
    let place = stages();
    let folder = place.path();
    let site = folder.join("site");
    fs::write(&site, "LONGHAUL_RATE_PER_HOUR=2\n").unwrap();
    let output = pipeline(folder, &["--dry-run", "--site", "site", "pipeline.yaml"], &[]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let lines: Vec<String> = output
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "step state hours cost",
        "codec ready 1.500 3.00 estimated",
        "operator waiting - - unknown until the steps before it are done: codec",
        "small waiting - - unknown until the steps before it are done: operator",
        "side waiting - - unknown until the steps before it are done: codec",
        "total 1.500 3.00 and 3 unknown",
    ];
    assert_eq!(lines, expected);
    let status = r#"{"task":"codec","state":"finished","update":1,"updates":1,"best":null,"reason":null,
                     "cost":{"hours":0.25,"device_hours":0.25}}"#;
    fs::create_dir_all(folder.join("runs/codec")).unwrap();
    fs::write(folder.join("runs/codec/status.json"), status).unwrap();
    assert_eq!(
        timekeep_with_path(folder, &["run", "--step", "pipeline.yaml:codec"]).status,
        Some(0)
    );
    let output = pipeline(folder, &["--dry-run", "pipeline.yaml"], &[]);
    assert!(output.stdout.contains("measured"), "{}", output.stdout);
    assert!(output.stdout.lines().nth(1).unwrap().contains(" 0.250 "), "{}", output.stdout);
}
