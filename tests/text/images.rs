//! Conversations with images, as users train on them.

use crate::common::images::{ADAPTED, DATA, SMALL};
use crate::common::shell;
use crate::records::{done, refused};
use report::evaluation::MetricsFile;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const RANKS: &str = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RAYON_NUM_THREADS=1 mpirun --bind-to none \
    --oversubscribe -n 2";

fn weights(folder: &Path, run: &str, update: usize) -> Vec<u8> {
    let newest = folder.join(run).join(format!("ckpt/step-{update:08}"));
    fs::read(newest.join("model.safetensors")).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_model_of_images_trains_answers_and_resumes_to_the_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(folder, DATA);
    let length = "-s training.updates=12 -s training.validate_every=6 -s checkpoint.every=4";
    done(folder, &format!("{SMALL} {length} --run whole"));
    // The same, then adapted in 4 bits; killed between checkpoints, and with another number of threads and workers. A read
    // that fails once is repeated.
    for (name, options) in [("again", ""), ("adapted", ADAPTED)] {
        let run = format!("{SMALL} {length} {options}");
        done(folder, &format!("{run} --run {name}"));
        let killed = shell(folder, &format!("FAIL=log.write:9=kill {run} --run {name}-killed"));
        assert_eq!(killed.status, Some(137), "{}", killed.stderr);
        let other = "-s training.threads=1 -s training.workers=3";
        let fails = if name == "again" { "FAIL=inputs.read:60=eio" } else { "" };
        let resumed = shell(folder, &format!("{fails} {run} --run {name}-killed {other}"));
        assert_eq!(resumed.status, Some(0), "{}", resumed.stderr);
        let is_repeated = resumed.stderr.contains("reading again in 1 s (1 of 3)");
        assert_eq!(is_repeated, name == "again", "{}", resumed.stderr);
        let log = lines(&folder.join(format!("{name}-killed/log.jsonl")));
        let stop = log.iter().rfind(|record| record["kind"] == "stop").unwrap();
        assert_eq!(stop["read_retries"], u64::from(is_repeated));
        assert!(
            weights(folder, name, 12) == weights(folder, &format!("{name}-killed"), 12),
            "{name}"
        );
    }
    assert!(weights(folder, "whole", 12) == weights(folder, "again", 12));

    let score =
        "evaluate score adapted --data tokens --split validation --max-new-tokens 12 --worst 3";
    done(folder, &format!("{score} -o scores"));
    let scores = MetricsFile::read(&folder.join("scores")).unwrap();
    for metric in ["loss", "exact_match", "cer", "wer", "value_cer"] {
        assert!(scores.scores.methods["sft"][metric].value >= 0.0, "{metric}");
    }
    let rows = lines(&folder.join("scores/predictions.jsonl"));
    let worst = lines(&folder.join("scores/worst.jsonl"));
    let mut losses: Vec<f64> = rows.iter().map(|row| row["loss"].as_f64().unwrap()).collect();
    losses.sort_by(|a, b| b.total_cmp(a));
    let shown: Vec<f64> = worst.iter().map(|row| row["loss"].as_f64().unwrap()).collect();
    assert_eq!(shown, losses[..3]);
    for row in &worst {
        assert_eq!(row["messages"][0]["content"][0]["type"], "image");
        let picture = folder.join("scores").join(row["picture"].as_str().unwrap());
        assert!(fs::read(picture).unwrap().starts_with(b"\x89PNG"));
    }
    if test_support::require_program("mpirun", &["--version"]) {
        done(folder, &format!("{RANKS} {score} -o two"));
        for name in ["predictions.jsonl", "worst.jsonl"] {
            let [one, two] =
                ["scores", "two"].map(|of| fs::read(folder.join(of).join(name)).unwrap());
            assert!(one == two, "{name}");
        }
    }

    done(folder, "ds-prep plot store --sample 40 -o sheet.png; ds-prep check store");
    assert!(fs::read(folder.join("sheet.png")).unwrap().starts_with(b"\x89PNG"));
    predictions(folder);
    refusals(folder, &format!("{SMALL} {length}"));
}

/// A folder, a file, and lines with paths give the same answers; the images are those of the validation.
fn predictions(folder: &Path) {
    // A model that has learned little repeats itself.
    let all =
        done(folder, "evaluate predict whole --inputs raw/images/0000 --max-new-tokens 140 -o -")
            .stdout;
    assert_eq!(all.matches("\"tokens\":128,\"finish\":\"runaway\"").count(), 60);
    let predict = "evaluate predict adapted --max-new-tokens 8";
    done(folder, "mkdir some; cp raw/images/0000/000000[0-4].png some; ls some > names");
    done(
        folder,
        "for name in $(cat names); do echo \"{\\\"id\\\": \\\"$name\\\", \\\"image\\\": \\\"some/$name\\\"}\"; done > new.jsonl",
    );
    done(folder, &format!("{predict} --inputs some -o folder.jsonl"));
    done(folder, &format!("{predict} --inputs new.jsonl -o lines.jsonl"));
    done(folder, &format!("{predict} --inputs some/0000003.png -o one.jsonl"));
    let [all, lines_, one] =
        ["folder.jsonl", "lines.jsonl", "one.jsonl"].map(|name| lines(&folder.join(name)));
    assert_eq!((all.len(), &all), (5, &lines_));
    assert_eq!((one.len(), &one[0]["text"]), (1, &all[3]["text"]));
    unreadable_images_have_errors(folder, predict, &all);
}

