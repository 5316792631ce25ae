//! Losses that branch: CUDA graphs and terms of the loss by variant.
#![cfg(feature = "emu")]

use super::ranks::{both, can_start, start_on};
use super::*;
use unix::Exit;

const UPDATES: u64 = 12;

fn new(folder: &Path, name: &str, seed: u64, training: Value) -> Run {
    let keys = json!({"updates": UPDATES, "batch_size": 4});
    Run::new(folder, name, seed, json!({"uneven": true, "variants": true}), with(keys, training))
}

#[test]
fn each_variant_has_a_graph_and_terms_of_its_own() {
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    for accumulation in [1, 2, 3] {
        let [captured, plain] = [true, false].map(|compile| {
            let keys = json!({"accumulation": accumulation, "compile": compile});
            let run = new(temporary.path(), &format!("{compile} {accumulation}"), seed, keys);
            let text = run.start_child("none:0", "emu");
            let number =
                |words: &str| text.lines().find_map(|l| l.split_once(words)?.1.parse().ok());
            assert_eq!(number("ended with "), Some(0), "{text}");
            // The first pass of a variant is not captured, the second is. The first update moves the parameters, which
            // share memory with their average, so it is not captured for the others.
            let expected = if compile { accumulation + 2 * 2 } else { UPDATES * accumulation };
            assert_eq!(number("computed "), Some(expected), "{text}");
            run
        });
        assert!(captured.outcome() == plain.outcome(), "accumulation {accumulation}, seed {seed}");
        for (update, record) in captured.records("update", false).iter().enumerate() {
            let terms = record["loss_terms"].as_object().unwrap();
            let names: Vec<&str> = terms.keys().map(String::as_str).collect();
            let expected: &[&str] = match (accumulation, update % 2) {
                (1, 0) => &["both", "even"],
                (1, _) => &["both", "odd"],
                _ => &["both", "even", "odd"],
            };
            assert_eq!(names, expected, "update {update}");
            let (loss, both) = (record["loss"].as_f64().unwrap(), terms["both"].as_f64().unwrap());
            assert!((loss / both - 1.0).abs() < 1e-6, "update {update}: {loss} {both}");
        }
    }
}

/// The variants of the ranks differ in every pass.
#[test]
fn ranks_with_different_variants_give_the_same_bits_with_and_without_graphs() {
    if !can_start() {
        return;
    }
    let (temporary, seed) = (tempfile::tempdir().unwrap(), seed());
    let [captured, plain] = [true, false].map(|compile| {
        let keys = json!({"accumulation": 3, "compile": compile});
        let run = new(temporary.path(), &compile.to_string(), seed, keys);
        assert_eq!(start_on(&run, "RANK=second", "emu"), both(Exit::Done));
        run
    });
    assert!(captured.outcome() == plain.outcome(), "seed {seed}");
    let updates = captured.records("update", false);
    assert!(updates.iter().all(|update| update["loss_terms"].as_object().unwrap().len() == 3));
}
