//! Tests of the subcommands that change checkpoints: `prune`, `adopt`, `average`, `reshard`.

use learn::checkpoint::{load, write};

use super::*;

fn names(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("ckpt")).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const ALL: [&str; 5] = ["best", "latest", "step-00000010", "step-00000020", "step-00000030"];

#[test]
fn prune_keeps_the_newest_the_best_and_those_of_the_rules() {
    let (_folder, run) = run();
    let output = ckpt(&["prune", "--keep-last", "1", "--dry-run", "--json"], &[&run]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("would remove 1 of 3 checkpoints"), "{}", output.stderr);
    let removed: Vec<bool> = output.json().iter().map(|row| row["removed"] == true).collect();
    assert_eq!(removed, [true, false, false]);
    assert_eq!(names(&run), ALL, "a dry run changes nothing");

    // 20 is kept because `best` names it, although no rule does.
    assert_eq!(ckpt(&["prune", "--keep-last", "0"], &[&run]).status, Some(0));
    assert_eq!(names(&run), ["best", "latest", "step-00000020", "step-00000030"]);
    assert_eq!(ckpt(&["verify"], &[&run]).status, Some(0));
    for words in [&["prune"][..], &["prune", "--dry-run"]] {
        assert_eq!(ckpt(words, &[&run]).status, Some(2), "without a rule nothing is clear");
    }
}

#[test]
fn prune_by_metric_and_by_multiples() {
    let (_folder, run) = run();
    fs::remove_file(run.join("ckpt/best")).unwrap();
    assert_eq!(ckpt(&["prune", "--keep-every", "10", "--keep-best", "1"], &[&run]).status, Some(0));
    assert_eq!(names(&run).len(), 4);
    assert_eq!(ckpt(&["prune", "--keep-best", "1"], &[&run]).status, Some(0));
    assert_eq!(names(&run), ["latest", "step-00000020", "step-00000030"]);
}

#[test]
fn prune_removes_nothing_if_the_newest_is_damaged_or_the_run_is_active() {
    let (_folder, run) = run();
    fs::write(run.join("log.jsonl"), "").unwrap();
    let lease = unix::lease::Lease::take(&run.join("lease"), || Ok(1), &|| false).unwrap();
    for verb in [&["prune", "--keep-last", "1"][..], &["adopt"]] {
        let output = ckpt(verb, &[&run]);
        assert_eq!(output.status, Some(75), "{}", output.stderr);
        assert!(output.stderr.contains("in use by"), "{}", output.stderr);
    }
    let output = ckpt(&["prune", "--keep-last", "1", "--dry-run"], &[&run]);
    assert_eq!(output.status, Some(0), "looking disturbs nobody: {}", output.stderr);
    // The same run, given as `.` from inside the folder.
    for (folder, path) in [(run.join("ckpt"), "."), (run.clone(), "ckpt")] {
        let mut prune = command(&["prune", "--keep-last", "1"], &[Path::new(path)]);
        let output = prune.current_dir(folder).output().unwrap();
        assert_eq!(output.status.code(), Some(75), "{path}");
    }
    assert_eq!(names(&run), ALL);
    drop(lease);
    flip(&run.join("ckpt/step-00000030/model.safetensors"), 3);
    let output = ckpt(&["prune", "--keep-last", "1"], &[&run]);
    assert_eq!(output.status, Some(65));
    assert!(output.stderr.contains("nothing was removed"), "{}", output.stderr);
    assert_eq!(names(&run), ALL);
}

#[test]
fn prune_keeps_the_checkpoint_that_a_rewind_needs() {
    let (_folder, run) = run();
    fs::remove_file(run.join("ckpt/best")).unwrap();
    let config = json!({"training": {"on_spike": "rewind"}, "checkpoint": {"every": 20}});
    write(&run.join("ckpt"), &State { config, ..state(33) }, 1).unwrap();
    assert_eq!(ckpt(&["prune", "--keep-last", "1"], &[&run]).status, Some(0));
    assert_eq!(names(&run), ["latest", "step-00000020", "step-00000033"]);
}

