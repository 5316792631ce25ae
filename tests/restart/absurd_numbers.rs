//! Absurd numbers in the configuration: it is refused, or checked without a panic or an abort.

use crate::common::run::prepare;
use crate::common::shell;
use learn::train::TrainJob;
use serde_json::Value;
use std::path::Path;
use tasks::TASKS;
use unix::Exit;

const NUMBERS: [&str; 6] = ["0", "1", "1048576", "2147483648", "4611686018427387904", "1e11"];

/// Bytes that are more than a check needs beside the parameters, and for each parameter: values, gradients, the state of the
/// optimizer.
const MEMORY: usize = 1 << 30;
const OF_PARAMETER: usize = 24;

/// The keys of a configuration whose value is a number, a list of numbers or null, as overrides.
fn numeric(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let dot = if path.is_empty() { "" } else { "." };
                numeric(value, &format!("{path}{dot}{key}"), found);
            }
        }
        Value::Number(_) | Value::Null => found.push(format!("{path}=N")),
        Value::Array(list) if list.iter().all(Value::is_number) => {
            found.push(format!("{path}=[N]"))
        }
        _ => {}
    }
}

/// The number of configurations that were refused when loaded, and the number that were checked.
fn check(folder: &Path, name: &str) -> (usize, usize) {
    let task = TASKS.iter().find(|task| task.spec.name == name).unwrap();
    let load = |overrides: &[String]| {
        let folder = folder.display();
        let data: Vec<String> = match name {
            "codec" => ["split", "stats"].map(|n| format!("data.{n}={folder}/{n}.json")).into(),
            "classify" => vec![format!("data.tokens={folder}/tokens")],
            _ => ["train", "validation"].map(|n| format!("data.{n}={folder}/latents/{n}")).into(),
        };
        let file = Path::new(&folder.to_string()).join(format!("{name}.yaml"));
        (task.load)(&[file], &[&data, overrides].concat(), &|_| None)
    };
    let mut keys = Vec::new();
    numeric(&load(&[]).unwrap_or_else(|error| panic!("{error}")).resolved, "", &mut keys);
    assert!(keys.len() > 30, "{keys:?}");
    // Once is enough for what all tasks share and which depends on none of them.
    let shared = ["checkpoint.", "cost.", "optimizer.", "plateau", "schedule", "seed", "name"];
    keys.retain(|key| name == "codec" || !shared.iter().any(|section| key.starts_with(section)));
    let (mut refused, mut checked) = (0, 0);
    for (key, number) in keys.iter().flat_map(|key| NUMBERS.map(|number| (key, number))) {
        // A model of that size may fit into this machine, and then takes its time.
        if key.starts_with("model.") && number == "1048576" {
            continue;
        }
        let given = key.replace('N', number);
        match load(std::slice::from_ref(&given)) {
            Ok(loaded) => {
                checked += 1;
                let run = folder.join("run");
                tensor::Device::Cpu.reset_peak();
                let job = TrainJob::new(loaded, run, tensor::Device::Cpu, &dist::Solo);
                let report = learn::train::check(&job, None);
                let bug = report
                    .points
                    .iter()
                    .flat_map(|point| &point.problems)
                    .find(|fault| fault.exit == Exit::Bug);
                assert!(bug.is_none(), "{given}: {bug:?}");
                let peak = tensor::Device::Cpu.usage().peak;
                let parameters = report.estimate.map_or(0, |estimate| estimate.parameters());
                assert!(peak < MEMORY + OF_PARAMETER * parameters, "{given}: {peak}");
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.exit, Exit::Config, "{given}: {error}");
                let name = key.split('=').next().unwrap_or_default();
                let section = name.split('.').next().unwrap_or_default();
                assert!(error.to_string().contains(section), "{given}: {error}");
            }
        }
    }
    (refused, checked)
}

#[test]
fn absurd_numbers_are_refused_or_harmless() {
    let temporary = prepare();
    let folder = temporary.path();
    let operator = "\
data: {train: latents/train, validation: latents/validation}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {validation_steps: 2}
training: {updates: 4, batch_size: 4, validation_samples: 4}
optimizer: {method: {kind: sgd}, learning_rate: 1e-3}
";
    std::fs::write(folder.join("operator.yaml"), operator).unwrap();
    let output = shell(
        folder,
        "train-stage codec -c codec.yaml -s training.updates=2 --run codec
         latent-cache make codec --data split.json -o latents
         ds-prep gen criteria -o data --samples 40 --seed 5
         ds-prep import data/annotations.csv --columns data/columns.yaml -o store
         ds-prep split store --seed 1 -o texts.json
         ds-prep vocabulary texts.json -o tokenizer
         ds-prep tokenize texts.json --tokenizer tokenizer --max-length 32 -o tokens
         train-stage classify --example > classify.yaml",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    for (refused, checked) in ["codec", "operator", "classify"].map(|name| check(folder, name)) {
        assert!(refused > 50 && checked > 30, "{refused} refused, {checked} checked");
    }
    // Sizes that are valid individually, but not together.
    let output = shell(
        folder,
        "train-stage codec -c codec.yaml -s model.hidden=65536 -s model.mlp_ratio=256 --run new --check",
    );
    assert_eq!(output.status, Some(78), "{}", output.stderr);
    assert!(output.stderr.contains("model: the parameters need"), "{}", output.stderr);
    // A batch that does not fit is neither tried by a check nor by a dry run.
    let large = "train-stage codec -c codec.yaml -s training.batch_size=1048576 --run new --json";
    for (option, status) in [("--check", 1), ("--dry-run", 0)] {
        let output = shell(folder, &format!("ulimit -v 4000000; {large} {option}"));
        assert_eq!(output.status, Some(status), "{}", output.stderr);
        let estimate = estimate(&output.stdout);
        assert!(estimate["memory_bytes"].as_u64() > Some(4 << 30), "{estimate}");
        assert_eq!(estimate["seconds"], Value::Null);
        assert_eq!(output.stderr.contains("memory: an update needs"), status == 1);
    }
    // What is predicted is what is measured, but for the batches that are prepared in advance, as many as there is time
    // for: the model is large beside them.
    let large = "-s model.hidden=256 -s training.threads=1";
    let both = ["--check", "--dry-run"].map(|option| {
        let run = format!("train-stage codec -c codec.yaml {large} --run new --json {option}");
        let output = shell(folder, &run);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        estimate(&output.stdout)["memory_bytes"].as_f64().unwrap()
    });
    assert!((both[0] / both[1] - 1.0).abs() < 0.05, "{both:?}");
}

/// The estimate, which follows the points of a check.
fn estimate(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}
