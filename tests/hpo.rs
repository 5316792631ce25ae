//! `hpo`: studies as users run them, with workers and trials that are killed.

use crate::common::{Captured, shell};
use crate::records::{done, refused};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A study whose trials take a fraction of a second and report two values.
const SHORT: &str = "command: [sh, trial.sh, '{x}', '{run}']
metric: loss
space: {x: {kind: float, low: 0, high: 10}}
";
const TRIAL: &str = "sleep 0.0$((HPO_TRIAL % 7))
hpo tell $HPO_STUDY $HPO_TRIAL $1 --step 1
sleep 0.05
hpo tell $HPO_STUDY $HPO_TRIAL $1 --step 2
echo >> $2/ran
";

fn prepare(folder: &Path, study: &str) {
    fs::write(folder.join("study.yaml"), study).unwrap();
    fs::write(folder.join("trial.sh"), TRIAL).unwrap();
}

fn trials(folder: &Path, study: &str) -> Vec<Value> {
    let listed: Captured = done(folder, &format!("hpo trials {study} --json"));
    listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(name: &str, small: u64, large: u64) -> String {
    let torture = std::env::var_os("TORTURE").is_some();
    format!("{name}={}\n", if torture { large } else { small })
}

#[test]
fn killed_workers_and_trials_lose_nothing_and_double_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder, SHORT);
    // Commands of trials and workers are killed while others see the journals late.
    let numbers = [
        number("workers", 6, 64),
        number("trials", 60, 1000),
        number("commands", 10, 100),
        number("killed", 3, 10),
        // Seconds.
        number("delay", 2, 60),
    ];
    let script = format!(
        "{}
        export LONGHAUL_VISIBILITY_DELAY=$delay
        hpo new study -c study.yaml -s trials=$trials -s attempts=1000 -s 'sampler={{kind: tpe}}'
        worker() {{ hpo worker study >> out 2>&1 & }}
        for i in $(seq $workers); do worker; done
        while [ $commands -gt 0 ] && ! hpo status study --json | grep -q '\"left\":0'; do
            sleep 0.1
            victim=$(pgrep -f \"^sh trial.sh .*$PWD/\" | shuf -n 1) || continue
            kill -9 $victim 2> /dev/null || continue
            commands=$((commands - 1))
            if [ $((commands % 3)) = 0 ] && [ $killed -gt 0 ]; then
                # The jobs of this shell only; dash lists none in a pipeline.
                jobs -p > jobs
                pid=$(shuf -n 1 jobs)
                kill -9 $pid 2> /dev/null && killed=$((killed - 1)) && worker
            fi
        done
        wait || true
        echo $killed > spared
        # Whatever a killed worker has left is finished by one more.
        hpo worker study",
        numbers.concat()
    );
    done(folder, &script);
    let spared = fs::read_to_string(folder.join("spared")).unwrap();
    assert_ne!(format!("killed={spared}"), number("killed", 3, 10), "no worker was killed");
    let found = trials(folder, "study");
    let count: usize = number("", 60, 1000).trim().trim_start_matches('=').parse().unwrap();
    assert_eq!(found.len(), count);
    for trial in &found {
        assert_eq!(trial["state"], "complete", "{trial}");
        assert_eq!(trial["value"], trial["params"]["x"], "{trial}");
        let name = format!("study/trials/{:05}", trial["trial"].as_u64().unwrap());
        let journal = fs::read_to_string(folder.join(&name).join("trial.jsonl")).unwrap();
        let ends = journal.lines().filter(|line| line.contains("\"kind\":\"end\"")).count();
        assert_eq!(ends, 1, "{name}: {journal}");
        assert!(folder.join(&name).join("ran").exists(), "{name}");
    }
    let numbers: Vec<u64> = found.iter().map(|trial| trial["trial"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..count as u64).collect::<Vec<_>>());
    // Without the snapshot the journals say the same.
    fs::remove_file(folder.join("study/snapshot.json")).unwrap();
    assert_eq!(trials(folder, "study"), found);
}

