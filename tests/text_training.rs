//! Options of training, as users run it on texts: buckets of similar length, optimizers, frozen layers, losses, and whether
//! repeated training gives the same bits.

use crate::common::{shell, with_tensor};
use crate::records::{done, refused};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn prepare(folder: &Path) {
    done(
        folder,
        "ds-prep gen criteria -o data --samples 300 --seed 5
         ds-prep import data/annotations.csv --columns data/columns.yaml -o store
         ds-prep split store --train 70% --validation 15% --test 15% --seed 1 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 64 -o tokens
         train-stage classify --example > classify.yaml",
    );
}

const SMALL: &str = "train-stage classify -c classify.yaml -s training.updates=24 -s training.validate_every=24 \
    -s training.log_every=1 -s model.encoder.hidden_size=16 -s model.encoder.intermediate_size=16 -s schedule=[]";

#[test]
fn options_of_training_resume_to_the_bit_and_evaluate() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let options = [
        ("adam", "-s optimizer.method.kind=adam -s data.bucket_batches=4"),
        ("8bit", "-s optimizer.method.kind=adamw8bit -s model.encoder.hidden_size=64"),
        ("lion", "-s optimizer.method.kind=lion -s model.head.pooling=attention"),
        ("lamb", "-s optimizer.method.kind=lamb -s 'loss.focal={gamma: 2.0, alpha: 0.25}'"),
        (
            "adafactor",
            "-s optimizer.method.kind=adafactor -s model.encoder.freeze_layers=1 -s checkpoint.frozen=true -s optimizer.layer_decay=0.8",
        ),
    ];
    let state = |run: &str| {
        let newest = folder.join(run).join("ckpt/step-00000024");
        ["model.safetensors", "optim-0-of-1.safetensors"]
            .map(|file| fs::read(newest.join(file)).unwrap())
    };
    for (name, options) in options {
        let run = format!("{SMALL} {options} -s checkpoint.every=8");
        done(folder, &format!("{run} --run {name}"));
        let killed = format!("FAIL=log.write:17=kill {run} --run {name}-killed");
        let killed = shell(folder, &killed);
        assert_eq!(killed.status, Some(137), "{}", killed.stderr);
        done(folder, &format!("{run} --run {name}-killed -s training.threads=1"));
        assert!(state(name) == state(&format!("{name}-killed")), "{name}");
        done(folder, &format!("evaluate score {name} --data tokens -o {name}-scores"));
    }
    // Whatever is recomputed in the backward pass, the bits are the same.
    let again = format!("{SMALL} {} -s checkpoint.every=8 -s training.mem_budget=0", options[2].1);
    done(folder, &format!("{again} --run recomputed"));
    assert!(state("lion") == state("recomputed"));
    // Frozen parameters are not among the trained ones.
    let names = done(folder, "ckpt show adafactor").stdout;
    assert!(names.contains("bert.encoder.layer.1."), "{names}");
    let shown =
        fs::read_to_string(folder.join("adafactor/ckpt/step-00000024/manifest.json")).unwrap();
    let model = fs::read(folder.join("adafactor/ckpt/step-00000024/model.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&model[8..4096.min(model.len())]).into_owned();
    assert!(!header.contains("bert.encoder.layer.0.") && !header.contains("embeddings"), "{shown}");
    refused(
        folder,
        &format!("{SMALL} --run other -s optimizer.method.kind=adamw_8bit"),
        78,
        "adamw, adamw8bit, muon, adam, lion, lamb, adafactor, sgd",
    );
    refused(
        folder,
        &format!("{SMALL} --run other -s model.encoder.freeze_layers=3"),
        78,
        "num_hidden_layers",
    );
    refused(
        folder,
        &format!("{SMALL} --run other -s model.encoder.freeze_layers=1"),
        78,
        "checkpoint.frozen to true",
    );
}

#[test]
fn batches_of_similar_length_need_less_padding() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let losses = |run: &str, options: &str| -> Vec<Value> {
        done(folder, &format!("{SMALL} --run {run} {options} -s training.batch_size=8"));
        let log = fs::read_to_string(folder.join(run).join("log.jsonl")).unwrap();
        let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter(|r| r["kind"] == "update").map(|r| r["loss"].clone()).collect()
    };
    let [on, again, off] =
        [("on", ""), ("again", "-s training.workers=3"), ("off", "-s data.bucket_batches=0")]
            .map(|(run, options)| losses(run, options));
    assert_eq!(on.len(), 24);
    assert!(on == again && on != off);
}

