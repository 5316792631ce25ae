//! Comparisons, gates, leaderboards and analyses.

use std::fs;
use std::sync::Once;

use super::{evaluate, json, world};
use crate::common::{Captured, run, shell};
use serde_json::Value;

/// Evaluations of two codecs with the same protocol, in `first` and `second`.
fn scored() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (model, folder) in [("codec", "first"), ("other-codec", "second")] {
            let output = evaluate(&format!("{model} --steps 2 --starts 2 -o {folder}"));
            assert_eq!(output.status, Some(0), "{}", output.stderr);
        }
    });
}

fn program(words: &str) -> Captured {
    shell(world(), &format!("evaluate {words}"))
}

/// A successful command.
fn done(words: &str) -> Captured {
    let output = program(words);
    assert_eq!(output.status, Some(0), "evaluate {words}: {}", output.stderr);
    output
}

fn rows(board: &str) -> Vec<Value> {
    let output = done(&format!("leaderboard show --board {board} --json"));
    output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn nrmse(folder: &str) -> f64 {
    json(&format!("{folder}/metrics.json"))["methods"]["codec"]["nrmse"]["value"].as_f64().unwrap()
}

/// The name of the losses of an evaluation.
fn losses_name(folder: &str) -> String {
    let text = fs::read_to_string(world().join(folder).join("losses.csv")).unwrap();
    text.lines().next().unwrap().rsplit(',').next().unwrap().to_string()
}

#[test]
fn a_gate_compares_with_the_best_row_of_the_same_protocol() {
    scored();
    done("leaderboard add first --board gate.jsonl --label baseline");
    let again = done("leaderboard add first --board gate.jsonl --label baseline --json");
    assert!(again.stdout.contains("\"added\":false"), "{}", again.stdout);
    assert_eq!(rows("gate.jsonl").len(), 1);
    let (baseline, candidate) = (nrmse("first"), nrmse("second"));
    let gate = |folder: &str, words: &str| {
        program(&format!("gate {folder} --board gate.jsonl --baseline champion --baseline {words}"))
    };
    // Just inside and just outside of both limits.
    let (gain, ratio) = (baseline - candidate, candidate / baseline);
    for (gain, ratio, status) in [
        (gain - 1e-6, 1.001 * ratio, 0),
        (gain + 1e-6, 1.001 * ratio, 1),
        (gain - 1e-6, 0.999 * ratio, 1),
    ] {
        let words = format!(
            "baseline --min-improvement {gain} --max-ratio nrmse={ratio} --json --summary decision.json --force"
        );
        let output = gate("second", &words);
        let decision = json("decision.json");
        assert_eq!(decision["passed"], status == 0, "{decision}");
        assert_eq!(decision["baseline"]["label"], "baseline", "{decision}");
        assert_eq!(output.status, Some(status), "{}", output.stderr);
        let check: Value = serde_json::from_str(output.stdout.lines().next().unwrap()).unwrap();
        assert_eq!(check["candidate"].as_f64(), Some(candidate));
        assert_eq!(check["baseline"].as_f64(), Some(baseline));
        assert_eq!((&check["metric"], &check["direction"]), (&"nrmse".into(), &"minimize".into()));
        assert_eq!(output.stderr.contains("failed: nrmse is"), status == 1, "{}", output.stderr);
    }
    let output = gate("second", "baseline --min-improvement -9 --max-ratio no_such=1");
    assert_eq!(output.status, Some(1), "a missing metric fails");
    assert!(output.stderr.contains("no_such: the report has no such metric"), "{}", output.stderr);
    // Without a baseline: another label, the candidate's own row, another protocol.
    done("leaderboard add second --board gate.jsonl --label own");
    let output = evaluate("codec --steps 3 --starts 2 -o three-steps");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    for (folder, label) in [("second", "reference"), ("second", "own"), ("three-steps", "baseline")]
    {
        let output = gate(folder, label);
        assert_eq!((output.status, output.stderr.lines().count()), (Some(66), 1), "{folder}");
        assert!(output.stderr.contains("gate.jsonl has no row labelled champion or"), "{folder}");
        assert_eq!(gate(folder, &format!("{label} --first-passes")).status, Some(0), "{folder}");
    }
    let output = gate("second", "reference --first-passes --metric no_such");
    assert_eq!(output.status, Some(1), "{}", output.stderr);
}

#[test]
fn a_line_that_a_crash_left_incomplete_costs_only_itself() {
    scored();
    let path = world().join("torn.jsonl");
    done("leaderboard add first --board torn.jsonl --label a");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();
    done("leaderboard add second --board torn.jsonl --label b");
    let output = done("leaderboard show --board torn.jsonl --json");
    assert!(output.stderr.contains("skipped 1 damaged lines: 2"), "{}", output.stderr);
    let labels: Vec<Value> = rows("torn.jsonl").iter().map(|row| row["label"].clone()).collect();
    let best_first = if nrmse("first") < nrmse("second") { ["a", "b"] } else { ["b", "a"] };
    assert_eq!(labels, best_first);
}

#[test]
fn results_and_rows_of_an_earlier_version_name_the_commands_that_make_them_again() {
    scored();
    fs::create_dir(world().join("old")).unwrap();
    let old = r#"{"format": "longhaul-evaluation", "version": 1, "protocol": {}}"#;
    fs::write(world().join("old/metrics.json"), old).unwrap();
    fs::create_dir(world().join("old-texts")).unwrap();
    fs::write(world().join("old-texts/evaluation_results.json"), "{}").unwrap();
    assert_eq!(program("compare old-texts").status, Some(65));
    for words in [
        "compare first old",
        "gate old --board old.jsonl --baseline a --first-passes",
        "leaderboard add old --board old.jsonl --label a",
    ] {
        let output = program(words);
        assert_eq!((output.status, output.stderr.lines().count()), (Some(65), 1), "{words}");
        assert!(output.stderr.contains("evaluate score RUN --data DATA -o old --force"), "{words}");
    }
    let row = serde_json::json!({"label": "a", "name": "old", "metrics": {}});
    let path = world().join("earlier.jsonl");
    unix::log::append_once(&path, &row, |record| record.contains_key("metrics")).unwrap();
    let output = done("leaderboard show --board earlier.jsonl --json");
    assert_eq!(output.stdout, "");
    assert!(output.stderr.contains("skipped 1 rows of an earlier version"), "{}", output.stderr);
    assert!(output.stderr.contains("evaluate leaderboard add"), "{}", output.stderr);
}

#[test]
fn rows_of_concurrent_writers_are_all_kept() {
    scored();
    let script = "
        for writer in 1 2 3 4 5 6 7 8; do
            (for n in $(seq 25); do
                evaluate leaderboard add first --board many.jsonl --label $writer-$n > many-$writer.out
            done) &
        done
        wait";
    let output = shell(world(), script);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let text = fs::read_to_string(world().join("many.jsonl")).unwrap();
    assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 200);
    let mut labels: Vec<String> =
        rows("many.jsonl").iter().map(|row| row["label"].as_str().unwrap().to_string()).collect();
    labels.sort();
    labels.dedup();
    assert_eq!(labels.len(), 200);
}

