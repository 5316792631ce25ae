//! Input files that change between attempts, or while a run uses them: it stops before a checkpoint, a validation or a
//! result depends on them, and continues to the same bits once they are restored.

use crate::common::run::*;
use crate::common::shell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Random, seed};

/// Like [`prepare`], with two data files.
fn prepare_two() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("codec.yaml"), CONFIG).unwrap();
    let output = shell(
        folder.path(),
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 64 --frames 11 --seed 5 -o data
         ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 64 --frames 11 --seed 6 -o other
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    folder
}

/// The data files, in the order of the manifest.
fn data_files(folder: &Path) -> [PathBuf; 2] {
    ["0.01", "0.1"].map(|nu| folder.join(format!("data/1D_Burgers_Sols_Nu{nu}.hdf5")))
}

fn swap(a: &Path, b: &Path) {
    let aside = a.with_extension("aside");
    for (from, to) in [(a, aside.as_path()), (b, a), (&aside, b)] {
        fs::rename(from, to).unwrap();
    }
}

/// Changes the inputs in `folder`; a second call restores them.
type Change = fn(&Path);

const CHANGES: [(&str, Change); 4] = [
    ("a flipped bit", |folder| flip(&data_files(folder)[1], 0.5, 0)),
    ("two files swapped", |folder| {
        let [a, b] = data_files(folder);
        swap(&a, &b);
    }),
    ("another data set of the same shape", |folder| {
        swap(&folder.join("data"), &folder.join("other"))
    }),
    ("an edited manifest", |folder| {
        let (path, aside) = (folder.join("split.json"), folder.join("split.aside"));
        if aside.exists() {
            return fs::rename(aside, path).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        fs::copy(&path, aside).unwrap();
        fs::write(path, text.replacen("\"seed\":", "\"seed\": ", 1)).unwrap();
    }),
];

fn checkpoints(run: &Path) -> Vec<u64> {
    let folder = run.join("ckpt");
    learn::checkpoint::list(&folder)
        .unwrap()
        .iter()
        .filter_map(|e| Some(e.manifest()?.update))
        .collect()
}

#[test]
fn inputs_changed_between_attempts_are_refused_before_a_checkpoint() {
    let temporary = prepare_two();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let keep = ["-s", "training.updates=20", "-s", "checkpoint.keep_last=99"];
    assert_eq!(train(folder, "run", &keep).0, Some(0));
    let whole = manifest(&run, 20);
    fs::remove_dir_all(run.join("ckpt/step-00000020")).unwrap();
    let before = checkpoints(&run);
    assert_eq!(before.last(), Some(&15));
    for (name, change) in CHANGES {
        change(folder);
        let attempts = records(&run).iter().filter(|r| r["kind"] == "start").count();
        for (run_name, expected) in [("run", 78), ("new", 65)] {
            let (exit, stdout) = train(folder, run_name, &keep);
            assert_eq!(exit, Some(expected), "{name}: {stdout}");
        }
        let (exit, stdout) = train(folder, "run", &[&keep[..], &["--check"]].concat());
        assert_eq!(exit, Some(78), "{name}: {stdout}");
        assert_eq!(checkpoints(&run), before, "{name}");
        assert!(checkpoints(&folder.join("new")).is_empty(), "{name}");
        let since =
            records(&run).into_iter().filter(|r| r["attempt"].as_u64() > Some(attempts as u64));
        let kept = since.filter(|r| r["kind"] == "validation" || r["kind"] == "saved").count();
        assert_eq!(kept, 0, "{name}: a result that depends on other data");
        assert_eq!(status(&run)["state"], "failed", "{name}");
        change(folder);
    }
    assert_eq!(train(folder, "run", &keep).0, Some(0));
    assert_eq!(manifest(&run, 20)["files"], whole["files"], "restored, with the same bits");
}

fn manifest(run: &Path, step: u64) -> serde_json::Value {
    let path = run.join(format!("ckpt/step-{step:08}/manifest.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn inputs_changed_during_a_run_stop_it_before_its_next_checkpoint() {
    let temporary = prepare_two();
    let folder = temporary.path();
    assert_eq!(train(folder, "whole", &[]).0, Some(0));
    let whole = outcome(&folder.join("whole"));
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..rounds(2, 60) {
        let (what, change) = CHANGES[round % CHANGES.len()];
        let name = format!("run-{round}");
        let run = folder.join(&name);
        let mut attempt = start(folder, &name, &["-s", "checkpoint.keep_last=99"]);
        attempt.wait_for_update(&run, 6 + random.below(200) as u64);
        wait_until(|| records(&run).iter().any(|r| r["kind"] == "saved") || !attempt.is_alive());
        if !attempt.suspend() {
            continue; // held up for so long that the run is over
        }
        let at = newest_update(&run);
        change(folder);
        attempt.signal("CONT");
        let (exit, stdout) = attempt.end();
        if exit == Some(0) {
            assert_eq!(newest_update(&run), 400, "{what}, seed {seed}: {stdout}");
            assert!(at >= 390, "{what} at update {at}, seed {seed}: {stdout}");
        } else {
            assert_eq!(exit, Some(78), "{what} at update {at}, seed {seed}: {stdout}");
            // One save may have been in flight.
            let newest = checkpoints(&run).last().copied();
            assert!(newest < Some(at + 5), "{what} at update {at}, seed {seed}: saved {newest:?}");
            change(folder);
            let (exit, stdout) = train(folder, &name, &["-s", "checkpoint.keep_last=99"]);
            assert_eq!(exit, Some(0), "{what}, seed {seed}: {stdout}");
        }
        assert!(outcome(&run) == whole, "{what} at update {at}, seed {seed}: other bits");
        all_verify(folder, &name);
    }
}

#[test]
fn unchanged_inputs_are_not_hashed_again() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let inputs = || records(&run).into_iter().rfind(|r| r["kind"] == "inputs").unwrap();
    wait_until(|| {
        let _ = fs::remove_dir_all(run.join("ckpt/step-00000020"));
        assert_eq!(train(folder, "run", &["-s", "training.updates=20"]).0, Some(0));
        // Once the files are old enough for their timestamps to be trusted.
        inputs()["cached"] == 3
    });
    let output = inputs();
    assert!(output["hashed"] == 0 && output["bytes"] == 0 && output["files"] == 3, "{output}");
}

/// The time limit passes while the first input file is still being hashed.
#[test]
fn a_run_that_must_stop_before_its_inputs_are_verified_saves_nothing_and_says_so() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let hold = Hold::new(folder);
    let attempt = || {
        let twice = ["-s", "training.attempts_without_progress=2"];
        let over = |command: &mut Command| {
            command.env("FAIL", "inputs.hash:1=hold").env("LONGHAUL_END_TIME", "1");
        };
        start_with(folder, "run", &twice, over).end()
    };
    for _ in 0..2 {
        let (exit, stdout) = attempt();
        assert_eq!(exit, Some(75), "{stdout}");
        assert!(stdout.contains("before all input files were verified"), "{stdout}");
        assert!(checkpoints(&run).is_empty(), "{stdout}");
        let reason = status(&run)["reason"].to_string();
        assert!(reason.contains("before all input files were verified"), "{reason}");
    }
    let (exit, stdout) = attempt();
    assert_eq!(exit, Some(1), "{stdout}");
    let reason = status(&run)["reason"].to_string();
    for words in ["no progress", "the last one: stopped before all input files were verified"] {
        assert!(reason.contains(words) && stdout.contains(words), "{reason} {stdout}");
    }
    drop(hold);
    assert_eq!(train(folder, "run", &["-s", "training.updates=20", "--retry"]).0, Some(0));
}

#[test]
fn a_flipped_bit_in_latents_is_refused() {
    let temporary = prepare();
    let folder = temporary.path();
    let operator = "\
data: {train: latents/train, validation: latents/validation}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {validation_steps: 2}
training: {updates: 4, batch_size: 4}
optimizer: {method: {kind: sgd}, learning_rate: 1e-3}
";
    fs::write(folder.join("operator.yaml"), operator).unwrap();
    let output = shell(
        folder,
        "train-stage codec -c codec.yaml -s training.updates=4 --run codec
         latent-cache make codec --data split.json --shard 3 -o latents",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let files: Vec<PathBuf> = ["train", "validation"]
        .into_iter()
        .flat_map(|split| fs::read_dir(folder.join("latents").join(split)).unwrap())
        .map(|entry| entry.unwrap().path())
        // Where the codec was, which is no part of the data.
        .filter(|path| !path.ends_with("source.json"))
        .collect();
    assert_eq!(files.len(), 6, "two indexes, three shards and one: {files:?}");
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..rounds(6, 200) {
        let file = &files[round % files.len()];
        let (place, bit) = (random.uniform(), random.below(8));
        flip(file, place, bit);
        let train = "train-stage operator -c operator.yaml --run run";
        let output = shell(folder, train);
        let expected =
            format!("{} at {place}, bit {bit}, seed {seed}: {}", file.display(), output.stderr);
        assert_eq!(output.status, Some(65), "{expected}");
        let name = file.strip_prefix(folder).unwrap().to_str().unwrap();
        assert!(output.stderr.contains(name), "{expected}");
        assert!(checkpoints(&folder.join("run")).is_empty(), "{expected}");
        flip(file, place, bit);
    }
    let output = shell(folder, "train-stage operator -c operator.yaml --run run");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
}

/// While the first input file is being hashed, a new run makes no update, and a signal ends it.
#[test]
fn a_new_run_makes_no_update_before_its_inputs_are_verified() {
    let temporary = prepare();
    let (folder, run) = (temporary.path(), temporary.path().join("run"));
    let hold = Hold::new(folder);
    let held = |command: &mut Command| {
        command.env("FAIL", "inputs.hash:1=hold");
    };
    let child = start_with(folder, "run", &["-s", "training.updates=20"], held);
    wait_until(|| child.stderr().contains("waiting until the input files are verified"));
    assert!(records(&run).iter().all(|record| record["kind"] == "start"));
    let asked = std::time::Instant::now();
    child.signal("TERM");
    let (exit, stdout) = child.end();
    assert_eq!(exit, Some(75), "{stdout}");
    assert!(asked.elapsed() < Duration::from_secs(9), "{:?}", asked.elapsed());
    assert!(checkpoints(&run).is_empty(), "{stdout}");

    // Data that were damaged after the split: refused at update 0.
    drop(hold);
    flip(&folder.join("data/1D_Burgers_Sols_Nu0.01.hdf5"), 0.5, 0);
    let (exit, stdout) = train(folder, "damaged", &[]);
    assert_eq!(exit, Some(65), "{stdout}");
    let kinds: Vec<_> =
        records(&folder.join("damaged")).into_iter().map(|record| record["kind"].clone()).collect();
    assert_eq!(kinds, ["start", "refused", "stop"]);
    assert_eq!(status(&folder.join("damaged"))["update"], 0);
}
