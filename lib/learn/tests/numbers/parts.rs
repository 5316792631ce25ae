//! Losses of several parts, each with a denominator of its own.

use super::ranks::{both, can_start, start};
use super::stage::rare_factor;
use super::*;
use unix::Exit;

/// 20 updates of 8 samples with both parts, all with uneven weights.
fn new(folder: &Path, name: &str, seed: u64, training: Value) -> Run {
    let keys = json!({"updates": 20, "batch_size": 8, "accumulation": 1});
    Run::new(folder, name, seed, json!({"uneven": true, "parts": true}), with(keys, training))
}

/// The parameters at the end and, of each update, the loss and the mean of each part.
fn end(run: &Run) -> (Vec<f64>, Vec<[Option<f64>; 3]>) {
    let newest = checkpoint::load_newest(&run.folder.join("ckpt")).unwrap().unwrap();
    let of = |r: &Value| {
        [&r["loss"], &r["loss_terms"]["all"], &r["loss_terms"]["rare"]].map(Value::as_f64)
    };
    let updates = run.records("update", false).iter().map(of).collect();
    (newest.tensors("model").unwrap()[0].1.to_f64(), updates)
}

/// The largest relative difference of two runs.
fn difference(a: &Run, b: &Run) -> f64 {
    let numbers = |run| {
        let (parameters, updates) = end(run);
        let logged = updates.into_iter().flatten().map(|x| x.unwrap_or(-1.0));
        parameters.into_iter().chain(logged).collect::<Vec<_>>()
    };
    let (a, b) = (numbers(a), numbers(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

#[test]
fn each_part_is_divided_by_its_weight_in_the_whole_update() {
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    let run = |name: &str, keys| new(temporary.path(), name, seed, keys);
    let whole = run("whole", json!({}));
    assert_eq!(whole.start(), 0);
    let updates = end(&whole).1;
    for (update, [loss, all, rare]) in updates.iter().enumerate() {
        // A part without weight in an update is neither in the loss nor in the log.
        let expected = all.unwrap() + rare_factor(update as u64) * rare.unwrap_or(0.0);
        let off = (loss.unwrap() / expected - 1.0).abs();
        assert!(off < 1e-6, "update {update}: {loss:?} {expected}");
    }
    // A sample in five counts: about 17 of 20 updates have the part, and none with probability 10^-15.
    assert!(updates.iter().any(|[_, _, rare]| rare.is_some()), "seed {seed}");
    // f32 sums in another order: about 2^-24 each, and AdamW's step follows the gradient.
    for (batch, accumulation) in [(4, 2), (2, 4)] {
        let keys = json!({"batch_size": batch, "accumulation": accumulation});
        let divided = run(&format!("in {accumulation}"), keys);
        assert_eq!(divided.start(), 0);
        let off = difference(&divided, &whole);
        assert!(off < 1e-5, "accumulation {accumulation}: {off:e}");
    }
    if !can_start() {
        return;
    }
    for accumulation in [1, 2] {
        let keys = json!({"batch_size": 8 / accumulation, "accumulation": accumulation});
        let two = run(&format!("two, {accumulation}"), keys);
        assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
        let off = difference(&two, &whole);
        assert!(off < 1e-5, "two ranks, accumulation {accumulation}: {off:e}");
    }
    let keys = json!({"deterministic": true, "batch_size": 4, "accumulation": 2});
    let [alone, two] = ["alone", "two of it"].map(|name| run(name, keys.clone()));
    assert_eq!(alone.start(), 0);
    assert_eq!(start(&two, "RANK=second"), both(Exit::Done));
    assert!(two.outcome() == alone.outcome(), "seed {seed}");
}

/// A captured graph is replayed with the factors and denominators of each update.
#[test]
#[cfg(feature = "emu")]
fn captured_graphs_use_the_scales_of_each_update() {
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    let [captured, plain] = [true, false].map(|compile| {
        let keys = json!({"batch_size": 4, "accumulation": 2, "compile": compile});
        let run = new(temporary.path(), &compile.to_string(), seed, keys);
        assert_eq!(run.start_in(tensor::Device::Emu, &Solo), 0);
        run
    });
    assert!(captured.outcome() == plain.outcome(), "seed {seed}");
    let whole = new(temporary.path(), "whole", seed, json!({}));
    assert_eq!(whole.start(), 0);
    // The CPU and the emulator add in different orders.
    let off = difference(&captured, &whole);
    assert!(off < 1e-4, "{off:e}");
}