/// Images that cannot be read have an error in their place; the others are answered as without them, by several ranks and when
/// resumed.
fn unreadable_images_have_errors(folder: &Path, predict: &str, readable: &[Value]) {
    fs::write(folder.join("some/0000001a.png"), b"\x89PNG\r\n\x1a\n").unwrap();
    let predict = format!("{predict} --inputs");
    let cut = shell(folder, &format!("{predict} some -o cut.jsonl --json"));
    assert_eq!(cut.status, Some(65), "{}", cut.stderr);
    for text in ["warning: some: line 3: 0000001a.png: ", "warning: 1 of 6 prompts have an `error`"]
    {
        assert!(cut.stderr.contains(text), "{text}: {}", cut.stderr);
    }
    let summary: Value = serde_json::from_str(&cut.stdout).unwrap();
    assert_eq!(summary, json!({"file": "cut.jsonl", "prompts": 6, "failed": 1}));
    let rows = lines(&folder.join("cut.jsonl"));
    assert_eq!((rows.len(), &rows[2]["id"]), (6, &"0000001a.png".into()));
    let error = rows[2]["error"].as_str().unwrap();
    assert!(error.starts_with("0000001a.png: ") && rows[2].get("text").is_none(), "{error}");
    let others = rows[..2].iter().chain(&rows[3..]);
    assert!(others.clone().all(|row| row.get("error").is_none()));
    let text = |row: &Value| row["text"].clone();
    assert!(others.map(text).eq(readable.iter().map(text)));

    // Several blocks, of which one has no image that can be read, and one more error than is listed.
    let cycle = (0..130).map(|i| match i {
        64..96 => json!({"image": format!("some/no-{i}.png")}),
        i => json!({"image": format!("some/000000{}.png", i % 5), "id": i.to_string()}),
    });
    let text: String = cycle.map(|row| row.to_string() + "\n").collect();
    fs::write(folder.join("many.jsonl"), text).unwrap();
    let many = format!("{predict} many.jsonl -o");
    let whole = shell(folder, &format!("{many} many-whole.jsonl"));
    assert_eq!(whole.status, Some(65), "{}", whole.stderr);
    assert_eq!(whole.stderr.matches("no such file").count(), 20, "{}", whole.stderr);
    assert!(whole.stderr.contains("warning: 32 of 130 prompts have"), "{}", whole.stderr);
    let killed = format!("FAIL=save.after_shard:1=kill {many} many-killed.jsonl");
    let mut kills = 0;
    let end = loop {
        let attempt = shell(folder, &format!("{killed} || exit $?"));
        if attempt.status != Some(137) {
            break attempt;
        }
        kills += 1;
        assert!(kills < 9, "{killed}");
    };
    assert!(kills > 2 && end.status == Some(65), "{kills} {}", end.stderr);
    assert!(end.stderr.contains("warning: 32 of 130 prompts have"), "{}", end.stderr);
    let answers = |name: &str| fs::read(folder.join(name)).unwrap();
    assert!(answers("many-killed.jsonl") == answers("many-whole.jsonl"));
    if test_support::require_program("mpirun", &["--version"]) {
        let ranks = format!("{RANKS} {many} many-ranks.jsonl");
        refused(folder, &ranks, 65, "warning: 32 of 130 prompts have");
        assert!(answers("many-ranks.jsonl") == answers("many-whole.jsonl"));
    }
}

fn refusals(folder: &Path, run: &str) {
    refused(folder, &format!("{run} --run none -s model.vision=null"), 78, "model.vision is null");
    let other = "-s model.vision.image_token_id=260";
    refused(folder, &format!("{run} --run none {other}"), 78, "the token of images is 261");
    let other = "-s model.vision.patch_size=16";
    refused(
        folder,
        &format!("{run} --run none {other}"),
        78,
        "patch_size of the image processor is 8",
    );
    // Images that the model was not trained with, at another resolution.
    let tokenize = "ds-prep tokenize split.json --tokenizer tokenizer --max-length 160";
    done(folder, &format!("{tokenize} --max-image-tokens 20 -o fewer"));
    refused(folder, "evaluate score whole --data fewer -o none", 65, "image processor differs");
    refused(folder, "ds-prep plot store --sample 60 -o none.png", 2, "there are 60 records");
    // A store that moved away.
    done(folder, "mv store gone");
    refused(folder, &format!("{run} --run none"), 66, "store/images");
    done(folder, "mv gone store");
}
