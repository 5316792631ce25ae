//! Everything in a checkpoint is necessary: without any one item the run is refused, and with another value in it the
//! run ends differently.

use crate::common::run::{prepare, records, rounds, status, train};
use crate::common::shell;
use learn::checkpoint::{State, load, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tensor::Tensor;
use test_support::{Random, seed};

/// 20 updates, keeping every checkpoint. Early stopping is enabled but not reached.
const MORE: &[&str] = &[
    "-s",
    "training.updates=20",
    "-s",
    "training.early_stopping_patience=30",
    "-s",
    "checkpoint.keep_last=99",
];

/// Completes a run, and returns its state after 10 updates.
fn whole(folder: &Path) -> State {
    let (exit, stdout) = train(folder, "whole", MORE);
    assert_eq!(exit, Some(0), "{stdout}");
    state_of(&folder.join("whole/ckpt/step-00000010"))
}

fn state_of(checkpoint: &Path) -> State {
    let found = load(checkpoint).unwrap();
    let m = &found.manifest;
    let tensors =
        m.files.iter().map(|file| (file.stem().to_string(), found.tensors(file.stem()).unwrap()));
    State {
        tensors: tensors.collect(),
        update: m.update,
        progress: m.progress.clone(),
        metrics: m.metrics.clone(),
        monitor: m.monitor.clone(),
        direction: m.direction,
        seed: m.seed,
        world: m.world,
        task: m.task.clone(),
        config: m.config.clone(),
        config_hash: m.config_hash.clone(),
        data_hash: m.data_hash.clone(),
        dependencies: m.dependencies.clone(),
        fence: None,
        condition: None,
    }
}

/// A run directory that contains only this checkpoint.
fn run_of(folder: &Path, state: &State) -> PathBuf {
    let run = folder.join("run");
    let _ = std::fs::remove_dir_all(&run);
    std::fs::create_dir_all(run.join("ckpt")).unwrap();
    write(&run.join("ckpt"), state, 1).unwrap();
    run
}

/// Resumes from there; returns the exit status, stderr and, if the status is 0, the outcome.
fn resume_from(folder: &Path, state: &State) -> (Option<i32>, String, Vec<String>) {
    let run = run_of(folder, state);
    let (exit, stdout) = train(folder, "run", MORE);
    let outcome = if exit == Some(0) { outcome(&run) } else { Vec::new() };
    (exit, stdout, outcome)
}

/// The outcome of a run after its tenth update.
fn outcome(run: &Path) -> Vec<String> {
    let last = run.join("ckpt/step-00000020");
    let Ok(found) = load(&last) else { return Vec::new() };
    let mut all: Vec<String> = found.manifest.files.iter().map(|f| f.blake3.clone()).collect();
    let mut progress = found.manifest.progress.clone();
    let seconds = progress.as_object_mut().unwrap().remove("seconds").unwrap();
    all.push(progress.to_string());
    all.push(format!("an hour spent: {}", seconds.as_f64().unwrap() > 3600.0));
    let late = |record: &Value| record["update"].as_u64() > Some(10);
    for mut record in records(run).into_iter().filter(late) {
        if record["kind"] == "update" || record["kind"] == "validation" {
            for key in ["time", "attempt", "seconds", "data_wait_s"] {
                record.as_object_mut().unwrap().remove(key);
            }
            all.push(record.to_string());
        }
    }
    all
}

#[test]
fn without_any_one_tensor_it_is_refused() {
    let temporary = prepare();
    let folder = temporary.path();
    let state = whole(folder);
    assert_eq!(
        resume_from(folder, &state).2,
        outcome(&folder.join("whole")),
        "with all it goes on"
    );
    let mut items: Vec<(String, Option<String>)> = Vec::new();
    for (file, tensors) in &state.tensors {
        items.push((file.clone(), None));
        items.extend(tensors.iter().map(|(name, _)| (file.clone(), Some(name.clone()))));
    }
    assert!(items.len() > 60, "{items:?}");
    let seed = seed();
    let mut random = Random(seed);
    let files = items.iter().filter(|(_, tensor)| tensor.is_none()).count();
    while items.len() > rounds(files + 12, usize::MAX) {
        let at = random.below(items.len());
        if items[at].1.is_some() {
            items.remove(at);
        }
    }
    for (file, tensor) in items {
        let mut without = state.clone();
        match &tensor {
            None => drop(without.tensors.remove(&file)),
            Some(name) => without.tensors.get_mut(&file).unwrap().retain(|(n, _)| n != name),
        }
        let (exit, stdout, _) = resume_from(folder, &without);
        let missing = tensor.as_ref().unwrap_or(&file);
        assert_eq!(exit, Some(65), "{file} {tensor:?}, seed {seed}: {stdout}");
        let named = stdout.contains(missing.as_str()) || file == "buffers";
        assert!(named, "{file} {tensor:?}, seed {seed}: {stdout}");
    }
}

#[test]
fn without_any_one_field_it_is_refused() {
    let temporary = prepare();
    let folder = temporary.path();
    let state = whole(folder);
    let fields: Vec<String> = state.progress.as_object().unwrap().keys().cloned().collect();
    assert!(fields.len() >= 10, "{fields:?}");
    for field in fields {
        let mut without = state.clone();
        without.progress.as_object_mut().unwrap().remove(&field);
        let (exit, stdout, _) = resume_from(folder, &without);
        assert_eq!(exit, Some(65), "progress.{field}: {stdout}");
        assert!(stdout.contains(&format!("missing field `{field}`")), "{stdout}");
    }
    // A field missing from the manifest itself, with the digest and everything else correct.
    let run = run_of(folder, &state);
    let path = run.join("ckpt/step-00000010/manifest.json");
    let text = std::fs::read(&path).unwrap();
    let fields: Value = serde_json::from_slice(&text).unwrap();
    for field in fields.as_object().unwrap().keys().filter(|field| *field != "digest") {
        std::fs::write(&path, manifest_text(&fields, |map| drop(map.shift_remove(field)))).unwrap();
        let (exit, stdout) = train(folder, "run", MORE);
        assert_eq!(exit, Some(65), "{field}: {stdout}");
        assert!(stdout.contains(&format!("missing field `{field}`")), "{stdout}");
    }
    std::fs::write(&path, manifest_text(&fields, |_| ())).unwrap();
    let (exit, stdout) = train(folder, "run", MORE);
    assert_eq!(exit, Some(0), "{stdout}");
}

/// Versions before `progress.amp_on_cpu` computed in f32 on the CPU, whatever `training.amp` was.
#[test]
fn a_run_with_amp_of_an_earlier_version_continues_in_f32() {
    let temporary = prepare();
    let folder = temporary.path();
    let single = [MORE, &["--device", "cpu"]].concat();
    let amp = [&single[..], &["-s", "training.amp=true"]].concat();
    for (run, words) in [("f32", &single), ("amp", &amp)] {
        let (exit, stderr) = train(folder, run, words);
        assert_eq!(exit, Some(0), "{stderr}");
    }
    let [begun, State { config, config_hash, progress, .. }] =
        ["f32", "amp"].map(|run| state_of(&folder.join(run).join("ckpt/step-00000010")));
    assert_eq!(
        (&begun.progress["amp_on_cpu"], &progress["amp_on_cpu"]),
        (&Value::Null, &json!(true))
    );
    let mut state = State { config, config_hash, ..begun };
    let expected = outcome(&folder.join("f32"));
    for is_earlier in [true, false] {
        let run = run_of(folder, &state);
        let (exit, stderr) = train(folder, "run", &amp);
        assert_eq!(exit, Some(0), "{stderr}");
        let says = "no effect: the run was begun by a version that computed in f32 on the CPU";
        assert_eq!(stderr.contains(says), is_earlier, "{stderr}");
        assert_eq!(outcome(&run) == expected, is_earlier);
        state.progress["amp_on_cpu"] = json!(true);
    }
    // An accepted change of something else does not turn it on, but one of amp does.
    state.progress["amp_on_cpu"] = json!(false);
    let accepted =
        [&amp[..], &["--accept-config-change", "-s", "optimizer.learning_rate=0.0123"]].concat();
    for (state, is_on) in [(state, false), (state_of(&folder.join("f32/ckpt/step-00000010")), true)]
    {
        let run = run_of(folder, &state);
        let (exit, stderr) = train(folder, "run", &accepted);
        assert_eq!((exit, stderr.contains("accepted: ")), (Some(0), true), "{stderr}");
        let last = state_of(&run.join("ckpt/step-00000020"));
        assert_eq!(last.progress["amp_on_cpu"] == true, is_on, "{stderr}");
        let env = std::fs::read_to_string(run.join("env.json")).unwrap();
        assert_eq!(env.contains("bf16_products"), is_on, "{env}");
    }
}

/// The text of a manifest after a change, with its new digest.
fn manifest_text(
    fields: &Value,
    change: impl FnOnce(&mut serde_json::Map<String, Value>),
) -> String {
    let mut map = fields.as_object().unwrap().clone();
    map.shift_remove("digest");
    change(&mut map);
    let mut text = String::from("{\n");
    for (name, value) in map {
        text += &format!("{}: {value},\n", Value::String(name));
    }
    let digest = blake3::hash(text.as_bytes()).to_hex();
    format!("{text}\"digest\": \"{digest}\"\n}}\n")
}

#[test]
fn with_another_value_it_is_refused_or_ends_differently() {
    let temporary = prepare();
    let folder = temporary.path();
    let state = whole(folder);
    let whole = outcome(&folder.join("whole"));
    let differs = |what: &str, changed: State| {
        let (exit, stdout, outcome) = resume_from(folder, &changed);
        let refused = matches!(exit, Some(65 | 78));
        let different = exit == Some(0) && outcome != whole;
        assert!(refused || different, "{what} was ignored: {exit:?} {stdout}");
    };
    for (field, value) in [
        ("update", json!(9)),
        ("samples", json!(0)),
        ("steps", json!(0)),
        ("skipped", json!(1)),
        ("best", json!({"metric": "nrmse", "value": 1e-9, "update": 1})),
        ("validations_since_best", json!(31)),
        ("seconds", json!(4000.0)),
        ("finished", json!(true)),
        ("accepted", json!(["another history"])),
    ] {
        let mut changed = state.clone();
        changed.progress[field] = value;
        differs(field, changed);
    }
    for file in state.tensors.keys() {
        let mut changed = state.clone();
        for (_, tensor) in changed.tensors.get_mut(file).unwrap() {
            *tensor = Tensor::zeros(tensor.shape(), tensor.dtype());
        }
        differs(file, changed);
    }
    differs("seed", State { seed: 4, ..state.clone() });
    differs("task", State { task: "operator".into(), ..state.clone() });
    differs("data_hash", State { data_hash: "0".into(), ..state.clone() });
    let mut config = state.config.clone();
    config["training"]["clip_grad_norm"] = json!(0.5);
    differs("config", State { config, ..state });
}

/// The count of consecutively skipped updates survives a restart.
#[test]
fn the_count_of_skipped_updates_survives_a_restart() {
    let temporary = prepare();
    let folder = temporary.path();
    let more = ["-s", "optimizer.learning_rate=1e30", "-s", "checkpoint.every=1"];
    let more = [MORE, &more].concat();
    let end = |run: &str| {
        let (exit, stdout) = train(folder, run, &more);
        assert_eq!(exit, Some(1), "{stdout}");
        assert!(stdout.contains("diverged"), "{stdout}");
        status(&folder.join(run))["update"].as_u64().unwrap()
    };
    let diverged_at = end("whole");
    let before = folder.join(format!("whole/ckpt/step-{:08}", diverged_at - 3));
    let mut state = state_of(&before);
    assert_eq!(state.progress["skipped_in_row"], 5, "{}", state.progress);
    run_of(folder, &state);
    assert_eq!(end("run"), diverged_at);
    state.progress["skipped_in_row"] = json!(0);
    run_of(folder, &state);
    assert_eq!(end("run"), diverged_at + 5);
}

/// Made by tests/golden/checkpoint-1.sh.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/checkpoint-1")
}

