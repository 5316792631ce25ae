//! longhaul-config(5) has every key, and its configurations load.

use super::{blocks, page};
use learn::task::load_config;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use tasks::multimodal::CycleVaeConfig;
use tasks::pde::codec::{CodecConfig, CodecTask};
use tasks::pde::corrector::CorrectorConfig;
use tasks::pde::critic::CriticConfig;
use tasks::pde::distill::DistillConfig;
use tasks::pde::operator::{OperatorConfig, OperatorTask};
use tasks::regression::{RegressionConfig, RegressionTask};
use tasks::text::{ClassifyConfig, JointConfig, SpanConfig};
use unix::config::{Key, keys};

/// A key as documented on the page: `.It Cm PATH No (TAKES[, in UNIT]; required|default VALUE)`.
struct Documented<'a> {
    section: &'a str,
    path: &'a str,
    takes: String,
    absent: &'a str,
}

fn documented(page: &str) -> Vec<Documented<'_>> {
    let mut section = "";
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix(".Sh ") {
            section = heading;
        } else if let Some((path, says)) =
            line.strip_prefix(".It Cm ").and_then(|rest| rest.split_once(" No ("))
        {
            let says = says.strip_suffix(')').and_then(|says| says.rsplit_once("; "));
            let (takes, absent) = says.unwrap_or_else(|| panic!("not of the form: {line}"));
            let takes = takes.replace("\\(>=", "≥").replace("\\(<=", "≤");
            found.push(Documented { section, path, takes, absent });
        }
    }
    found
}

/// Differences between a key and its documentation.
fn compare(key: &Key, page: &Documented) -> Vec<String> {
    let mut faults = Vec::new();
    let unit = page.takes.strip_prefix(&key.takes);
    if !unit.is_some_and(|unit| unit.is_empty() || unit.starts_with(", in ")) {
        faults.push(format!("{} takes {}, the page says {}", key.path, key.takes, page.takes));
    }
    let default = page.absent.strip_prefix("default ").map(value_of);
    let expected = key.default.clone().unwrap_or(Value::Null);
    let right = match (&default, key.required) {
        (None, required) => required && page.absent == "required",
        (Some(stdout), required) => !required && is_same(stdout, &expected),
    };
    if !right {
        let is = if key.required { "required".into() } else { format!("default {expected}") };
        faults.push(format!("{}: {is}, the page says {}", key.path, page.absent));
    }
    faults
}

fn value_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// 0 is the same as 0.0.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_array(), b.as_array()) {
        (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        _ => a == b || a.is_number() && a.as_f64() == b.as_f64(),
    }
}

#[test]
fn longhaul_config_5_has_every_key_with_type_and_default() {
    let page = page("longhaul-config.5");
    let documented = documented(&page);
    let tasks = [
        ("CODEC", keys::<CodecConfig>()),
        ("OPERATOR", keys::<OperatorConfig>()),
        ("CORRECTOR", keys::<CorrectorConfig>()),
        ("DISTILL", keys::<DistillConfig>()),
        ("CRITIC", keys::<CriticConfig>()),
        ("REGRESSION", keys::<RegressionConfig>()),
        ("CLASSIFY", keys::<ClassifyConfig>()),
        ("SPAN", keys::<SpanConfig>()),
        ("JOINT", keys::<JointConfig>()),
        ("CYCLE-VAE", keys::<CycleVaeConfig>()),
    ];
    let mut faults = Vec::new();
    for (name, keys) in &tasks {
        let own = format!("KEYS OF TASK {name}");
        let has = |prefix| keys.iter().any(|key| key.path.starts_with(prefix));
        let [has_backbone, has_encoder] = ["model.backbone", "model.encoder."].map(has);
        let of_task = || {
            documented.iter().filter(|d| match d.section {
                "KEYS OF ALL TASKS" => true,
                "KEYS OF BACKBONES" => has_backbone,
                "KEYS OF TASKS OF TEXTS" => has_encoder,
                section => section == own,
            })
        };
        for key in keys {
            let all: Vec<&Documented> = of_task().filter(|d| d.path == key.path).collect();
            match all.as_slice() {
                [one] => faults.extend(compare(key, one)),
                [] => faults.push(format!("{name}: {} is missing", key.path)),
                _ => faults.push(format!("{name}: {} is there {} times", key.path, all.len())),
            }
        }
        let known: BTreeSet<&str> = keys.iter().map(|key| key.path.as_str()).collect();
        let unknown = of_task().filter(|d| !known.contains(d.path));
        faults.extend(unknown.map(|d| format!("{name}: there is no key {}", d.path)));
    }
    assert!(faults.is_empty(), "man/longhaul-config.5:\n{}", faults.join("\n"));
}

/// Every key of a PyTorch script has a row, and every key that a row names exists.
#[test]
fn longhaul_config_5_translates_the_keys_of_scripts() {
    const THEIRS: &str = "dataset.name input_dim target_dim train_split normalize time_limit checkpoint.* mem_budget seed \
        batch_size total_updates updates_per_epoch checkpoint_every_updates checkpoint_save_rate eval_fraction amp \
        precision bfloat16 float16 compile compile_mode compile_fullgraph num_workers persistent_workers model.criterion \
        model.num_layers model.dropout optimizer.name optimizer.learning_rate optimizer.betas optimizer.momentum \
        optimizer.weight_decay max_grad_norm SequentialLR LinearLR CosineAnnealingLR num_updates start_factor wandb.*";
    let page = page("longhaul-config.5");
    let (_, table) = page.split_once("\n.Sh MIGRATING FROM PYTORCH SCRIPTS\n").unwrap();
    let rows = table.split("\n.El\n").next().unwrap().lines();
    let rows: Vec<(&str, &str)> = rows.filter_map(|row| row.split_once(" Ta ")).collect();
    let words = |text: &'static str| text.split_whitespace();
    let missing: Vec<&str> =
        words(THEIRS).filter(|key| !rows.iter().any(|(theirs, _)| theirs.contains(key))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let known = keys::<RegressionConfig>();
    for (theirs, ours) in rows.iter().skip(1) {
        let paths = ours.split_whitespace().filter(|word| {
            ["training.", "optimizer.", "loss.", "checkpoint.", "data.", "model."]
                .iter()
                .any(|section| word.starts_with(section))
        });
        for path in paths {
            let exists = known.iter().any(|key| key.path.starts_with(path));
            assert!(exists, "{theirs}: there is no key {path}");
        }
    }
}

#[test]
fn the_configurations_in_longhaul_config_5_load() {
    let page = page("longhaul-config.5");
    let [codec, operator, steady] = blocks(&page, "EXAMPLES")[..] else {
        panic!("one example for each task")
    };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, yaml: &str| {
        let file = folder.path().join(name);
        fs::write(&file, yaml).unwrap();
        vec![file]
    };
    let codec = load_config::<CodecTask>(&write("codec.yaml", codec), &[], &|_| None);
    let operator = load_config::<OperatorTask>(&write("operator.yaml", operator), &[], &|_| None);
    let steady = load_config::<RegressionTask>(&write("steady.yaml", steady), &[], &|_| None);
    let faults: Vec<String> = [codec.err(), operator.err(), steady.err()]
        .iter()
        .flatten()
        .map(ToString::to_string)
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
