//! Absurd numbers in the configuration: it is refused, or checked without a panic or an abort.

use crate::common::run::prepare;
use crate::common::shell;
use serde_json::Value;
use std::path::Path;
use tasks::TASKS;
use unix::Exit;

const NUMBERS: [&str; 6] =
    ["0", "1", "2147483648", "9007199254740992", "9223372036854775807", "1e11"];

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
            _ => ["train", "validation"].map(|n| format!("data.{n}={folder}/latents/{n}")).into(),
        };
        let file = Path::new(&folder.to_string()).join(format!("{name}.yaml"));
        (task.load)(&[file], &[&data, overrides].concat(), &|_| None)
    };
    let mut keys = Vec::new();
    numeric(&load(&[]).unwrap_or_else(|error| panic!("{error}")).resolved, "", &mut keys);
    assert!(keys.len() > 30, "{keys:?}");
    let (mut refused, mut checked) = (0, 0);
    for (key, number) in keys.iter().flat_map(|key| NUMBERS.map(|number| (key, number))) {
        let given = key.replace('N', number);
        match load(std::slice::from_ref(&given)) {
            Ok(loaded) => {
                checked += 1;
                let run = folder.join("run");
                let report = learn::train::check(&loaded, tensor::Device::Cpu, &run);
                let bug = report.problems.iter().find(|fault| fault.exit == Exit::Bug);
                assert!(bug.is_none(), "{given}: {bug:?}");
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
         latent-cache make codec --data split.json -o latents",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    for (refused, checked) in ["codec", "operator"].map(|name| check(folder, name)) {
        assert!(refused > 50 && checked > 30, "{refused} refused, {checked} checked");
    }
    // Sizes that are valid individually, but not together.
    let output = shell(
        folder,
        "train-stage codec -c codec.yaml -s model.hidden=65536 -s model.mlp_ratio=256 --run new --check",
    );
    assert_eq!(output.status, Some(78), "{}", output.stderr);
    assert!(output.stderr.contains("model: the parameters need"), "{}", output.stderr);
}
