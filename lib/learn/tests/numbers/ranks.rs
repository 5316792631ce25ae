//! The same on two ranks, one of which has the fault: both do what a single rank would have done.

use super::*;
use unix::Exit;

/// Whether several ranks can be started on this machine.
pub fn can_start() -> bool {
    test_support::require_program("mpirun", &["--version"])
}

/// A run with the same bits on one rank and on two.
fn new(folder: &Path, name: &str, seed: u64, faults: Value, training: Value) -> Run {
    let mut run = Run::new(folder, name, seed, faults, training);
    run.config["training"]["deterministic"] = json!(true);
    run
}

/// Starts the run on two ranks, the second with this setting in its environment; returns the statuses of the ranks that
/// exited normally.
pub fn start(run: &Run, second: &str) -> Vec<u8> {
    start_on(run, second, "cpu")
}

/// [`start`] on a device.
pub fn start_on(run: &Run, second: &str, device: &str) -> Vec<u8> {
    let rank = |more: &str| {
        let program = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
        let child = ["child_that_trains", "--exact", "--ignored", "--nocapture"];
        let words = ["-n", "1", "env", more, &program];
        words.into_iter().chain(child).map(str::to_string).collect::<Vec<_>>()
    };
    let output = Command::new("mpirun")
        .args(["--bind-to", "none"])
        .args(rank("RANK=first"))
        .arg(":")
        .args(rank(second))
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("NUMBERS_FOLDER", &run.folder)
        .env("NUMBERS_DEVICE", device)
        .env("NUMBERS_CONFIG", run.config.to_string())
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    text.lines().filter_map(|line| line.split_once("ended with ")?.1.trim().parse().ok()).collect()
}

/// Both ranks ended with this status.
pub fn both(exit: Exit) -> Vec<u8> {
    vec![exit as u8; 2]
}

#[test]
fn a_sample_of_one_rank_that_is_not_a_number_costs_all_ranks_one_update() {
    if !can_start() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    // The second sample of its batch, which the second rank reads.
    let faults = json!({"nan_sample": sample_of(seed, 20)});
    let run = |name| new(temporary.path(), name, seed, faults.clone(), json!({}));
    let (alone, two) = (run("alone"), run("two"));
    assert_eq!(alone.start(), 0);
    assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
    let updates = two.records("update", false);
    let skipped = |update: usize| updates[update - 1]["skipped"].as_u64().unwrap();
    assert_eq!((updates.len(), skipped(19), skipped(20), skipped(60)), (60, 0, 1, 1));
    assert!(two.outcome() == alone.outcome(), "seed {seed}");
}

#[test]
fn two_ranks_rewind_like_one() {
    if !can_start() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let faults = json!({"large_sample": sample_of(seed, 31)});
    let keys = json!({"on_spike": "rewind"});
    let run = |name| new(temporary.path(), name, seed, faults.clone(), keys.clone());
    let (alone, two, stopped) = (run("alone"), run("two"), run("stopped"));
    assert_eq!(alone.start(), 0);
    assert_eq!(alone.records("rewind", true).len(), 1);
    assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
    assert_eq!(two.records("rewind", true).len(), 1);
    assert!(two.outcome() == alone.outcome(), "seed {seed}");
    // The second rank is told to stop in the update before the spike, and is killed after it.
    assert_eq!(start(&stopped, "NUMBERS_DIE=term:60"), both(Exit::Again));
    assert!(start(&stopped, "NUMBERS_DIE=kill:9").is_empty(), "killed");
    assert_eq!(start(&stopped, "RANK=second"), both(Exit::Done));
    assert!(stopped.outcome() == alone.outcome(), "seed {seed}: stopped and killed");
}

