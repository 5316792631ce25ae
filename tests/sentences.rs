//! Texts and vectors in one network, as users run it: from generated sentences to samples in both directions.

use crate::common::shell;
use crate::records::{done, refused};
use report::evaluation::MetricsFile;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Pairs, texts and vectors without a partner, and test records.
fn prepare(folder: &Path) {
    done(
        folder,
        "ds-prep gen sentences --samples 3000 --paired 2000 --test 100 --seed 1 -o data
         for part in pairs test; do
             ds-prep import data/$part.jsonl --columns data/columns.yaml --vectors data/$part.npy -o $part
         done
         ds-prep import data/texts.jsonl --columns data/columns.yaml -o texts
         ds-prep import --vectors data/vectors.npy -o vectors
         ds-prep split pairs --test-from test --validation 5% -o split.json
         ds-prep vocabulary split.json -o tokenizer
         for part in texts vectors; do ds-prep split $part --validation 5% --test 0 --train 95% -o $part.json; done
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 22 -o tokens
         for part in texts vectors; do
             ds-prep tokenize $part.json --tokenizer tokenizer --max-length 22 -o $part-tokens
         done
         train-stage cycle-vae --example > cycle-vae.yaml",
    );
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_network_learns_both_directions_and_predicts_in_all() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(
        folder,
        "train-stage cycle-vae -c cycle-vae.yaml -s training.updates=250 -s training.validate_every=250 --run run
         evaluate score run --data tokens --similarity data/similar.jsonl --texts 50 --text-steps 1,8 --drafts 2 \
             -o scores",
    );
    let results = MetricsFile::read(&folder.join("scores")).unwrap();
    let value = |method: &str, metric: &str| results.scores.methods[method][metric].value;
    let own = |metric: &str| value("cycle-vae", metric);
    // A network that does not read the text has cosine 0 and the recall of chance.
    assert!(own("cosine") > 0.3 && own("recall_10") > 5.0 * value("chance", "recall_10"));
    assert!(own("group_recall_1") > value("chance", "group_recall_1"));
    // A uniform guess of 22 tokens of a vocabulary of about 200 has 117 nats.
    assert!(own("nelbo") < 60.0 && own("nelbo") > value("entropy", "nelbo"), "{}", own("nelbo"));
    assert!(own("similarity_spearman") > 0.3 && own("token_f1_8") > 0.2);
    assert!(own("slots_reranked") > 0.0 && own("cosine_round_trip") > 0.1);
    for method in ["ridge_words", "ridge_bigrams"] {
        assert!(value(method, "cosine") > 0.5, "{method}");
    }
    assert!(
        value("linear_slots", "slots_8") > 0.5 && value("nearest_text", "grammatical_8") == 1.0
    );

    // Vectors of texts, texts of these vectors, and both in one.
    let vectors = done(
        folder,
        "head -n 5 data/test.jsonl | evaluate predict run --direction t2l --inputs - -o - | tee vectors.jsonl",
    );
    let found = lines(&vectors.stdout);
    assert_eq!(found.len(), 5);
    assert_eq!(found[4]["vector"].as_array().unwrap().len(), 32);
    assert_eq!((&found[4]["line"], &found[4]["id"]), (&5.into(), &"test-000004".into()));
    let there = done(folder, "evaluate predict run --direction l2t --inputs vectors.jsonl -o -");
    let both = done(
        folder,
        "head -n 5 data/test.jsonl | evaluate predict run --direction t2l2t --inputs - -o -",
    );
    let texts = |text: &str| lines(text).iter().map(|own| own["text"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(&there.stdout), texts(&both.stdout));
    let drawn = "evaluate predict run --direction unconditional --count 3 --temperature 1 --reveal ancestral -o -";
    assert_eq!(done(folder, drawn).stdout, done(folder, drawn).stdout);
    assert_ne!(
        done(folder, drawn).stdout,
        done(folder, &format!("{drawn} --sampling-seed 1")).stdout
    );
    for (words, says) in [
        ("--direction t2l -o -", "--inputs: name a file with a text on each line"),
        ("--direction l2t --inputs data/test.jsonl -o -", "line 1: neither a JSON array"),
        ("--direction unconditional --inputs data/test.jsonl -o -", "reads none"),
        ("--direction l2t --inputs vectors.jsonl -o texts.txt", "FILE.jsonl"),
    ] {
        let output = shell(folder, &format!("evaluate predict run {words}"));
        assert!(matches!(output.status, Some(2 | 65)), "{words}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{words}: {}", output.stderr);
    }
    refused(
        folder,
        "echo '[1, 2]' | evaluate predict run --direction l2t --inputs - -o -",
        65,
        "has 2 values",
    );
}

#[test]
fn cycles_over_data_without_partners_resume_to_the_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let run = "train-stage cycle-vae -c cycle-vae.yaml -s training.updates=12 -s training.validate_every=12 \
        -s training.log_every=1 -s schedule=[] -s checkpoint.every=5 -s training.batch_size=16 \
        -s training.deterministic=true -s model.hidden=16 \
        -s 'data.additional=[{tokens: texts-tokens}, {tokens: vectors-tokens}]' \
        -s 'loss.cycle_text={weight: 1.0, start: 3, ramp: 4}' \
        -s 'loss.cycle_latent={weight: 0.5, start: 6, sampling: categorical}'";
    done(folder, &format!("{run} --run whole"));
    let updates: Vec<Value> = fs::read_to_string(folder.join("whole/log.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|record| record["kind"] == "update")
        .collect();
    // Update 3, counted from 0, has weight 0 of a ramp that begins there; update 4 has the first part of it.
    for (name, first) in [("t2l2t", 4), ("l2t2l", 6)] {
        let has: Vec<bool> =
            updates.iter().map(|own| own["loss_terms"][name].is_number()).collect();
        let expected: Vec<bool> = (0..12).map(|update| update >= first).collect();
        assert_eq!(has, expected, "{name}");
    }
    let killed = shell(folder, &format!("FAIL=log.write:11=kill {run} --run killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    done(folder, &format!("{run} --run killed -s training.threads=1"));
    let mut runs = vec!["killed"];
    if test_support::require_program("mpirun", &["--version"]) {
        let ranks = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --bind-to none --oversubscribe -n";
        for count in [2, 4] {
            done(folder, &format!("{ranks} {count} {run} --run ranks-{count}"));
        }
        runs.extend(["ranks-2", "ranks-4"]);
    }
    let weights = |run: &str| {
        fs::read(folder.join(run).join("ckpt/step-00000012/model.safetensors")).unwrap()
    };
    for other in runs {
        assert!(weights("whole") == weights(other), "{other}");
    }
    for (words, says) in [
        ("-s data.tokens=texts-tokens", "no vectors"),
        ("-s model.latent_tokens=5", "model.latent_tokens: 5 does not divide the dimension 32"),
        ("-s loss.text_share=2", "loss.text_share"),
    ] {
        refused(folder, &format!("{run} {words} --run other"), 78, says);
    }
}
