//! `hpo` with bad input, interrupted commands and damaged files: one clear error each, and nothing is lost.

use crate::common::shell;
use crate::records::{done, refused};
use std::fs;
use std::path::Path;

/// A command that must fail with one line on stderr.
fn one_line(folder: &Path, script: &str, status: i32, text: &str) {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(status), "{script}: {}", output.stderr);
    assert!(output.stderr.contains(text), "{script}: {}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{script}: {}", output.stderr);
}

/// A study whose trials report one value at once.
const STUDY: &str = "command: [sh, trial.sh, '{x}']
metric: loss
trials: 3
space: {x: {kind: float, low: 0, high: 10}}
";
const TRIAL: &str = "hpo tell $HPO_STUDY $HPO_TRIAL $1 --final\n";

fn prepare() -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    fs::write(temporary.path().join("study.yaml"), STUDY).unwrap();
    fs::write(temporary.path().join("trial.sh"), TRIAL).unwrap();
    temporary
}

fn read(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn wrong_keys_are_named_in_one_line() {
    let temporary = prepare();
    let folder = temporary.path();
    let new = "hpo new study -c study.yaml";
    for (overrides, text) in [
        ("-s trails=3", "trails: unknown key; known here: name, command"),
        ("-s space.x.hgih=3", "space.x.hgih: unknown key; known here: low, high"),
        ("-s trials=18446744073709551615", "trials: expected integer from 1 to 1000000"),
        ("-s space.x.low=-1e308 -s space.x.high=1e308", "space.x: the range is too wide"),
        ("-s direction=up", "direction: expected one of minimize, maximize"),
        ("-s pruner.kind=percentile -s pruner.percentile=101", "pruner.percentile: 101"),
    ] {
        one_line(folder, &format!("{new} {overrides}"), 78, text);
    }
    one_line(folder, &format!("{new} -s directory=/nowhere"), 66, "/nowhere");
    one_line(folder, "hpo new study -c absent.yaml", 66, "absent.yaml");
    assert!(!folder.join("study").exists());
    // The same mistakes in a study that was changed after it was created.
    done(folder, new);
    let whole = read(folder, "study/study.yaml");
    for (old, new, text) in [
        ("metric", "metrik", "unknown field `metrik`"),
        ("high: 10.0", "high: -1.0", "space.x: low 0 and high -1 must be finite"),
        ("name: study", "name: \"", "study.yaml: "),
    ] {
        assert!(whole.contains(old), "{whole}");
        fs::write(folder.join("study/study.yaml"), whole.replace(old, new)).unwrap();
        one_line(folder, "hpo worker study", 78, text);
        one_line(folder, "hpo status study", 78, text);
    }
}

#[test]
fn a_study_is_created_once_by_all_who_want_the_same_one() {
    let temporary = prepare();
    let folder = temporary.path();
    let new = "hpo new both -c study.yaml";
    done(
        folder,
        &format!(
            "for i in 1 2 3 4 5 6; do {new} & all=\"${{all-}} $!\"; done; for i in $all; do wait $i; done"
        ),
    );
    let (both, files) = (read(folder, "both/study.yaml"), done(folder, "ls -A both").stdout);
    assert_eq!(files, "study.yaml\ntrials\n");
    refused(folder, &format!("{new} -s trials=4"), 73, "it is another study");
    assert_eq!(read(folder, "both/study.yaml"), both);

    for point in ["publish.created", "publish.renamed"] {
        let killed = shell(folder, &format!("FAIL={point}:1=kill hpo new {point} -c study.yaml"));
        assert_eq!(killed.status, Some(137), "{}", killed.stderr);
        refused(folder, &format!("hpo worker {point}"), 66, "create one with `hpo new`");
        done(folder, &format!("hpo new {point} -c study.yaml && hpo worker {point}"));
    }
}

#[test]
fn every_state_is_counted_and_listed_by_itself() {
    let temporary = prepare();
    let folder = temporary.path();
    let plain = done(folder, "hpo new plain -c study.yaml && hpo worker plain && hpo status plain");
    assert!(!plain.stdout.contains("diverged"), "{}", plain.stdout);
    let status = done(
        folder,
        "hpo new study -c study.yaml -s trials=5
         for i in 1 2 3 4; do hpo ask study > asked; done
         hpo tell study 0 --state diverged
         hpo tell study 1 --state out_of_memory
         hpo tell study 2 1.5 --final
         hpo status study",
    );
    let lines: Vec<Vec<&str>> =
        status.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let [.., header, row] = &lines[..] else { panic!("{}", status.stdout) };
    let of = |name: &str| row[header.iter().position(|column| *column == name).unwrap()];
    let counts = ["asked", "diverged", "out_of_memory", "complete", "failed", "left"].map(of);
    assert_eq!(counts, ["1", "1", "1", "1", "0", "2"], "{}", status.stdout);
    let ids = |state: &str| done(folder, &format!("hpo trials study --ids --state {state}")).stdout;
    assert_eq!([ids("out_of_memory"), ids("asked"), ids("running")], ["1\n", "3\n", ""]);
    refused(folder, "hpo trials study --state finished", 2, "possible values: running");
}

#[test]
fn a_trial_whose_caller_is_gone_is_named_and_handed_back() {
    let temporary = prepare();
    let folder = temporary.path();
    done(folder, "hpo new study -c study.yaml && hpo ask study && hpo tell study 0 9 --step 1");
    let stops = shell(folder, "hpo worker study --no-wait");
    assert_eq!(stops.status, Some(75), "{}", stops.stderr);
    let advice = format!(
        "`hpo ask` started: 0; if their callers are gone, let workers run them: hpo retry {}/study 0",
        folder.display()
    );
    assert!(stops.stderr.contains(&advice), "{}", stops.stderr);
    refused(folder, "hpo retry study 1", 2, "trial 1 has not failed");
    // Only if it is named: its caller may be alive.
    assert_eq!(done(folder, "hpo retry study").stdout, "");
    let asked =
        done(folder, "hpo retry study 0 && hpo ask study && hpo trials study --ids --state asked");
    assert!(
        asked.stdout.contains("{\"trial\":0,") && asked.stdout.ends_with("}\n0\n"),
        "{}",
        asked.stdout
    );
    // A worker that waits already finds it, and says only once why it waits.
    let waits =
        done(folder, "hpo worker study 2> waits & sleep 3; hpo retry study 0; wait $!; cat waits");
    assert_eq!(waits.stdout.matches("hpo ask").count(), 1, "{}", waits.stdout);
    let trials = done(folder, "hpo trials study --state complete --json").stdout;
    assert_eq!(trials.lines().count(), 3, "{trials}");
    assert!(!trials.contains("\"value\":9.0"), "{trials}");
}

#[test]
fn a_program_that_cannot_run_costs_no_trial() {
    let temporary = prepare();
    let folder = temporary.path();
    fs::create_dir_all(folder.join("bin")).unwrap();
    fs::write(folder.join("bin/train"), "#!/bin/sh\nexec sh trial.sh $1\n").unwrap();
    let new =
        |program: &str| format!("hpo new study -c study.yaml -s 'command=[{program}, \"{{x}}\"]'");
    for (program, text) in [
        ("no-such-program", "no such program in PATH"),
        ("./train", "no such file in"),
        ("bin/train", "bin/train is not executable"),
        ("sh, absent.sh", "absent.sh: no such file in"),
        ("train-stage, codec, -c, absent.yaml", "absent.yaml: no such file in"),
    ] {
        refused(folder, &new(program), 66, text);
        assert!(!folder.join("study").exists(), "{program}");
    }
    done(folder, &format!("chmod +x bin/train; {}; chmod -x bin/train", new("bin/train")));
    refused(folder, "hpo worker study", 66, "bin/train is not executable");
    assert_eq!(done(folder, "hpo trials study").stdout, "");
    let moved =
        "mkdir home; cp trial.sh home; cd home; hpo new ../moved -c ../study.yaml; rm -r ../home";
    done(folder, moved);
    refused(
        folder,
        "hpo worker moved",
        66,
        "home: the working directory of the command is missing",
    );
    done(folder, "chmod +x bin/train; hpo worker study");
}

#[test]
fn the_command_ends_with_the_process_that_supervises_it() {
    let temporary = prepare();
    let folder = temporary.path();
    // The command is not the only process: its children must end as well.
    let trial = "echo started >> started
        test $(wc -l < started) -gt 2 || sh -c 'echo $$ > inner; sleep 300; echo late >> ended'
        hpo tell $HPO_STUDY $HPO_TRIAL $1 --final";
    fs::write(folder.join("trial.sh"), trial).unwrap();
    let script = "hpo new study -c study.yaml -s trials=1
        supervisor() { pgrep -f \"^/proc/self/exe supervise .* $PWD/study/trials/00000 \"; }
        started() { until [ $(cat started 2> /dev/null | wc -l) = $1 ] && [ -s inner ]; do sleep 0.01; done; }
        hpo worker study & worker=$!
        started 1; first=$(cat inner)
        rm inner; kill -9 $(supervisor)
        started 2; second=$(cat inner)
        kill -9 $worker $(supervisor)
        wait $worker || true
        gone() { ! grep -q '^State:.[^Z]' /proc/$1/status 2> /dev/null; }
        until gone $first && gone $second; do sleep 0.01; done
        hpo worker study
        test ! -e ended";
    done(folder, script);
    let trials = done(folder, "hpo trials study --json").stdout;
    assert!(trials.contains("\"complete\"") && trials.contains("\"attempts\":3"), "{trials}");
}

/// As SLURM does before it requeues a job.
#[test]
fn a_stop_that_reaches_every_process_is_one_request() {
    let temporary = prepare();
    let folder = temporary.path();
    let trial = "trap 'sleep 0.5; echo >> saved; exit 75' TERM
        echo > ready; while :; do sleep 0.05; done";
    fs::write(folder.join("trial.sh"), trial).unwrap();
    let script = "hpo new study -c study.yaml -s trials=1
        hpo worker study & worker=$!
        until [ -e ready ]; do sleep 0.01; done
        kill -TERM $(pgrep -f \"^/proc/self/exe supervise .* $PWD/study/trials/00000 \")
        sleep 0.2; kill -TERM $worker; wait $worker || test $? = 75";
    done(folder, script);
    assert_eq!(read(folder, "saved").lines().count(), 1);
}

#[test]
fn a_trial_that_cannot_allocate_memory_is_recorded_as_such() {
    let temporary = crate::common::run::prepare();
    let folder = temporary.path();
    // Batches of more than 1.5 GB in as much address space.
    let study = "command: [sh, trial.sh, '{batch}', '{run}']
metric: loss
trials: 1
space: {batch: {kind: int, low: 1048576, high: 1048576}}
";
    let trial = "ulimit -v 1500000
exec train-stage codec -c codec.yaml --run $2 -s training.batch_size=$1 -s training.threads=2
";
    fs::write(folder.join("study.yaml"), study).unwrap();
    fs::write(folder.join("trial.sh"), trial).unwrap();
    done(folder, "hpo new study -c study.yaml");
    let output = shell(folder, "hpo worker study || true; hpo trials study --json");
    assert!(
        output.stdout.contains("\"state\":\"out_of_memory\""),
        "{} {}",
        output.stdout,
        output.stderr
    );
    let run = shell(folder, "cat $(find study -name status.json)").stdout;
    assert!(run.contains("\"cause\": \"out_of_memory\""), "{run}{}", output.stderr);
}

#[test]
fn secrets_of_the_command_are_hidden() {
    let temporary = prepare();
    let folder = temporary.path();
    let study = STUDY.replace("'{x}'", "'{x}', --password=hunter2222");
    fs::write(folder.join("study.yaml"), study).unwrap();
    fs::write(folder.join("trial.sh"), "echo with $2 >&2; exit 3\n").unwrap();
    let output = shell(
        folder,
        "hpo new study -c study.yaml; hpo worker study || true; hpo trials study --json; hpo status study
         cat study/trials/*/trial.jsonl
         stat -c %a study/study.yaml > mode",
    );
    assert_eq!(read(folder, "mode"), "600\n");
    for text in [&output.stdout, &output.stderr] {
        assert!(!text.contains("hunter2222"), "{text}");
    }
    assert!(
        output.stdout.contains("exit status 3: with --password=${password}"),
        "{}",
        output.stdout
    );
}

#[test]
fn a_journal_of_optuna_that_was_cut_off_is_refused() {
    let temporary = prepare();
    let folder = temporary.path();
    done(folder, "hpo new study -c study.yaml -s sampler.kind=tpe");
    let create = r#"{"op_code": 0, "worker_id": "a", "study_name": "s", "directions": [1]}"#;
    for (journal, text) in [
        (format!("{create}\n{{\"op_code\": 4, \"wor"), "line 2 is incomplete"),
        (format!("{create}\n"), "none of its trials has ended"),
    ] {
        fs::write(folder.join("journal.log"), journal).unwrap();
        one_line(folder, "hpo import study journal.log", 65, text);
    }
}
