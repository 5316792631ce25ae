//! Secrets do not leak.

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::*;

/// Every file below a folder.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path).unwrap() {
            kind if kind.is_dir() => found.extend(files(&path)),
            kind if kind.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}

/// A secret in the environment and one in `.env`, used in the configuration: no output contains them.
#[test]
fn planted_secrets_are_in_no_file_and_on_no_stream() {
    let copy = copy();
    let folder = copy.path();
    let (one, two, unused) = ("planted-5ecret-one", "planted-5ecret-two", "planted-5ecret-three");
    // As parts of paths, so that they reach both the values that are used and the errors about them.
    let rename = format!("mv split.json split-{one}.json; mv stats.json stats-{two}.json");
    assert_eq!(shell(folder, &rename).status, Some(0));
    fs::write(folder.join(".env"), format!("STORE_PASSWORD={two}\n")).unwrap();
    let yaml = fs::read_to_string(folder.join("codec.yaml")).unwrap();
    let yaml = yaml
        .replace("split.json", "'split-${API_KEY}.json'")
        .replace("stats.json", "'stats-${STORE_PASSWORD}.json'");
    fs::write(folder.join("codec.yaml"), yaml).unwrap();
    let variables = format!("export API_KEY={one} OTHER_TOKEN={unused};");
    let train = "train-stage codec -c codec.yaml --run secret";
    let mut streams = String::new();
    for command in [
        format!("{train} --check"),
        train.to_string(),
        format!("{train} -s training.updates=abc"),
        format!("{train} -s optimizer.learning_rate=0.5"),
        "ckpt show secret".into(),
        "ckpt show secret --json".into(),
        "ckpt average secret/ckpt/step-00000004 secret/ckpt/step-00000006 -o secret/mean".into(),
        "ckpt export secret -o secret/w.safetensors".into(),
        "ckpt import secret/w.safetensors --like secret -o secret/made".into(),
    ] {
        let output = shell(folder, &format!("{variables} {command}"));
        assert!(
            matches!(output.status, Some(0 | 78)),
            "{command}: {:?} {}",
            output.status,
            output.stderr
        );
        streams += &(output.stdout + &output.stderr);
    }
    let written = files(&folder.join("secret"));
    for name in ["env.json", "config.yaml", "log.jsonl", "status.json", "manifest.json"] {
        assert!(written.iter().any(|path| path.ends_with(name)), "{name} was not written");
    }
    for secret in [one, two, unused] {
        assert!(!streams.contains(secret), "{secret} on a stream:\n{streams}");
        for path in &written {
            let bytes = fs::read(path).unwrap();
            let has = bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
            assert!(!has, "{secret} in {}", path.display());
        }
    }
    let config = fs::read_to_string(folder.join("secret/config.yaml")).unwrap();
    assert!(config.contains("${API_KEY}") && config.contains("${STORE_PASSWORD}"), "{config}");
}

/// A secret may have the value of a word that is part of records; the records must stay valid.
#[test]
fn secrets_equal_to_words_of_records_leave_them_readable() {
    let copy = copy();
    let words = [
        "finish",
        "finished",
        "refused",
        "skipped_samples",
        "running",
        "stopped",
        "update",
        "updates",
        "attempt",
        "validation",
        "checkpoint",
        "warning",
        "device_hours",
        "train-stage",
        "reason",
        "best_metric",
    ];
    let variables: Vec<String> = words.iter().map(|word| format!("{word}_KEY={word}")).collect();
    let with = format!("env {}", variables.join(" ").replace("train-stage_KEY", "program_KEY"));
    // The reason is free text, which may quote anything.
    for (command, sentence) in
        [("timekeep status run --json", "reason"), ("ckpt ls run --json", "")]
    {
        let records = |with: &str| -> Vec<Value> {
            let output = shell(copy.path(), &format!("{with} {command}"));
            assert_eq!(output.status, Some(0), "{}", output.stderr);
            let record = |line| -> Value {
                let mut record: Value = serde_json::from_str(line).unwrap();
                for key in [sentence, "age"] {
                    record.as_object_mut().unwrap().remove(key);
                }
                record
            };
            output.stdout.lines().map(record).collect()
        };
        assert_eq!(records(&with), records(""), "{command}");
    }
    let output = shell(copy.path(), &format!("{with} timekeep status run"));
    assert!(output.stdout.contains("device_hours  restarts"), "{}", output.stdout);
    assert!(output.stdout.contains("run  codec  finished  6/6 100%"), "{}", output.stdout);
    // Written files stay readable too.
    let train = format!("{with} train-stage codec -c codec.yaml --run new");
    let output = shell(copy.path(), &format!("{train} -s optimizer.learning_rate=x"));
    assert_eq!(output.status, Some(78), "{}", output.stderr);
    let output = shell(copy.path(), &train);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let [plain, new] = ["run", "new"].map(|run| {
        let found = unix::log::read(&copy.path().join(run).join("log.jsonl")).unwrap();
        assert_eq!(found.bad_lines, 0, "{run}");
        let shape = |record: &Map<String, Value>| -> Vec<String> {
            let kind = record["kind"].as_str().unwrap().to_string();
            record.keys().cloned().chain([kind]).collect()
        };
        found
            .records
            .iter()
            .map(shape)
            .filter(|shape| shape.ends_with(&["update".into()]))
            .collect::<Vec<_>>()
    });
    assert_eq!((plain.is_empty(), &plain), (false, &new));
    let output =
        shell(copy.path(), &format!("{with} timekeep status new --json; {with} ckpt verify new"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains(r#""state":"finished","update":6"#), "{}", output.stdout);
}

/// An error about the file that a secret names does not reveal the secret.
#[test]
fn an_error_about_a_secret_path_does_not_reveal_it() {
    let copy = copy();
    let yaml = fs::read_to_string(copy.path().join("codec.yaml")).unwrap();
    let yaml = yaml.replace("patch: 8", "patch: '${MODEL_KEY}'");
    fs::write(copy.path().join("codec.yaml"), yaml).unwrap();
    let script = "export MODEL_KEY=planted-5ecret; train-stage codec -c codec.yaml --run new";
    let output = shell(copy.path(), script);
    assert_eq!(output.status, Some(78));
    assert!(!output.stderr.contains("planted-5ecret"), "{}", output.stderr);
    assert!(output.stderr.contains("model.patch"), "{}", output.stderr);
}