#[test]
fn a_rank_that_computes_wrongly_is_named_and_the_run_goes_on_elsewhere() {
    if !can_start() {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let keys = json!({"accumulation": 1, "verify_every": 10});
    let run = |name| new(temporary.path(), name, seed, json!({}), keys.clone());
    let (alone, two) = (run("alone"), run("two"));
    assert_eq!(alone.start(), 0);
    // Update 10 computes twice more on each rank.
    assert_eq!(start(&two, "NUMBERS_FLIP=22:0"), both(Exit::Again));
    let (reason, host) = (two.status().reason.unwrap(), unix::host::name());
    for word in ["update 20", "by rank 1", host.as_str(), "(cpu)", "the first was wrong"] {
        assert!(reason.contains(word), "no {word} in {reason}");
    }
    let found = two.records("machine", false);
    assert_eq!((found.len(), &found[0]["rank"], &found[0]["host"]), (1, &json!(1), &json!(host)));
    assert!(two.checkpoints().iter().all(|step| *step <= 19), "saved: {:?}", two.checkpoints());
    assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
    assert!(two.outcome() == alone.outcome(), "seed {seed}");
}

/// Weighted means over an update do not depend on how its samples are divided into micro-batches and ranks.
#[test]
fn uneven_weights_give_the_same_update_for_any_accumulation_and_ranks() {
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    let run = |name: &str, uneven: bool, keys: Value| {
        let keys = with(json!({"updates": 20, "batch_size": 8, "accumulation": 1}), keys);
        Run::new(temporary.path(), name, seed, json!({ "uneven": uneven }), keys)
    };
    let end = |run: &Run| -> (Vec<f64>, f64) {
        let newest = checkpoint::load_newest(&run.folder.join("ckpt")).unwrap().unwrap();
        let loss = run.records("update", false).pop().unwrap()["loss"].as_f64().unwrap();
        (newest.tensors("model").unwrap()[0].1.to_f64(), loss)
    };
    let differ = |(a, loss): &(Vec<f64>, f64), (b, other): &(Vec<f64>, f64)| {
        let far = |a: f64, b: f64| (a - b).abs() / b.abs();
        a.iter().zip(b).map(|(a, b)| far(*a, *b)).fold(far(*loss, *other), f64::max)
    };
    let whole = run("whole", true, json!({}));
    assert_eq!(whole.start(), 0);
    let expected = end(&whole);
    for (batch, accumulation) in [(4, 2), (2, 4)] {
        let keys = json!({"batch_size": batch, "accumulation": accumulation});
        let divided = run(&format!("in {accumulation}"), true, keys);
        assert_eq!(divided.start(), 0);
        // 20 updates with f32 sums in another order: about 2^-24 each, as AdamW's step follows the gradient.
        let off = differ(&end(&divided), &expected);
        assert!(off < 1e-5, "accumulation {accumulation}: {off:e}");
    }
    let even = run("even", false, json!({}));
    assert_eq!(even.start(), 0);
    assert!(differ(&end(&even), &expected) > 1e-3, "weights change nothing");
    if !can_start() {
        return;
    }
    let two = run("two", true, json!({}));
    assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
    let off = differ(&end(&two), &expected);
    assert!(off < 1e-5, "two ranks: {off:e}");
    let keys = json!({"deterministic": true, "batch_size": 4, "accumulation": 2});
    let [alone, two] = ["alone", "two of it"].map(|name| run(name, true, keys.clone()));
    assert_eq!(alone.start(), 0);
    assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
    assert!(two.outcome() == alone.outcome(), "seed {seed}");
}

#[test]
fn sums_over_the_host_in_bf16_are_refused() {
    if !can_start() {
        return;
    }
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    let keys = json!({"updates": 2, "reduce_dtype": "bf16"});
    let run = |name| Run::new(temporary.path(), name, seed, json!({}), keys.clone());
    assert_eq!(start(&run("two"), "RANK=second"), both(Exit::Config));
    // A rank that is alone sums nothing.
    assert_eq!(run("alone").start(), 0);
}

/// On two ranks, passes that are replayed in segments give the same bits as passes that are not recorded.
#[test]
#[cfg(feature = "emu")]
fn captured_graphs_sum_over_ranks_like_others() {
    if !can_start() {
        return;
    }
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    for accumulation in [1, 2] {
        let [captured, plain] = [true, false].map(|compile| {
            let keys = json!({"updates": 9, "batch_size": 4, "accumulation": accumulation, "compile": compile});
            let name = format!("{compile} {accumulation}");
            let mut run = Run::new(temporary.path(), &name, seed, json!({"uneven": true}), keys);
            run.config["optimizer"]["shard"] = json!(true);
            assert_eq!(start_on(&run, "RANK=second", "emu"), both(Exit::Done));
            run
        });
        assert!(captured.outcome() == plain.outcome(), "accumulation {accumulation}, seed {seed}");
    }
}

/// A captured graph is replayed with the weight of each micro-batch, not with that of the captured one.
#[test]
#[cfg(feature = "emu")]
fn captured_graphs_use_the_weight_of_each_micro_batch() {
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    let loss = |name: &str, device| {
        let keys = json!({"updates": 12, "batch_size": 4, "accumulation": 1, "compile": true});
        let run = Run::new(temporary.path(), name, seed, json!({"uneven": true}), keys);
        let config: MeanConfig = serde_json::from_value(run.config.clone()).unwrap();
        let task = ConfiguredTask::new::<Mean>(config).unwrap();
        let exit = train(TrainJob::new(task, run.folder.clone(), device, &Solo)).unwrap();
        assert_eq!(exit, Exit::Done);
        let updates = run.records("update", false);
        updates.iter().map(|update| update["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (cpu, device) = (loss("cpu", tensor::Device::Cpu), loss("emu", tensor::Device::Emu));
    for (update, (ours, expected)) in device.iter().zip(&cpu).enumerate() {
        // A few f32 roundings in another order, amplified over several updates; the weights differ by tens of percent.
        assert!((ours / expected - 1.0).abs() < 1e-4, "update {update}: {ours}, {expected}");
    }
}