#[test]
fn boards_rank_within_a_protocol_and_are_exported() {
    scored();
    let output = evaluate("codec --steps 4 --starts 2 -o four-steps");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    for folder in ["second", "four-steps", "first"] {
        let notes = "'<b>a & b</b>, \"c\"'";
        done(&format!("leaderboard add {folder} --board three.jsonl --label x --notes {notes}"));
    }
    let mut best = ["first", "second"];
    best.sort_by(|a, b| nrmse(a).total_cmp(&nrmse(b)));
    let expected = [(1, 1, best[0]), (1, 2, best[1]), (2, 1, "four-steps")];
    let rows = rows("three.jsonl");
    assert_eq!(rows.len(), 3);
    for (row, (group, rank, name)) in rows.iter().zip(expected) {
        assert_eq!((&row["group"], &row["rank"]), (&group.into(), &rank.into()));
        assert_eq!(row["name"], name);
    }
    let words = "leaderboard show --board three.jsonl --csv three.csv --html three.html";
    done(words);
    assert_eq!(program(words).status, Some(73), "existing files are not overwritten");
    done(&format!("{words} --force"));
    let csv = fs::read_to_string(world().join("three.csv")).unwrap();
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let at = |name: &str| header.iter().position(|own| *own == name).unwrap();
    // The quoted notes contain one comma.
    let cells: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(cells[at("codec.nrmse") + 1].parse::<f64>().unwrap(), nrmse("second"));
    assert!(csv.contains("\"<b>a & b</b>, \"\"c\"\"\""), "{csv}");
    let html = fs::read_to_string(world().join("three.html")).unwrap();
    assert!(html.contains("&lt;b&gt;a &amp; b&lt;") && !html.contains("<b>"), "{html}");
}

