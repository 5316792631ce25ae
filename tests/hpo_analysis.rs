//! `hpo`: what users do with the trials of a study.

use crate::common::shell;
use crate::records::{done, refused};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A study of trials that this test runs: of every five, the first fails, the second is pruned, the others are complete.
const STUDY: &str = "command: [sh, '{x}', '{depth}', '{method}', '{momentum}']
metric: loss
trials: 30
sampler: {kind: random}
space:
  x: {kind: float, low: 1e-4, high: 1, log: true}
  depth: {kind: int, low: 1, high: 3}
  method: {kind: categorical, choices: [adam, 'a long name of a method <&>']}
  momentum: {kind: float, low: 0, high: 1, when: {method: [adam]}}
";
const RUN: &str = "hpo new study -c study.yaml
for trial in $(seq 0 19); do
    x=$(hpo ask study --json | sed 's/.*\"x\":\\([0-9.e-]*\\).*/\\1/')
    hpo tell study $trial $x --step 1
    case $((trial % 5)) in
        0) hpo tell study $trial --state diverged ;;
        1) hpo tell study $trial --state pruned ;;
        *) hpo tell study $trial $x --final ;;
    esac
done";

fn prepare(folder: &Path) {
    fs::write(folder.join("study.yaml"), STUDY).unwrap();
}

fn rows(folder: &Path, script: &str) -> Vec<Value> {
    let lines = done(folder, script).stdout;
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_study_is_drawn() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    refused(folder, "hpo new none -c study.yaml; hpo plot none", 66, "nothing to draw");
    done(folder, RUN);
    let of = |kind: &str, series: &str| {
        let all = rows(folder, &format!("hpo plot study --kind {kind} --json"));
        let found = all.iter().filter(|row| row["series"] == series).cloned();
        found.collect::<Vec<Value>>()
    };
    let failed = &of("history", "no value")[0];
    assert_eq!(failed["trials"], serde_json::json!([0, 5, 10, 15]));
    assert!(failed["ys"].as_array().unwrap().iter().all(Value::is_null), "{failed}");
    assert_eq!(of("history", "pruned")[0]["trials"], serde_json::json!([1, 6, 11, 16]));
    let best = of("history", "best")[0]["ys"].clone();
    let best: Vec<f64> = best.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert!(best.is_sorted_by(|a, b| a >= b) && best[0] > best[best.len() - 1], "{best:?}");
    assert_eq!(of("slice", "complete").len(), 4, "parameters");
    assert_eq!(of("values", "pruned").len(), 4, "trials");

    let important = rows(folder, "hpo importance study --json");
    let trials = |name: &str| {
        let row = important.iter().find(|row| row["parameter"] == name);
        row.and_then(|row| row["trials"].as_u64()).unwrap()
    };
    assert!(important.len() == 4 && trials("x") == 12 && trials("momentum") < 12, "{important:?}");
    let shares = important.iter().filter_map(|row| row["importance"].as_f64());
    assert!((shares.sum::<f64>() - 1.0).abs() < 1e-12, "{important:?}");
    refused(folder, "hpo importance none", 66, "fewer than two complete trials");

    done(folder, "hpo plot study -o all.svg");
    refused(folder, "hpo plot study -o all.svg", 73, "use --force");
    let svg = fs::read_to_string(folder.join("all.svg")).unwrap();
    for text in ["best so far", "pruned", "no value", "momentum", "a long name of a method &lt;"] {
        assert!(svg.contains(text), "{text}");
    }
    done(folder, "hpo plot study -o all.png --kind slice");
    assert!(fs::read(folder.join("all.png")).unwrap().starts_with(b"\x89PNG"));
    let text = shell(folder, "COLUMNS=80 hpo plot study").stdout;
    assert!(text.contains("loss of each trial") && text.contains("loss by momentum"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_sampler_learns_from_the_trials_of_another_study() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(folder, RUN);
    done(
        folder,
        "for format in optuna csv json; do hpo export study --format $format -o $format.out; done
         sed 's/sampler:.*/sampler: {kind: tpe, startup: 5}/; s/low: 1e-4/low: 1e-2/' study.yaml > next.yaml
         for study in without optuna csv json; do hpo new $study -c next.yaml -s name=next; done",
    );
    let xs = rows(folder, "hpo trials study --json");
    let x = |trial: &Value| trial["params"]["x"].as_f64().unwrap();
    let ended = xs.iter().filter(|trial| trial["state"] != "diverged");
    let fit = ended.filter(|trial| x(trial) >= 1e-2).count();
    for format in ["optuna", "csv", "json"] {
        let import = format!("hpo import {format} {format}.out");
        let output = done(folder, &import);
        // Only CSV says that a trial diverged, not just that it failed.
        let diverged = xs.iter().filter(|t| t["state"] == "diverged" && x(t) >= 1e-2).count();
        let count = if format == "csv" { fit + diverged } else { fit };
        let text = format!("{count} trials imported, 0 already known, {} skipped", 20 - count);
        assert!(output.stdout.contains(&text), "{}", output.stdout);
        assert!(output.stderr.contains("with x outside the space"), "{}", output.stderr);
        let again = done(folder, &import).stdout;
        assert!(again.contains(&format!("0 trials imported, {count} already known")), "{again}");
        // They are no trials of the study, which begins with an estimate instead of random numbers.
        assert_eq!(done(folder, &format!("hpo trials {format}")).stdout, "");
        let first = |study: &str| done(folder, &format!("hpo ask {study} --json")).stdout;
        let (first, without) = (first(format), first("without"));
        let params = |asked: &str| serde_json::from_str::<Value>(asked).unwrap()["params"].clone();
        assert_ne!(params(&first), params(&without), "{format}");
        refused(folder, &format!("hpo best {format}"), 1, "no trial is complete");
        fs::remove_dir_all(folder.join("without/trials/00000")).unwrap();
    }
    refused(folder, "hpo import study csv.out", 2, "does not learn from trials");
    done(folder, "hpo new other -c next.yaml -s direction=maximize");
    refused(
        folder,
        "hpo import other optuna.out",
        65,
        "minimizes its metric, but this one maximizes it",
    );
    refused(folder, "hpo import csv next.yaml", 65, "nor JSON or CSV written by hpo export");
    refused(folder, "hpo import optuna optuna.out --name b", 65, "name one of its studies");
}