#[test]
fn a_trial_that_is_killed_is_resumed_to_the_bit_and_a_pruned_one_stays() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let keys =
        "checkpoint.every: {kind: fixed, value: 10}, training.log_every: {kind: fixed, value: 1}";
    let options =
        format!("-c study.yaml -s trials=3 -s name=x -s pruner.kind=none -s 'space={{{keys}}}'");
    done(
        folder,
        &format!(
            "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 6 --seed 1 -o data
             ds-prep split data/*.hdf5 --seed 1 -o split.json
             ds-prep stats split.json
             train-stage codec --example > codec.yaml
             hpo new --example > study.yaml
             hpo new whole {options} && hpo worker whole
             hpo new killed {options}"
        ),
    );
    // Every attempt of a trial dies at its 30th record, and then the worker itself.
    let killed = shell(folder, "FAIL=log.write:30=kill hpo worker killed");
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    // How many trials are complete by then depends on how often the worker has looked at their logs.
    let ended = trials(folder, "killed").iter().filter(|t| t["state"] == "complete").count();
    let remain = shell(folder, "hpo worker killed --trials 1");
    let status = if ended + 1 < 3 { 75 } else { 0 };
    assert_eq!(remain.status, Some(status), "{}", remain.stderr);
    done(folder, "hpo worker killed");
    let of = |study: &str| {
        let params = |trial: &Value| (trial["params"].clone(), trial["value"].clone());
        trials(folder, study).iter().map(params).collect::<Vec<_>>()
    };
    assert_eq!(of("whole"), of("killed"));
    for trial in trials(folder, "killed") {
        let number = trial["trial"].as_u64().unwrap();
        let weights = |study: &str| {
            let run = format!("{study}/trials/{number:05}/ckpt/step-00000060/model.safetensors");
            fs::read(folder.join(run)).unwrap()
        };
        assert!(weights("whole") == weights("killed"), "trial {number}");
    }
    let attempts = |trial: &Value| trial["attempts"].as_u64().unwrap();
    assert!(trials(folder, "killed").iter().map(attempts).max() > Some(3));
    done(
        folder,
        "hpo best whole > best.yaml && train-stage codec -c codec.yaml -c best.yaml --run best",
    );

    // The second of two trials hardly learns, and has so many updates that it would take a minute.
    fs::write(
        folder.join("pruned.yaml"),
        "command: [train-stage, codec, -c, codec.yaml]
metric: nrmse
trials: 9
names: {rate: optimizer.learning_rate, few: training.updates, many: training.updates}
space:
  rate: {kind: categorical, choices: [3e-3, 1e-8]}
  few: {kind: fixed, value: 60, when: {rate: [3e-3]}}
  many: {kind: fixed, value: 20000, when: {rate: [1e-8]}}
  training.validate_every: {kind: fixed, value: 20}
sampler: {kind: grid}
pruner: {kind: median, startup: 1}
",
    )
    .unwrap();
    done(folder, "hpo new pruned -c pruned.yaml && hpo worker pruned");
    let pruned = trials(folder, "pruned");
    assert_eq!(pruned.len(), 2);
    let pruned = pruned.iter().find(|trial| trial["state"] == "pruned").expect("a pruned trial");
    let run = format!("pruned/trials/{:05}", pruned["trial"].as_u64().unwrap());
    let again = format!("train-stage codec -c {run}/config.yaml --run {run}");
    refused(folder, &again, 1, "pruned: other trials of the study were better");
    let status = done(folder, &format!("timekeep status {run} --json")).stdout;
    assert!(status.contains("\"held\""), "{status}");
}

#[test]
fn rounds_narrow_the_space_and_a_caller_may_run_trials() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let study = "command: [sh, trial.sh, '{x}', '{run}']
metric: score
direction: maximize
seed: 4
space: {x: {kind: float, low: 0, high: 10}, y: {kind: categorical, choices: [a, b]}}
names: {x: model.x}
rounds:
  - {name: coarse, trials: 12, sampler: {kind: sobol}}
  - {name: fine, trials: 3, narrow: {top: 3, widen: 0.1}, fidelity: {steps: 7}}
";
    prepare(folder, &study.replace("'{run}'", "'{run}', '{y}', '{params}'"));
    done(folder, "hpo new study -c study.yaml\nhpo worker study");
    let found = trials(folder, "study");
    let x = |trial: &Value| trial["params"]["x"].as_f64().unwrap();
    let mut coarse: Vec<f64> = found[..12].iter().map(x).collect();
    coarse.sort_by(|a, b| b.total_cmp(a));
    let margin = 0.1 * (coarse[0] - coarse[2]);
    assert!(found[12..].iter().all(|trial| x(trial) >= coarse[2] - margin), "{found:?}");
    let fine = fs::read_to_string(folder.join("study/trials/00013/params.yaml")).unwrap();
    assert!(fine.contains("steps: 7") && fine.contains("model:\n  x: "), "{fine}");
    let best = fs::read_to_string(folder.join("study/rounds/coarse/best_config.yaml")).unwrap();
    let best: BTreeMap<&str, &str> =
        best.lines().filter_map(|line| line.split_once(": ")).collect();
    assert_eq!(best["x"].parse::<f64>().unwrap(), coarse[0]);
    let history = fs::read(folder.join("study/rounds/fine/trials_history.json")).unwrap();
    let history: Vec<Value> = serde_json::from_slice(&history).unwrap();
    assert_eq!((history.len(), &history[2]["state"]), (3, &Value::from("COMPLETE")));
    assert_eq!(done(folder, "hpo trials study --round fine --ids").stdout, "12-14\n");

    let asked = done(
        folder,
        "hpo new mine -c study.yaml -s 'rounds=[]' -s trials=2 \
            -s 'pruner={kind: median, startup: 1, min_trials: 1}'
         hpo ask mine --json; hpo tell mine 0 5 --step 1; hpo tell mine 0 6 --final
         hpo ask mine --json; hpo tell mine 1 -5 --step 1",
    );
    assert!(asked.stdout.lines().last() == Some("prune"), "{}", asked.stdout);
    done(folder, "hpo tell mine 1 --state pruned");
    refused(folder, "hpo ask mine", 1, "all trials of the study have been started");
    refused(folder, "hpo tell mine 1 3 --final", 2, "trial 1 has ended");
    refused(folder, "hpo tell mine 7 3 --final", 2, "has not been started");
}

#[test]
fn no_command_runs_twice_and_none_that_was_stopped_is_complete() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder, &SHORT.replace("'{run}'", "'{run}', '{number}'"));
    // The worker is killed, but not what its command has started.
    let children = "sh -c 'sleep 1; echo $HPO_TRIAL >> ended' &
        hpo tell $HPO_STUDY $HPO_TRIAL 5 --step 10
        wait
        hpo tell $HPO_STUDY $HPO_TRIAL 6 --final";
    fs::write(folder.join("trial.sh"), children).unwrap();
    done(
        folder,
        "hpo new study -c study.yaml -s trials=2
         hpo worker study & worker=$!
         while ! grep -q value study/trials/00000/trial.jsonl 2> /dev/null; do sleep 0.01; done
         kill -9 $worker; wait $worker || true
         hpo worker study",
    );
    // The final value counts, not the best one.
    assert_eq!(done(folder, "sort ended").stdout, "0\n1\n");
    assert!(trials(folder, "study").iter().all(|trial| trial["value"] == 6.0));

    // A program that catches TERM and says that all is well.
    let trap = "trap 'exit 0' TERM
        hpo tell $HPO_STUDY $HPO_TRIAL $3 --step 1
        sleep 60 & wait";
    fs::write(folder.join("trial.sh"), trap).unwrap();
    let pruner = "-s 'pruner={kind: median, startup: 1, min_trials: 1}'";
    done(
        folder,
        &format!(
            "hpo new caught -c study.yaml -s trials=2 {pruner}
             hpo ask caught > asked
             hpo tell caught 0 -3 --step 1
             for value in 1 2 3; do hpo tell caught 0 $value --final & done; wait || true
             hpo worker caught"
        ),
    );
    let journal = fs::read_to_string(folder.join("caught/trials/00000/trial.jsonl")).unwrap();
    assert_eq!(journal.matches("\"kind\":\"end\"").count(), 1, "{journal}");
    assert_eq!(trials(folder, "caught")[1]["state"], "pruned");
    let stopped =
        shell(folder, "hpo new late -c study.yaml -s trials=1 && hpo worker late --time 1s");
    assert_eq!(stopped.status, Some(75), "{}", stopped.stderr);
    assert_eq!(trials(folder, "late")[0]["state"], "stopped");
}

#[test]
fn mistakes_and_damage_are_named_and_lose_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder, SHORT);
    let new = |overrides: &str| format!("hpo new study -c study.yaml -s trials=3 {overrides}");
    for (overrides, text) in [
        (
            "-s 'space={x: {kind: float, low: 2, high: 1}}'",
            "space.x: low 2 and high 1 must be finite",
        ),
        ("-s 'space={x: {kind: float, low: 0, high: 1, log: true}}'", "the logarithm of 0"),
        (
            "-s 'space={x: {kind: int, low: 1, high: 2, when: {z: [1]}}}'",
            "space.x: when: there is no parameter z",
        ),
        ("-s 'space={x: {kind: int, low: 1, high: 2, when: {x: [9]}}}'", "x is never 9"),
        ("-s sampler.kind=tpa", "did you mean tpe?"),
        ("-s 'rounds=[{name: a, trials: 2}]'", "trials: cannot be combined with rounds"),
        ("-s 'command=[sh, trial.sh]'", "no argument contains {x} or {params}"),
        (
            "-s 'command=[train-stage, codec]' -s 'space={optimizer.learnin_rate: {kind: float, low: 0, high: 1}}'",
            "did you mean optimizer.learning_rate?",
        ),
        (
            "-s 'command=[train-stage, codec]' -s 'space={optimizer.method.kind: {kind: categorical, choices: [adm]}}'",
            "\"adm\": expected",
        ),
    ] {
        refused(folder, &new(overrides), 78, text);
        assert!(!folder.join("study").exists(), "{overrides}");
    }
    refused(folder, "hpo worker study", 66, "create one with `hpo new`");
    done(folder, &new(""));
    done(folder, &new(""));
    refused(folder, &new("-s seed=5"), 73, "it is another study");
    refused(
        folder,
        "mkdir full && touch full/x && hpo new full -c study.yaml -s trials=1",
        73,
        "not empty",
    );

    // A program that fails every time is not tried forty times.
    fs::write(folder.join("trial.sh"), "echo cannot find the data >&2; exit 3").unwrap();
    refused(
        folder,
        "hpo worker study",
        1,
        "the first 3 trials failed, the last with: exit status 3: cannot find the data",
    );
    fs::write(folder.join("trial.sh"), TRIAL).unwrap();
    done(folder, "hpo retry study && hpo worker study");
    // Garbage in a journal costs only the damaged line.
    let journal = folder.join("study/trials/00001/trial.jsonl");
    let whole = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, whole.replacen("{\"time\"", "garbage\n{\"time\"", 2)).unwrap();
    fs::remove_file(folder.join("study/snapshot.json")).unwrap_or_default();
    let listed = done(folder, "hpo status study --json");
    assert!(listed.stdout.contains("\"complete\":3"), "{}", listed.stdout);
    assert!(listed.stderr.contains("skipped") && listed.stderr.contains("trial.jsonl"));
    done(folder, "hpo worker study");

    // A full disk ends the worker; the trial is resumed.
    done(folder, "hpo new other -c study.yaml -s trials=2");
    let full = shell(folder, "FAIL=log.write:2=enospc hpo worker other");
    assert_eq!(full.status, Some(74), "{}", full.stderr);
    assert!(full.stderr.contains("trial.jsonl"), "{}", full.stderr);
    done(folder, "hpo worker other");
}