#[test]
fn repeated_training_has_the_same_bits_unless_the_machine_errs() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let verify = format!("{SMALL} -s training.updates=4 --json --verify-determinism");
    let found: Value = serde_json::from_str(&done(folder, &format!("{verify}=2")).stdout).unwrap();
    assert_eq!((&found["runs"], &found["updates"]), (&2.into(), &4.into()), "{found}");
    assert_eq!(found["parameters"].as_str().unwrap().len(), 16, "{found}");
    // The third repetition, in its second update.
    let flipped = shell(folder, &format!("FAIL=update.parameters:10=flip {verify}"));
    assert_eq!(flipped.status, Some(1), "{}", flipped.stderr);
    let first =
        "model: bert.embeddings.word_embeddings.weight differs between repetition 1 and 3 of 3";
    assert!(flipped.stderr.contains(first), "{}", flipped.stderr);
    // The runs leave nothing behind.
    let left =
        fs::read_dir(folder).unwrap().filter_map(|e| e.unwrap().file_name().into_string().ok());
    assert!(left.into_iter().all(|name| !name.contains("run")), "files");
    refused(folder, &format!("{verify}=1"), 2, "--verify-determinism");
}

#[test]
fn models_that_are_not_finite_have_no_best_no_scores_and_no_predictions() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let short = "train-stage classify -c classify.yaml -s training.updates=2 -s training.validate_every=1 \
        -s model.encoder.hidden_size=16 -s model.encoder.intermediate_size=16 -s schedule=[] -s optimizer.learning_rate=1e-12";
    done(folder, &format!("{short} --run run"));
    let weights = "run/ckpt/step-00000002/model.safetensors";
    let norm = "bert.embeddings.LayerNorm.weight";
    with_tensor(folder, weights, "classifier.weight", f32::NAN, "nan.safetensors");
    with_tensor(folder, weights, norm, 3e38, "large.safetensors");
    let damaged = "nan.safetensors: classifier.weight: some values are not finite";
    refused(folder, &format!("{short} -s init.from=nan.safetensors --run nan"), 65, damaged);
    let (name, what) = ("large", "are not finite (NaN or");
    done(folder, &format!("{short} -s init.from={name}.safetensors --run {name}"));
    let run = folder.join(name);
    assert!(!run.join("ckpt/best").exists(), "{name}");
    let log = fs::read_to_string(run.join("log.jsonl")).unwrap();
    let validations = log.lines().filter(|line| line.contains("\"kind\":\"validation\""));
    for line in validations {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["accuracy"], &line["best"]), (&Value::Null, &false.into()), "{line}");
    }
    let score = format!("evaluate score {name} --data tokens -o {name}-scores");
    refused(folder, &score, 1, what);
    assert!(!folder.join(format!("{name}-scores/metrics.json")).exists());
    refused(folder, &format!("echo a | evaluate predict {name} --inputs - -o -"), 1, what);
    let exported =
        format!("evaluate export --format csv -o csv {name}; cat csv/{name}/history.csv");
    let history = done(folder, &exported).stdout;
    assert!(history.lines().last().is_some_and(|line| line.contains(",NaN")), "{history}");

    // A split that is empty.
    done(
        folder,
        "ds-prep split store --train 80% --validation 20% --test 0 -o two.json
         ds-prep tokenize two.json --tokenizer tokenizer --max-length 64 -o two",
    );
    refused(
        folder,
        "evaluate score run --data two -o x",
        66,
        "two: it has tokens of other splits, but none of the test split",
    );

    // Damaged tokens of validation.
    let mut files =
        fs::read_dir(folder.join("tokens/validation")).unwrap().map(|entry| entry.unwrap().path());
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|ending| ending != "json");
    let shard = files.find(is_shard).unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&shard, bytes).unwrap();
    refused(folder, &format!("{short} --run damaged"), 65, "tokens/validation");
}