#[test]
fn evaluations_are_compared_if_their_protocols_are_equal() {
    scored();
    let output = done("compare first second --json");
    let lines: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = |name: &str| &lines.iter().find(|line| line["name"] == name).unwrap()["values"];
    assert_eq!(line("nrmse"), &serde_json::json!([nrmse("first"), nrmse("second")]));
    let group = |folder: &str| {
        let group = json(&format!("{folder}/metrics.json"))["groups"][1].clone();
        assert_eq!(group["name"], "nu=0.1");
        group["methods"]["codec"]["nrmse"]["value"].clone()
    };
    assert_eq!(line("nu=0.1"), &serde_json::json!([group("first"), group("second")]));
    let difference = lines.iter().find(|line| line["kind"] == "difference").unwrap();
    let losses = |folder: &str| -> Vec<f64> {
        let text = fs::read_to_string(world().join(folder).join("losses.csv")).unwrap();
        text.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse().unwrap()).collect()
    };
    let (first, second) = (losses("first"), losses("second"));
    let mean = second.iter().zip(&first).map(|(b, a)| b - a).sum::<f64>() / first.len() as f64;
    let found = difference["values"][1].as_f64().unwrap();
    assert!((found - mean).abs() <= 1e-12 * first[0], "{difference} is not {mean}");
    let bounds = &difference["intervals"][1];
    assert!(bounds[0].as_f64() <= Some(found) && bounds[1].as_f64() >= Some(found), "{difference}");
    let keys: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "config").collect();
    assert_eq!((keys.len(), &keys[0]["name"]), (1, &"seed".into()), "{keys:?}");
    done("compare first second --html both.html --markdown both.md");
    let markdown = fs::read_to_string(world().join("both.md")).unwrap();
    let row = markdown.lines().find(|line| line.starts_with("| nrmse ")).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let better = usize::from(nrmse("second") < nrmse("first"));
    assert!(cells[2 + better].starts_with("**") && !cells[3 - better].starts_with("**"), "{row}");
    let change = 100.0 * (nrmse("second") / nrmse("first") - 1.0);
    assert_eq!(cells[4], format!("{change:+.1}"));
    let html = fs::read_to_string(world().join("both.html")).unwrap();
    assert_eq!(html.matches("<img src=\"data:image/png;base64,iVBORw0KGgo").count(), 6);
    assert!(!html.contains("http") && !html.contains("<script") && !html.contains("src=\"/"));

    let output = evaluate("codec --steps 1 --starts 2 -o one-step");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let compared = done("compare first second").stdout;
    let items = format!("second: the mean {} of {} items is ", losses_name("first"), first.len());
    assert!(compared.contains(&items), "{items}: {compared}");
    let output = program("compare first one-step");
    assert_eq!((output.status, output.stderr.lines().count()), (Some(65), 1), "{}", output.stderr);
    assert!(output.stderr.contains("steps is 2 and 1"), "{}", output.stderr);
    assert_eq!(program("compare first codec").status, Some(2), "an evaluation and a run");
}

#[test]
fn settings_may_differ_in_a_comparison_and_are_shown() {
    for views in [1, 2] {
        let words = format!("operator --steps 2 --starts 2 --views {views} -o setting-{views}");
        assert_eq!(evaluate(&words).status, Some(0));
    }
    let output = done("compare setting-1 setting-2 --json");
    let line = output.stdout.lines().find(|line| line.contains("evaluation.views")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["kind"], &line["values"]), (&"config".into(), &serde_json::json!([1, 2])));
}

#[test]
fn runs_are_compared_and_analysed_from_their_logs() {
    let output = done("analyze codec --html codec.html --markdown codec.md --json");
    let analysis: Value = serde_json::from_str(&output.stdout).unwrap();
    let of_log = |name: &str, kind: &str, field: &str| -> Vec<f64> {
        let records = run::records(&world().join(name));
        let records = records.iter().filter(|record| record["kind"] == kind);
        records.map(|record| record[field].as_f64().unwrap()).collect()
    };
    let loss = of_log("codec", "update", "loss");
    let found = &analysis["quantities"];
    assert_eq!(found["loss, first"].as_f64(), Some(loss[0]));
    assert_eq!(found["loss, lowest"].as_f64(), loss.iter().copied().reduce(f64::min));
    let nrmse = of_log("codec", "validation", "nrmse");
    assert_eq!(found["validation, best"].as_f64(), nrmse.iter().copied().reduce(f64::min));
    assert_eq!((&found["attempts"], &found["updates"]), (&1.into(), &20.into()));
    assert_eq!((&analysis["task"], &analysis["state"]), (&"codec".into(), &"finished".into()));
    let html = fs::read_to_string(world().join("codec.html")).unwrap();
    assert_eq!(html.matches("data:image/png;base64,iVBORw0KGgo").count(), 1);
    assert!(
        fs::read_to_string(world().join("codec.md")).unwrap().starts_with("# Analysis of codec\n")
    );

    let output = done("compare codec other-codec --json");
    let line = output.stdout.lines().find(|line| line.contains("\"loss, first\"")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let other = of_log("other-codec", "update", "loss");
    assert_eq!(line["values"], serde_json::json!([loss[0], other[0]]));
    let output = program("compare codec operator");
    assert_eq!((output.status, output.stderr.lines().count()), (Some(65), 1), "{}", output.stderr);
    assert!(output.stderr.contains("their tasks differ (codec and operator)"), "{}", output.stderr);
}