#[test]
fn adopt_publishes_complete_saves_and_leaves_the_rest() {
    let (_folder, run) = run();
    let folder = run.join("ckpt");
    let save = |update: u64, name: &str| {
        let made = write(&folder, &state(update), 2).unwrap();
        fs::rename(made, folder.join(name)).unwrap();
    };
    save(40, ".tmp-step-00000040-node-7-0");
    save(50, ".tmp-step-00000050-node-7-1");
    flip(&folder.join(".tmp-step-00000050-node-7-1/model.safetensors"), 3);
    fs::rename(folder.join("step-00000020"), folder.join("twenty")).unwrap();
    save(20, ".tmp-step-00000020-node-7-2");
    fs::rename(folder.join("twenty"), folder.join("step-00000020")).unwrap();
    fs::create_dir(folder.join(".tmp-step-00000060-node-7-3")).unwrap();

    let output = ckpt(&["adopt", "--json"], &[&run]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let rows = output.json();
    let why = |update: &str| {
        let row = rows.iter().find(|row| row["path"].as_str().unwrap().contains(update)).unwrap();
        row["why"].as_str().unwrap_or("adopted").to_string()
    };
    assert_eq!(rows.len(), 4);
    assert_eq!(why("00000040"), "adopted");
    assert!(why("00000050").contains("tensor core.weight"), "{}", why("00000050"));
    assert!(why("00000020").contains("already exists"));
    assert!(why("00000060").contains("manifest.json is missing"));
    assert_eq!(load(&folder.join("step-00000040")).unwrap().manifest.update, 40);
    assert_eq!(ckpt(&["verify"], &[&folder.join("step-00000020")]).status, Some(0));
    assert!(folder.join(".tmp-step-00000050-node-7-1").is_dir());
}

/// A checkpoint in a folder of its own.
fn saved(folder: &Path, state: &State) -> PathBuf {
    fs::create_dir(folder).unwrap();
    write(folder, state, 1).unwrap()
}

/// A state with these weights, and an average of them if `ema` is set.
fn weights(update: u64, values: &[f32], ema: bool) -> State {
    let tensor = vec![("w".to_string(), Tensor::from_slice(values, &[values.len()]))];
    let buffers = vec![("mean".to_string(), Tensor::from_slice(&[0.5_f64], &[1]))];
    let parts = [("model".to_string(), tensor.clone()), ("buffers".into(), buffers)];
    let mut tensors = learn::checkpoint::Tensors::from(parts);
    if ema {
        tensors.insert("ema".into(), tensor);
    }
    State { tensors, ..state(update) }
}

#[test]
fn reshard_divides_the_optimizer_and_changes_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut state = weights(7, &[1.0, 2.0], true);
    let lengths = [3, 1, 5, 2, 4];
    let optim = (0_u8..).zip(lengths).flat_map(|(i, n)| {
        let tensor = |at: f32| Tensor::from_slice(&vec![f32::from(i) + at; n], &[n]);
        [(format!("p{i}.m"), tensor(0.0)), (format!("p{i}.v"), tensor(0.5))]
    });
    state.tensors.insert("optim-0-of-1".into(), optim.collect());
    let one = saved(&at("one"), &state);
    let whole = |path: &Path| {
        let loaded = load(path).unwrap();
        let values = loaded.optimizer().unwrap().into_iter().map(|(n, t)| (n, t.to_f64()));
        (values.collect::<Vec<_>>(), loaded.manifest.progress, loaded.manifest.metrics)
    };
    let mut from = one.clone();
    for shards in [3, 7, 1] {
        let out = at(&format!("in-{shards}"));
        let shards = shards.to_string();
        let words = ["reshard", "--shards", &shards, "-o", out.to_str().unwrap()];
        let output = ckpt(&words, &[&from]);
        assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
        let files = fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name());
        let files = files.filter(|name| name.to_str().unwrap().starts_with("optim-"));
        assert_eq!(files.count().to_string(), shards);
        assert_eq!(whole(&out), whole(&one));
        assert_eq!(ckpt(&["verify"], &[&out]).status, Some(0));
        from = out;
    }
    assert_eq!(
        fs::read(from.join("optim-0-of-1.safetensors")).unwrap(),
        fs::read(one.join("optim-0-of-1.safetensors")).unwrap(),
        "there and back"
    );
    let none = saved(&at("none"), &weights(1, &[1.0], false));
    let refused = |from: &Path, shards: &str, out: &str| {
        ckpt(&["reshard", "--shards", shards, "-o", at(out).to_str().unwrap()], &[from]).status
    };
    assert_eq!(refused(&none, "2", "x"), Some(65), "nothing to divide");
    assert_eq!(refused(&one, "0", "x"), Some(2));
    assert_eq!(refused(&one, "2", "in-3"), Some(73), "nothing is overwritten");
    fs::remove_file(at("in-3").join("optim-1-of-3.safetensors")).unwrap();
    assert_eq!(refused(&at("in-3"), "2", "x"), Some(66), "a part is missing");
}

