//! Answers in contexts, and classes and answers at once, as users run them.

use crate::common::shell;
use crate::records::{done, refused};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn lines_of(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Given the inputs in `rows` again, which an evaluation wrote, a model says the same of them.
fn same_when_predicted(folder: &Path, run: &str, rows: &[Value], inputs: &[&str]) {
    let input = |row: &Value| {
        let pick = |key: &&str| ((*key).to_string(), row[*key].clone());
        Value::Object(inputs.iter().map(pick).collect()).to_string() + "\n"
    };
    fs::write(folder.join("inputs.jsonl"), rows.iter().map(input).collect::<String>()).unwrap();
    let command = format!("evaluate predict {run} --inputs inputs.jsonl -o {run}.jsonl");
    done(folder, &command);
    let found = lines_of(&folder.join(format!("{run}.jsonl")));
    assert_eq!(found.len(), rows.len());
    for (found, row) in found.iter().zip(rows) {
        for key in ["predicted_span", "start_index", "candidates", "predicted", "probabilities"] {
            assert_eq!(found[key], row[key], "{key}");
        }
    }
}

#[test]
fn answers_are_found_in_windows_and_training_resumes_to_the_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    // Contexts of about 60 tokens in windows of 48.
    done(
        folder,
        "ds-prep gen criteria -o data --samples 3000 --seed 4 --difficulty easy --per-post 1
         ds-prep import data/annotations.csv --columns data/spans.yaml -o store
         ds-prep split store --seed 1 -o split.json
         ds-prep check split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 48 --stride 24 -o tokens
         train-stage span --example > span.yaml",
    );
    let run = "train-stage span -c span.yaml -s training.log_every=1";
    done(folder, &format!("{run} --run run -s training.updates=400"));
    let scored = done(folder, "evaluate score run --data tokens -o scores");
    assert!(scored.stdout.contains("first occurrence"), "{}", scored.stdout);
    let results = json_of(&folder.join("scores/metrics.json"));
    let exact = |method: &str| results["methods"][method]["exact_match"]["value"].as_f64().unwrap();
    let (ours, first) = (exact("span"), exact("first occurrence"));
    assert!(ours > 0.7 && first < 0.5, "{ours} {first}");
    assert_eq!(results["details"]["no_answer_threshold"], Value::Null);
    assert!(folder.join("scores/worst.html").exists());
    let predictions = lines_of(&folder.join("scores/predictions.jsonl"));
    assert_eq!(predictions.len() as u64, results["samples"].as_u64().unwrap());
    let exact = predictions.iter().filter(|row| row["exact_match"] == true).count();
    assert!((exact as f64 / predictions.len() as f64 - ours).abs() < 1e-9);
    for row in &predictions {
        let [start, end] =
            ["start_index", "end_index"].map(|key| row[key].as_u64().unwrap() as usize);
        let context: Vec<char> = row["context"].as_str().unwrap().chars().collect();
        assert_eq!(row["predicted_span"], String::from_iter(&context[start..end]));
        let scores: Vec<f64> = row["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|candidate| candidate["score"].as_f64().unwrap())
            .collect();
        assert!(scores.len() == 5 && scores.is_sorted_by(|a, b| a >= b), "{row}");
    }
    same_when_predicted(folder, "run", &predictions, &["text", "context"]);

    let short = "-s training.updates=30 -s training.validate_every=20 -s checkpoint.every=10 -s schedule=[] \
        -s model.head.dropout=0.1";
    done(folder, &format!("{run} {short} --run whole"));
    let killed = shell(folder, &format!("FAIL=log.write:26=kill {run} {short} --run killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    done(folder, &format!("{run} {short} --run killed -s training.threads=1"));
    let weights = |run: &str| {
        fs::read(folder.join(run).join("ckpt/step-00000030/model.safetensors")).unwrap()
    };
    assert!(weights("whole") == weights("killed"));

    done(folder, "ckpt export run --format hf -o hf");
    let config = json_of(&folder.join("hf/config.json"));
    assert_eq!(config["architectures"][0], "BertForQuestionAnswering");
    // The exported model with its head is the same one.
    done(
        folder,
        &format!(
            "ckpt config hf --head > hf.yaml
             {run} {short} -c hf.yaml --run back -s training.updates=1 -s optimizer.learning_rate=1e-30 \
                 -s model.head.dropout=0.0
             evaluate score back --data tokens -o back-scores"
        ),
    );
    let back = json_of(&folder.join("back-scores/metrics.json"));
    assert_eq!(back["methods"], results["methods"]);

    // Answers of about 14 tokens in windows that share 2.
    let lost = done(
        folder,
        "ds-prep tokenize split.json --tokenizer tokenizer --max-length 26 --stride 2 -o narrow
         train-stage span -c span.yaml -s data.tokens=narrow -s model.head.max_answer=3 -s training.updates=1 \
             -s schedule=[] --run narrow-run",
    );
    for text in ["are not completely inside any window", "have more than 3 tokens"] {
        assert!(lost.stderr.contains(text), "{}", lost.stderr);
    }
    for (command, status, text) in [
        (
            "ds-prep tokenize split.json --tokenizer tokenizer --max-length 24 --stride 20 -o t",
            65,
            "raise --max-length",
        ),
        (
            "train-stage classify --example > c.yaml; train-stage classify -c c.yaml --run c",
            78,
            "use task span",
        ),
        (
            "train-stage joint --example > j.yaml; train-stage joint -c j.yaml --run j",
            78,
            "no labels",
        ),
        (
            "train-stage span -c span.yaml -s model.encoder.type_vocab_size=1 --run s",
            78,
            "the tokens have 2 segments",
        ),
        (
            "printf '{\"context\": \"x\", \"text\": \"y\"}\nx\n' | evaluate predict run --inputs - -o -",
            65,
            "-: line 2: the model reads `text` and `context`",
        ),
    ] {
        refused(folder, command, status, text);
    }
}

#[test]
fn answers_come_as_texts_or_characters_and_may_be_missing() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    // The context names a colour, or none, in the midst of letters beyond ASCII.
    let colours = ["red", "green", "blue", "grey"];
    let (mut by_text, mut by_character) = (String::new(), String::new());
    for i in 0..240_usize {
        let colour = colours[i % 4];
        let has = i % 3 != 0;
        let shown = if has { colour } else { "odd" };
        let context = format!("ö{} ß thing {i} is {shown} naïve", "x".repeat(i % 7));
        let start = context.chars().count() - " naïve".chars().count() - shown.chars().count();
        let answer = if has { shown.to_uppercase() } else { String::new() };
        let row = json!({"q": "colour", "c": context, "a": answer, "id": i});
        by_text += &format!("{row}\n");
        let (from, to) = match has {
            true => (json!(start), json!(start + shown.len())),
            false => (Value::Null, Value::Null),
        };
        let row = json!({"q": "colour", "c": context, "from": from, "to": to, "id": i});
        by_character += &format!("{row}\n");
    }
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("text.jsonl", &by_text);
    write("character.jsonl", &by_character);
    write("text.yaml", "text: q\ncontext: c\nanswer: a\nid: id\n");
    write("character.yaml", "text: q\ncontext: c\nanswer_start: from\nanswer_end: to\nid: id\n");
    done(
        folder,
        "ds-prep import text.jsonl --columns text.yaml -o text
         ds-prep import character.jsonl --columns character.yaml -o character
         for i in 0 1 2 3 100 200; do
             ds-prep show text --sample $i --json | sed 's/text.jsonl//' > a
             ds-prep show character --sample $i --json | sed 's/character.jsonl//' > b
             cmp a b
         done
         ds-prep split text --seed 2 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 32 -o tokens
         train-stage span --example > span.yaml
         train-stage span -c span.yaml --run run -s training.updates=250 -s training.validate_every=250 -s schedule=[]
         evaluate score run --data tokens -o scores",
    );
    let results = json_of(&folder.join("scores/metrics.json"));
    let of = |pointer: &str| results.pointer(pointer).unwrap().as_f64().unwrap();
    // The margin from which on an answer is better than none comes from the validation split.
    assert!(of("/details/no_answer_threshold").is_finite());
    let exact = |method: &str| of(&format!("/methods/{method}/exact_match/value"));
    assert!(exact("no answer") > 0.1 && exact("span") > exact("no answer"), "{results}");
    assert!(of("/details/with_answer") < of("/samples"));

    write(
        "wrong.jsonl",
        "{\"q\":\"a\",\"c\":\"b\",\"a\":\"b\"}\n\n{\"q\":\"a\",\"c\":\"b\",\"a\":\"z\"}\n",
    );
    write("far.jsonl", "{\"c\":\"bc\",\"f\":1,\"t\":3}\n");
    write("plain.yaml", "text: q\ncontext: c\nanswer: a\n");
    write("lenient.yaml", "text: q\ncontext: c\nanswer: a\nstrict: false\n");
    write("far.yaml", "context: c\nanswer_start: f\nanswer_end: t\n");
    write("half.yaml", "context: c\nanswer_start: f\n");
    write("none.yaml", "label: l\n");
    for (command, status, text) in [
        ("ds-prep import wrong.jsonl --columns plain.yaml -o x", 65, "line 3: column `a`"),
        ("ds-prep import far.jsonl --columns far.yaml -o x", 65, "line 1: `answer_start` 1"),
        (
            "ds-prep import far.jsonl --columns half.yaml -o x",
            78,
            "`answer_start` with `answer_end`",
        ),
        (
            "ds-prep import far.jsonl --columns none.yaml -o x",
            78,
            "unless `context`, `messages`, `prompt` or `image` does",
        ),
        ("ds-prep import wrong.jsonl --columns lenient.yaml -o y", 0, "1 rows were dropped"),
    ] {
        refused(folder, command, status, text);
    }
}

/// The rules of the ground truth that other projects build from annotations: a known criterion, the first annotation of each
/// pair of post and criterion, and one record for each case.
#[test]
fn cases_of_annotations_become_records() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let case = |start: usize, end: usize, text: &str| json!({"start_char": start, "end_char": end, "text": text});
    let row = |post: &str, criterion: &str, cases: Value| json!({"p": post, "c": criterion, "t": "ö a b", "cases": cases, "s": " Present"});
    let rows = [
        row("1", "A", json!([case(0, 1, "ö"), case(2, 5, "a b")])),
        row("1", "A", json!([case(2, 3, "a")])),
        row("1", "B", json!([])),
        row("2", "A", json!("[{\"start_char\": 4, \"end_char\": 5}]")),
    ];
    let lines = |rows: &[Value]| rows.iter().map(|row| format!("{row}\n")).collect::<String>();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let columns =
        "context: t\ncases: cases\ngroup: p\nid: p\ncriterion: c\ncriteria: [A, B]\nunique: true\n";
    write("rows.jsonl", &lines(&rows));
    write("columns.yaml", columns);
    let output = done(folder, "ds-prep import rows.jsonl --columns columns.yaml -o store");
    assert!(output.stderr.contains("2 rows were dropped"), "{}", output.stderr);
    let found: Vec<Value> = (0..3)
        .map(|i| {
            let shown = done(folder, &format!("ds-prep show store --sample {i} --json")).stdout;
            let shown: Value = serde_json::from_str(&shown).unwrap();
            json!([shown["id"], shown["criterion"], shown["answer"]])
        })
        .collect();
    assert_eq!(
        found,
        [json!(["1_0", "A", [0, 1]]), json!(["1_1", "A", [2, 5]]), json!(["2_0", "A", [4, 5]])]
    );
    // Labels of the same rows: positive, present, true and 1 are one label.
    write(
        "labels.yaml",
        "text: t\nlabel: s\nnormalise: true\ngroup: p\ncriterion: c\nunique: true\n",
    );
    let labels = done(folder, "ds-prep import rows.jsonl --columns labels.yaml -o labels").stdout;
    assert!(labels.contains("negative, positive"), "{labels}");

    // A row that cannot be used does not take the place of the next one with its criterion.
    let wrong = row("1", "A", json!([case(1, 2, "ö"), case(0, 9, "b")]));
    write("again.jsonl", &lines(&[wrong, rows[1].clone()]));
    write("lenient.yaml", &format!("{columns}strict: false\n"));
    let again = done(folder, "ds-prep import again.jsonl --columns lenient.yaml -o again");
    assert!(again.stderr.contains("2 rows were dropped"), "{}", again.stderr);
    let kept = done(folder, "ds-prep show again --sample 0 --json").stdout;
    assert!(kept.contains("\"1_0\""), "{kept}");

    write("unknown.jsonl", &lines(&[row("1", "Z", json!([case(0, 1, "ö")]))]));
    write("moved.jsonl", &lines(&[rows[0].clone(), row("3", "A", json!([case(1, 2, "ö")]))]));
    write("no_list.jsonl", &lines(&[row("3", "A", json!("[{}]"))]));
    write("alone.yaml", "text: t\nunique: true\n");
    for (command, status, text) in [
        (
            "ds-prep import unknown.jsonl --columns columns.yaml -o x",
            65,
            "line 1: Z is not one of `criteria`",
        ),
        (
            "ds-prep import moved.jsonl --columns columns.yaml -o x",
            65,
            "line 2: case 0: characters 1 to 2",
        ),
        (
            "ds-prep import no_list.jsonl --columns columns.yaml -o x",
            65,
            "line 1: not a JSON list of cases",
        ),
        (
            "ds-prep import rows.jsonl --columns alone.yaml -o x",
            78,
            "no effect without `criterion`",
        ),
    ] {
        refused(folder, command, status, text);
    }
}

#[test]
fn a_joint_model_is_told_the_answer_unless_one_encoder_reads_both() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(
        folder,
        "ds-prep gen criteria -o data --samples 400 --seed 6
         ds-prep import data/annotations.csv --columns data/joint.yaml -o store
         ds-prep split store --train 70% --validation 15% --test 15% --seed 1 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 96 -o tokens
         train-stage joint --example > joint.yaml",
    );
    let run = "train-stage joint -c joint.yaml -s training.updates=24 -s training.validate_every=12 -s schedule=[] \
        -s training.log_every=1 -s checkpoint.every=8 -s model.encoder.hidden_size=16 -s model.encoder.intermediate_size=16 \
        -s loss.classes.class_weights.kind=balanced";
    for (name, options) in [("joint", ""), ("share", "-s model.share=true")] {
        let told = done(folder, &format!("{run} {options} --run {name}")).stderr;
        assert_eq!(told.contains("is the answer itself"), name == "joint", "{told}");
        let killed = format!("FAIL=log.write:15=kill {run} {options} --run {name}-killed");
        assert_eq!(shell(folder, &killed).status, Some(137));
        done(folder, &format!("{run} {options} --run {name}-killed -s training.threads=1"));
        let weights = |run: String| {
            fs::read(folder.join(run).join("ckpt/step-00000024/model.safetensors")).unwrap()
        };
        assert!(weights(name.into()) == weights(format!("{name}-killed")), "{name}");
        done(folder, &format!("evaluate score {name} --data tokens -o {name}-scores"));
        let results = json_of(&folder.join(format!("{name}-scores/metrics.json")));
        let of = |pointer: &str| results.pointer(pointer).unwrap().as_f64().unwrap();
        let of = |metric: &str| of(&format!("/methods/joint/{metric}/value"));
        let score = (of("f1_binary") + of("answer_exact_match")) / 2.0;
        assert!((of("joint_score") - score).abs() < 1e-12, "{results}");
        let rows = lines_of(&folder.join(format!("{name}-scores/predictions.jsonl")));
        assert!(
            rows.iter()
                .all(|row| row["probabilities"]["1"].is_f64() && row["candidates"].is_array())
        );
        same_when_predicted(folder, name, &rows, &["text", "context"]);
        // The validation in training has the same value.
        let log = fs::read_to_string(folder.join(name).join("log.jsonl")).unwrap();
        assert!(log.contains("\"joint_score\"") && log.contains("\"class_f1\""), "{log}");
    }
    let names = |run: &str| done(folder, &format!("ckpt show {run}")).stdout;
    assert!(names("joint").contains("context.bert.") && !names("share").contains("context.bert."));
}