#[test]
fn a_checkpoint_of_format_1_loads_and_resumes() {
    let temporary = prepare();
    let folder = temporary.path();
    let path = golden().join("step-00000010");
    let manifest = load(&path).unwrap().manifest;
    assert_eq!((manifest.format, manifest.update), (1, 10));
    let output = shell(folder, &format!("ckpt verify {} >&2", path.display()));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    // On other processors the last bits of the data may differ; that must not matter here.
    let from = path.to_str().unwrap();
    let more = ["--resume", from, "--accept-config-change", "-s", "training.updates=20"];
    let (exit, stdout) = train(folder, "run", &more);
    assert_eq!(exit, Some(0), "{stdout}");
    let first = records(&folder.join("run")).into_iter().find(|r| r["kind"] == "update").unwrap();
    assert_eq!(first["update"], 11);
}

#[test]
fn a_newer_format_is_refused_with_a_line() {
    let temporary = prepare();
    let folder = temporary.path();
    let (exit, stdout) = train(folder, "run", MORE);
    assert_eq!(exit, Some(0), "{stdout}");
    let path = folder.join("run/ckpt/step-00000020/manifest.json");
    let fields: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let newer = manifest_text(&fields, |map| map["format"] = json!(2));
    std::fs::write(&path, &newer).unwrap();
    let (exit, stdout) = train(folder, "run", MORE);
    assert_eq!(exit, Some(65), "{stdout}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    assert!(stdout.contains("format 2") && stdout.contains("use a newer version"), "{stdout}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
}

/// No validation after the first improves.
#[test]
fn early_stopping_counts_validations_without_improvement() {
    let folder = prepare();
    for (patience, after, last) in [(0, 0, 2), (1, 0, 2), (3, 0, 4), (1, 4, 5), (3, 1, 4)] {
        let run = format!("patience-{patience}-{after}");
        let after = format!("training.early_stopping_after={after}");
        let patience = format!("training.early_stopping_patience={patience}");
        let still = [
            "training.validate_every=1",
            "training.updates=9",
            "training.ema=null",
            &patience,
            &after,
        ];
        let still = still.into_iter().chain(["optimizer.learning_rate=1e-30"]);
        let more: Vec<&str> = still.flat_map(|set| ["-s", set]).collect();
        let (exit, stderr) = train(folder.path(), &run, &more);
        assert_eq!(exit, Some(0), "{stderr}");
        assert_eq!(status(&folder.path().join(run))["update"], last, "{patience}: {stderr}");
    }
}

/// The mean loss of 20 updates ends a run with a last validation; so does a run that was stopped on the way.
#[test]
fn a_low_training_loss_ends_a_run() {
    let folder = prepare();
    let more = [
        "-s",
        "training.stop_below_loss=1e9",
        "-s",
        "training.updates=40",
        "-s",
        "training.validate_every=15",
    ];
    let (exit, stderr) = train(folder.path(), "low", &more);
    assert_eq!(exit, Some(0), "{stderr}");
    let run = folder.path().join("low");
    assert_eq!(status(&run)["update"], 20, "{stderr}");
    let log = std::fs::read_to_string(run.join("log.jsonl")).unwrap();
    let validations = log.lines().filter(|line| line.contains("\"validation\"")).count();
    assert_eq!(validations, 2, "{log}");
    let (exit, _) = train(
        folder.path(),
        "window",
        &["-s", "training.stop_below_loss=1", "-s", "training.spike.window=10"],
    );
    assert_eq!(exit, Some(78));
}

/// A schedule that is stretched over more updates continues elsewhere.
#[test]
fn a_learning_rate_that_jumps_is_told() {
    let temporary = prepare();
    let folder = temporary.path();
    let cosine = "schedule=[{kind: linear, end_factor: 0.0}]";
    let longer = ["-s", "training.updates=40", "--accept-config-change"];
    for (name, schedule, told) in [
        (
            "decays",
            cosine,
            Some("the learning rate changes from 5.000e-5 in update 20 to 5.000e-4 in the next"),
        ),
        ("constant", "schedule=[]", None),
    ] {
        let common = ["-s", schedule, "-s", "training.updates=20"];
        assert_eq!(train(folder, name, &common).0, Some(0));
        let (exit, stderr) = train(folder, name, &[&["-s", schedule][..], &longer].concat());
        assert_eq!(exit, Some(0), "{stderr}");
        match told {
            Some(words) => assert!(stderr.contains(words), "{stderr}"),
            None => assert!(!stderr.contains("the learning rate changes"), "{stderr}"),
        }
    }
}
