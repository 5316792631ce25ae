//! What `evaluate` and `train-stage` do with scores and splits of records.

use crate::common::{Captured, shell, with_tensor};
use crate::records::{done, metrics, npy, refused};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const CONFIG: &str = "seed: 3
data: {split: split.json, stats: stats.json}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}, padding_mode: circular}
loss: {kind: mse}
training: {updates: 30, batch_size: 16, validate_every: 30}
optimizer: {method: {kind: adamw}, learning_rate: 4e-3}
checkpoint: {every: 30}
";

/// A split of 100 records of 16 points, with a target of two channels, and the configuration of a small model.
fn prepare(folder: &Path) {
    let wave = |i: usize, at: usize| (i as f32 + 0.7 * at as f32).sin() + (i % 7) as f32;
    let inputs: Vec<f32> = (0..1600).map(|at| wave(at / 16, at % 16)).collect();
    let targets: Vec<f32> = inputs.iter().flat_map(|x| [x * x, 0.5 * x]).collect();
    npy(&folder.join("x.npy"), &[100, 16], &inputs);
    npy(&folder.join("y.npy"), &[100, 16, 2], &targets);
    fs::write(folder.join("config.yaml"), CONFIG).unwrap();
    done(
        folder,
        "ds-prep import x.npy --axes nx --target y.npy --target-axes nxc -o pairs
         ds-prep split pairs --seed 2 -o split.json
         ds-prep stats split.json",
    );
}

const TRAIN: &str = "train-stage regression -c config.yaml";

#[test]
fn scores_of_records_are_compared_ranked_and_gated() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(
        folder,
        &format!(
            "{TRAIN} --run short -s training.updates=2
             {TRAIN} --run long
             for run in short long; do evaluate score $run --data split.json -o of-$run; done"
        ),
    );
    let [short, long] = ["of-short", "of-long"].map(|report| metrics(folder, report));
    let value = |report: &Value, method: &str, metric: &str| {
        let value = report["methods"][method][metric]["value"].as_f64();
        value.unwrap_or_else(|| panic!("{method} has no {metric}"))
    };
    let times = fs::read_to_string(folder.join("of-long/times.json")).unwrap();
    let times: Value = serde_json::from_str(&times).unwrap();
    assert!(times["seconds_per_record"]["regression"].as_f64() > Some(0.0), "{times}");

    let json_rows = |output: Captured| -> Vec<Value> {
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let lines = json_rows(done(folder, "evaluate compare of-short of-long --json"));
    let line = |name: &str| &lines.iter().find(|line| line["name"] == name).unwrap()["values"];
    for (name, method, quantity) in [
        ("nrmse", "regression", "nrmse"),
        ("mae[1]", "regression", "mae[1]"),
        ("linear 3.nrmse", "linear 3", "nrmse"),
    ] {
        let both = [&short, &long].map(|report| value(report, method, quantity));
        assert_eq!(line(name), &json!(both), "{name}");
    }
    assert_eq!(line("training.updates"), &json!([2, 30]));
    let text = done(folder, "evaluate compare of-short of-long --html both.html").stdout;
    let title = long["description"].as_str().unwrap();
    assert!(text.contains(title) && text.contains("of 10 items is lower by"), "{text}");
    let html = fs::read_to_string(folder.join("both.html")).unwrap();
    assert_eq!(html.matches("<img src=\"data:image/png;base64,iVBORw0KGgo").count(), 2);

    done(
        folder,
        "evaluate leaderboard add of-short --board board.jsonl --label baseline
         evaluate leaderboard add of-long --board board.jsonl --label own",
    );
    let rows = json_rows(done(folder, "evaluate leaderboard show --board board.jsonl --json"));
    let ranks: Vec<[&Value; 3]> =
        rows.iter().map(|row| [&row["group"], &row["rank"], &row["name"]]).collect();
    assert_eq!(json!(ranks), json!([[1, 1, "of-long"], [1, 2, "of-short"]]));
    let gate = "gate of-long --board board.jsonl --baseline baseline --min-improvement";
    let gain = value(&short, "regression", "nrmse") - value(&long, "regression", "nrmse");
    assert!(gain > 1e-3, "{gain}");
    let enough = format!("{} --max-ratio rmse[0]=1", gain - 1e-6);
    done(folder, &format!("evaluate {gate} {enough}"));
    refused(folder, &format!("evaluate {gate} {}", gain + 1e-6), 1, "failed: nrmse is");

    // NaN is the worst value everywhere.
    let mut broken = long.clone();
    broken["methods"]["regression"]["nrmse"]["value"] = Value::Null;
    broken["models"]["regression"]["blake3"] = "other".into();
    fs::create_dir(folder.join("broken")).unwrap();
    fs::write(folder.join("broken/metrics.json"), broken.to_string()).unwrap();
    let gate = "evaluate gate broken --board board.jsonl --min-improvement -9";
    refused(
        folder,
        &format!("{gate} --baseline baseline"),
        1,
        "failed: nrmse: the value is NaN or infinite",
    );
    refused(
        folder,
        &format!("{gate} --baseline new --first-passes"),
        1,
        "failed: nrmse: the value is NaN or infinite",
    );
    let shown = done(
        folder,
        "evaluate leaderboard add broken --board board.jsonl --label own
         evaluate leaderboard show --board board.jsonl --csv board.csv",
    );
    let last = shown.stdout.lines().rfind(|line| line.contains("broken")).unwrap().to_string();
    assert!(last.contains("NaN") && last.trim_start().starts_with('–'), "{}", shown.stdout);
    let csv = fs::read_to_string(folder.join("board.csv")).unwrap();
    assert!(csv.lines().last().unwrap().contains("NaN"), "{csv}");
    assert!(done(folder, "evaluate compare of-long broken").stdout.contains("NaN"));

    // So it is if the model predicts infinity; it is reported in full, and predictions are refused.
    let weights = "long/ckpt/step-00000030/model.safetensors";
    with_tensor(folder, weights, "backbone.output.weight", 3e38, "large.safetensors");
    let train =
        "-s init.from=large.safetensors -s optimizer.learning_rate=1e-12 -s training.updates=2";
    done(folder, &format!("{TRAIN} {train} -s training.validate_every=1 --run large"));
    assert!(!folder.join("large/ckpt/best").exists());
    let score = "evaluate score large --data split.json -o of-large";
    let shown = shell(folder, &format!("{score} | grep regression")).stdout;
    assert!(shown.contains("NaN"), "{shown}");
    let score = format!("{score} --force");
    refused(folder, &score, 1, "the predictions of 10 of 10 records are not finite");
    assert_eq!(metrics(folder, "of-large")["methods"]["regression"]["nrmse"]["value"], Value::Null);
    let csv = fs::read_to_string(folder.join("of-large/metrics.csv")).unwrap();
    assert!(csv.contains("\n,regression,mae,,inf,,\n"), "{csv}");
    let predict = "evaluate predict large --axes nx --inputs x.npy -o large.npy";
    refused(folder, predict, 1, "the prediction for sample 0 (from 0) is not finite");
    assert!(!folder.join("large.npy").exists());

    // On another split.
    done(
        folder,
        "ds-prep split pairs --seed 3 -o other.json
         evaluate score long --data other.json -o of-other",
    );
    refused(folder, "evaluate compare of-long of-other", 65, "data_hash is");
}