#[test]
fn average_is_the_weighted_mean() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // In f32 the small value would be lost in the sum.
    let a = saved(&at("a"), &weights(1, &[3.0, 1e8, 1.0], true));
    let b = saved(&at("b"), &weights(2, &[6.0, -1e8, 0.0], true));
    let c = saved(&at("c"), &weights(3, &[0.0, 3.0, 0.5], false));
    let out = at("mean");
    let output = ckpt(&["average", "-o", out.to_str().unwrap()], &[&a, &b, &c]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let mean = load(&out).unwrap();
    assert_eq!(mean.tensors("model").unwrap()[0].1.to_f64(), [3.0, 1.0, 0.5]);
    assert!(mean.tensors("ema").is_none(), "not all have one");
    assert_eq!(mean.tensors("buffers").unwrap()[0].1.to_f64(), [0.5]);
    let origins = mean.manifest.progress["averaged"].as_array().unwrap().clone();
    assert_eq!(origins.len(), 3);
    assert_eq!(
        (&origins[1]["update"], origins[1]["model"].as_str().unwrap().len()),
        (&json!(2), 64)
    );
    assert_eq!(ckpt(&["verify"], &[&out]).status, Some(0));

    let output = ckpt(&["average", "--weights", "1,3", "-o", at("w").to_str().unwrap()], &[&a, &b]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let mean = load(&at("w")).unwrap();
    assert_eq!(mean.tensors("ema").unwrap()[0].1.to_f64(), [5.25, -5e7, 0.25]);

    let again = ckpt(&["average", "-o", out.to_str().unwrap()], &[&a, &b]);
    assert_eq!(again.status, Some(73), "{}", again.stderr);
    let one = ckpt(&["average", "--weights", "1", "-o", at("x").to_str().unwrap()], &[&a, &b]);
    assert_eq!(one.status, Some(2), "{}", one.stderr);
}

#[test]
fn average_of_different_models_names_the_differences() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let a = saved(&at("a"), &weights(1, &[1.0, 2.0], true));
    let mut other = weights(2, &[1.0], true);
    other.tensors.get_mut("buffers").unwrap()[0].1 = Tensor::from_slice(&[0.25_f64], &[1]);
    other.tensors.get_mut("ema").unwrap()[0].0 = "v".into();
    let b = saved(&at("b"), &State { task: "operator".into(), ..other });
    let output = ckpt(&["average", "-o", at("x").to_str().unwrap()], &[&a, &b]);
    assert_eq!(output.status, Some(65));
    for words in [
        "task operator, expected codec",
        "model: w is F32 [1], expected F32 [2]",
        "different buffers",
        "ema: w is absent, expected F32 [2]",
        "ema: v is F32 [1], expected absent",
    ] {
        assert!(output.stderr.contains(words), "{words}: {}", output.stderr);
    }
    assert!(!at("x").exists());
}
