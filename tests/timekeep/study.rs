//! `timekeep` and the studies of `hpo`: one line each, and no jobs for their trials.

use std::fs;

use serde_json::{Value, json};

use super::place::Place;
use crate::common::shell;

const STUDY: &str = "command: [sh, trial.sh, '{x}']
metric: loss
trials: 4
space: {x: {kind: categorical, choices: [3, 1]}}
sampler: {kind: random}
";
/// Waits while there is a file `hold`.
const TRIAL: &str = "while [ -e hold ]; do sleep 0.01; done
hpo tell $HPO_STUDY $HPO_TRIAL 0.12345678901 --final\n";

fn run(place: &Place, script: &str) {
    let output = shell(place.folder.path(), script);
    assert_eq!(output.status, Some(0), "{script}: {}", output.stderr);
}

#[test]
fn a_study_is_one_line_and_no_trial_is_submitted() {
    let place = Place::new();
    fs::write(place.path("study.yaml"), STUDY).unwrap();
    fs::write(place.path("trial.sh"), TRIAL).unwrap();
    place.status("a", "stopped", 100);
    run(&place, "mkdir runs; hpo new runs/search -c study.yaml");
    let of_study = || place.records(&["status", "runs/search", "a"]).remove(0);
    let state = || of_study()["state"].clone();
    assert_eq!((state(), &of_study()["best"]), ("new".into(), &Value::Null));
    run(&place, "hpo worker runs/search --trials 1 || test $? = 75");
    assert_eq!(state(), "stopped");
    // While a worker is at work; its second trial waits.
    let beside = "touch hold; hpo worker runs/search & worker=$!
        until timekeep status runs/search | grep -q running; do sleep 0.01; done
        timekeep status runs/search --json > running; rm hold; wait $worker";
    run(&place, beside);
    let text = fs::read_to_string(place.path("running")).unwrap();
    let expected = json!({"study": "search", "state": "running", "trials": 4, "ended": 1,
        "best": 0.12345678901, "trial": 0, "run": "runs/search"});
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);

    // The folders of trials are runs, which are shown if they are named.
    place.status("runs/search/trials/00001", "stopped", 50);
    let output = place.see(&["status", "runs/search", "a", "runs/search/trials/00001"]);
    let lines: Vec<Vec<&str>> =
        output.stdout.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    let study = ["runs/search", "study", "finished", "4/4", "100%"];
    assert_eq!((lines.len(), &lines[1][..5]), (4, &study[..]), "{}", output.stdout);
    assert!(output.stdout.contains("search: best 0.123457, trial 0"), "{}", output.stdout);
    assert_eq!(lines[3][2], "stopped");

    // A trial with the record of a submission is not submitted again, and no other can be.
    assert_eq!(place.see(&["submit", "a", "--", "sbatch", "job"]).status, Some(0));
    run(&place, "cp a/submit.json runs/search/trials/00001; hpo new open -c study.yaml");
    let left = place.records(&["cron", "runs/search", "runs/search/trials/00001", "open"]);
    let reasons =
        ["finished", "a trial of a study: `hpo worker`", "a study that was not submitted"];
    for (record, why) in left.iter().zip(reasons) {
        assert_eq!((&record["done"], &record["job"]), (&"left".into(), &Value::Null));
        assert!(record["why"].as_str().unwrap().starts_with(why), "{record}");
    }
    assert_eq!(left.len(), 3);
    let refused = place.see(&["submit", "runs/search/trials/00000", "--", "sbatch", "job"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("it is a trial of a study"), "{}", refused.stderr);
    assert_eq!(place.submissions().len(), 1);
    // The jobs of its workers may be submitted like those of a run.
    assert_eq!(place.see(&["submit", "open", "--", "sbatch", "worker"]).status, Some(0));
    assert_eq!(place.records(&["cron", "open"])[0]["done"], "submitted");
    assert_eq!(place.submissions().len(), 3);
}
