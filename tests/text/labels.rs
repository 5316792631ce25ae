//! Texts with any number of labels, as users run them.

use crate::records::{done, refused};
use serde_json::{Value, json};
use std::fs;

#[test]
fn texts_with_any_number_of_labels_are_learnt_scored_and_predicted() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    // A label is there if its word is; every combination occurs, also none and all.
    let words = ["alpha", "beta", "gamma"];
    let mut lines = String::new();
    let fillers = ["so", "and", "then", "more", "of", "this", "with", "that"];
    for i in 0..800_usize {
        let own: Vec<&str> = (0..3).filter(|k| i >> k & 1 == 1).map(|k| words[k]).collect();
        let between = [i / 8, i / 64, i * 7 / 16].map(|number| fillers[number % 8]);
        let at = |k: usize| format!("{} {}", between[k], own.get(k).unwrap_or(&""));
        let text = [0, 1, 2].map(at).join(" ");
        let labels: Vec<String> = own.iter().map(|word| word.to_uppercase()).collect();
        lines += &format!("{}\n", json!({"t": text, "l": labels, "id": i}));
    }
    fs::write(folder.join("labels.jsonl"), lines).unwrap();
    fs::write(folder.join("labels.yaml"), "text: t\nlabel: l\nid: id\nmulti_label: ';'\n").unwrap();
    done(
        folder,
        "ds-prep import labels.jsonl --columns labels.yaml -o store
         ds-prep split store --train 60% --validation 20% --test 20% --seed 1 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 32 -o tokens
         train-stage classify --example > classify.yaml",
    );
    let run = "train-stage classify -c classify.yaml -s training.log_every=1 -s loss.class_weights.kind=none \
        -s model.head.pooling=max";
    done(folder, &format!("{run} -s training.updates=300 -s schedule=[] --run run"));
    let log = fs::read_to_string(folder.join("run/log.jsonl")).unwrap();
    let first = log.lines().find_map(|line| {
        serde_json::from_str::<Value>(line).ok().and_then(|line| line["loss"].as_f64())
    });
    // Of small random logits it is near log 2.
    assert!((first.unwrap() - 2.0_f64.ln()).abs() < 0.15, "{first:?}");
    assert!(log.contains("f1[ALPHA]") && log.contains("\"macro_f1\""), "{log}");
    done(folder, "evaluate score run --data tokens -o scores");
    let read = |name: &str| fs::read_to_string(folder.join("scores").join(name)).unwrap();
    let results: Value = serde_json::from_str(&read("evaluation_results.json")).unwrap();
    let of = |pointer: &str| results.pointer(pointer).and_then(Value::as_f64).unwrap();
    assert!(of("/f1_macro") > 0.95 && of("/accuracy") > 0.9, "{results}");
    assert!(of("/f1_macro") > of("/baselines/stratified/f1_macro"));
    assert!(of("/calibrated/thresholds/BETA") > 0.0 && of("/calibrated/f1_macro") > 0.95);
    let rows: Vec<Value> =
        read("predictions.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let right = rows.iter().filter(|row| row["labels"] == row["predicted"]).count();
    assert!((right as f64 / rows.len() as f64 - of("/accuracy")).abs() < 1e-12);
    assert!(read("mistakes.html").contains("GAMMA"));
    let predicted = done(
        folder,
        "printf 'so alpha then gamma and\\nso and then\\n' | evaluate predict run --inputs - -o -",
    );
    let predicted: Vec<Value> =
        predicted.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(predicted[0]["predicted"], json!(["ALPHA", "GAMMA"]));
    assert_eq!(predicted[1]["predicted"], json!([]));
    let weighted = format!("{run} --run other -s loss.class_weights.kind=balanced");
    refused(folder, &weighted, 78, "loss.class_weights: must be of kind none");

    fs::write(folder.join("none.jsonl"), "{\"t\": \"a\", \"l\": [], \"id\": 1}\n").unwrap();
    let none = "ds-prep import none.jsonl --columns labels.yaml -o none";
    refused(folder, none, 65, "none.jsonl: column `l`: no row has a label");
    // Fields of other programs: a byte order mark, and a key that is no text.
    let marked = "printf '\\357\\273\\277{\"text\": \"so alpha\"}\\n' | evaluate predict run --inputs - -o -";
    let marked: Value = serde_json::from_str(&done(folder, marked).stdout).unwrap();
    let plain = "printf 'so alpha' | evaluate predict run --inputs - -o -";
    let plain: Value = serde_json::from_str(&done(folder, plain).stdout).unwrap();
    assert_eq!(marked, plain);
    let other = "printf '{\"Text\": \"so alpha\"}' | evaluate predict run --inputs - -o -";
    refused(folder, other, 65, "line 1: the model reads `text`, but the line has neither");
}
