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
    let results: Value = serde_json::from_str(&read("metrics.json")).unwrap();
    let of = |pointer: &str| results.pointer(pointer).and_then(Value::as_f64).unwrap();
    let f1 = |method: &str| of(&format!("/methods/{method}/f1_macro/value"));
    let accuracy = of("/methods/classify/accuracy/value");
    assert!(f1("classify") > 0.95 && accuracy > 0.9, "{results}");
    assert!(f1("classify") > f1("stratified"));
    let calibrated = |name: &str| of(&format!("/details/calibrated/{name}"));
    assert!(calibrated("thresholds/BETA") > 0.0 && calibrated("f1_macro") > 0.95);
    let rows: Vec<Value> =
        read("predictions.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let right = rows.iter().filter(|row| row["labels"] == row["predicted"]).count();
    assert!((right as f64 / rows.len() as f64 - accuracy).abs() < 1e-12);
    assert!(read("worst.html").contains("GAMMA"));
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
    // Blank lines are texts as well, and each line of the output names that of the input.
    let blank = "printf 'so alpha\\n\\n  \\nso beta\\n' | evaluate predict run --inputs - -o -";
    let rows: Vec<Value> = done(folder, blank)
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.iter().map(|row| &row["line"]).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(rows[0]["probabilities"], plain["probabilities"]);
    // The file that was imported, with the names of its columns.
    let columns = "evaluate predict run --inputs labels.jsonl --columns labels.yaml -o all.jsonl";
    done(folder, columns);
    let rows = fs::read_to_string(folder.join("all.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 800);
    assert!(rows.lines().next().unwrap().starts_with("{\"line\":1,\"id\":\"0\","), "{rows:.200}");
    let unnamed = "evaluate predict run --inputs labels.jsonl -o other.jsonl";
    refused(folder, unnamed, 65, "line 1: no column text; the columns are");
    let other = "printf '{\"Text\": \"so alpha\"}' | evaluate predict run --inputs - -o -";
    refused(folder, other, 65, "line 1: the model reads `text`, but the line has neither");
    if test_support::require_program("mpirun", &["--version"]) {
        let ranks = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; mpirun --oversubscribe -n 2";
        done(
            folder,
            &format!(
                "{ranks} evaluate predict run --inputs labels.jsonl --columns labels.yaml -o p.jsonl"
            ),
        );
        assert_eq!(fs::read_to_string(folder.join("p.jsonl")).unwrap(), rows);
    }
}

#[test]
fn what_was_made_of_groups_labels_and_shares_is_said() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let row = |i: usize| {
        let (group, label) = match i {
            // One large group; most rows have none.
            0..40 => ("p1", "spam"),
            40..99 => ("", ["ham", "Spam"][i % 2]),
            _ => ("p2", "0"),
        };
        let words = [i % 7, i % 11, i % 13].map(|n| format!("w{n}x{i}")).join(" ");
        format!("{words},{label},{group}\n")
    };
    let rows: String = (0..100).map(row).collect();
    fs::write(folder.join("t.csv"), format!("text,label,post\n{rows}")).unwrap();
    fs::write(folder.join("c.yaml"), "text: text\nlabel: label\ngroup: post\n").unwrap();
    let said = done(folder, "ds-prep import t.csv --columns c.yaml -o store").stderr;
    for part in ["59 of 100 records have no group", "the labels Spam, spam are different classes"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let split =
        "ds-prep split store --seed 1 --train 30% --validation 35% --test 35% -o split.json";
    for command in [split, "ds-prep check split.json"] {
        let said = done(folder, command).stderr;
        for part in [
            "59 of 100 records have no group",
            "records, not 30 as its share",
            "has no record with the label",
        ] {
            assert!(said.contains(part), "{command}: {part}: {said}");
        }
    }
    // 59 texts without a group are 59 groups, and `unique` leaves out none of them.
    let unique = "text: text\ncriterion: label\ngroup: post\nunique: true\n";
    fs::write(folder.join("unique.yaml"), unique).unwrap();
    let found = done(folder, "ds-prep import t.csv --columns unique.yaml -o unique --json").stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["records"], 61);
    // Lists.
    fs::write(folder.join("l.jsonl"), "{\"text\": \"a\", \"label\": [\"x\", \"y;z\"]}\n").unwrap();
    fs::write(folder.join("l.csv"), "text,label\na,\"['x', 'y']\"\nb,x\n").unwrap();
    fs::write(folder.join("one.yaml"), "text: text\nlabel: label\n").unwrap();
    fs::write(folder.join("any.yaml"), "text: text\nlabel: label\nmulti_label: ';'\n").unwrap();
    refused(
        folder,
        "ds-prep import l.jsonl --columns one.yaml -o x",
        65,
        "line 1: column `label`: a list of labels; set",
    );
    refused(
        folder,
        "ds-prep import l.jsonl --columns any.yaml -o x",
        65,
        "y;z contains the separator",
    );
    refused(
        folder,
        "ds-prep import l.csv --columns one.yaml -o lists",
        0,
        "look like lists, and each is one class",
    );
    refused(
        folder,
        "ds-prep import l.csv --columns any.yaml -o any",
        0,
        "no record has more than one label",
    );
}

#[test]
fn near_duplicates_are_kept_together_by_the_command_that_audit_names() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    // 30 texts, each in four versions that differ in a word.
    let row = |i: usize| {
        let words = (0..25).map(|at| match at == 3 + i % 4 {
            true => format!("other{}", i % 4),
            false => format!("w{}", (i / 4 * 31 + at * 7919) % 9973),
        });
        format!("{},{}\n", words.collect::<Vec<_>>().join(" "), i / 4 % 2)
    };
    let rows: String = (0..120).map(row).collect();
    fs::write(folder.join("t.csv"), format!("text,label\n{rows}")).unwrap();
    fs::write(folder.join("c.yaml"), "text: text\nlabel: label\n").unwrap();
    done(
        folder,
        "ds-prep import t.csv --columns c.yaml -o store; ds-prep split store -o split.json",
    );
    refused(
        folder,
        "ds-prep audit split.json",
        1,
        "ds-prep split --near 0.20 keeps such records in one split",
    );
    done(folder, "ds-prep split store --near 0.2 -o apart.json; ds-prep audit apart.json");
    refused(
        folder,
        "ds-prep split store --near 0.2 --by torch -o x.json",
        2,
        "--near: no effect on --by torch",
    );
    refused(folder, "ds-prep audit absent.json", 66, "absent.json");
}

#[test]
fn a_row_of_many_cases_takes_memory_in_proportion_to_the_row() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let cases = vec![json!({"start_char": 0, "end_char": 1}); 10_000];
    fs::write(folder.join("row.jsonl"), json!({"c": "ab cd", "k": cases}).to_string()).unwrap();
    fs::write(folder.join("c.yaml"), "context: c\ncases: k\n").unwrap();
    // Copies of the list with each of its cases have 3 GB.
    let import = "ulimit -v 1000000; RAYON_NUM_THREADS=1 ds-prep import row.jsonl --columns c.yaml -o store --json";
    let row: Value = serde_json::from_str(&done(folder, import).stdout).unwrap();
    assert_eq!(row["records"], 10_000);
}