#[test]
fn a_split_that_check_rejects_is_not_trained_on() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let groups: Vec<f32> = (0..100).map(|i| (i / 5) as f32).collect();
    npy(&folder.join("g.npy"), &[100], &groups);
    let import = "ds-prep import x.npy --axes nx --target y.npy --target-axes nxc --group g.npy";
    done(
        folder,
        &format!(
            "{import} -o grouped
             ds-prep split grouped --by index --train 82 --validation 8 --test 10 -o split-cut.json
             ds-prep stats split-cut.json -o stats-cut.json"
        ),
    );
    let cut = "-s data.split=split-cut.json -s data.stats=stats-cut.json --run cut";
    let problem = "record 82: is in the same group as record 80 of";
    refused(folder, "ds-prep check split-cut.json", 65, problem);
    refused(folder, &format!("{TRAIN} {cut}"), 65, problem);
    refused(folder, &format!("{TRAIN} {cut} --check"), 65, problem);
    assert_eq!(fs::read_dir(folder.join("cut/ckpt")).unwrap().count(), 0);

    // An input of the training, in another group of the validation.
    let other: Vec<f32> = groups.iter().map(|group| group + 100.0).collect();
    npy(&folder.join("g.npy"), &[100], &other);
    done(
        folder,
        &format!(
            "{import} -o other
             ds-prep split grouped --train 100% --test 0 --validation-from other -o split-same.json
             ds-prep stats split-same.json -o stats-same.json"
        ),
    );
    let same = "-s data.split=split-same.json -s data.stats=stats-same.json --run same";
    refused(folder, "ds-prep check split-same.json", 65, "has the same input as");
    refused(folder, &format!("{TRAIN} {same}"), 65, "has the same input as");
}
