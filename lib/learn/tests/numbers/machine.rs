use super::*;

fn run(folder: &Path, name: &str, seed: u64, flip: Option<(u64, u32)>, training: Value) -> Run {
    let mut keys = json!({"accumulation": 1, "verify_every": 10, "hash_every": 10});
    keys.as_object_mut().unwrap().extend(training.as_object().unwrap().clone());
    Run::new(folder, name, seed, json!({"flip": flip}), keys)
}

/// The outcome without the fault, as on another machine: with the same configuration, which a resumed run requires, but
/// so few remaining updates that the faulty computation is not reached.
fn outcome_of(run: &Run) -> Outcome {
    assert_eq!(run.start(), 0);
    run.outcome()
}

#[test]
fn a_flipped_bit_in_a_gradient_is_a_hardware_error() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    // Updates 10, 20, ... compute twice more, before the computation that counts: for update 20 these are computations
    // 22 and 23, for update 60 they are 70 and 71.
    for (flip, verdict) in [(22, "the first was wrong"), (23, "the second was wrong")] {
        let run = run(temporary.path(), verdict, seed, Some((flip, 0)), json!({}));
        assert_eq!(run.start(), 75);
        let status = run.status();
        assert_eq!((status.state, status.update), (State::Stopped, 19));
        let (reason, host) = (status.reason.unwrap(), unix::host::name());
        for word in ["machine, not data", "update 20", host.as_str(), "(cpu)", verdict] {
            assert!(reason.contains(word), "no {word} in {reason}");
        }
        let found = run.records("machine", false);
        assert_eq!(
            (found.len(), &found[0]["update"], &found[0]["of"]),
            (1, &json!(20), &json!("mean"))
        );
        assert_eq!((&found[0]["host"], &found[0]["device"]), (&json!(host), &json!("cpu")));
        assert!(run.checkpoints().iter().all(|step| *step <= 15), "saved: {:?}", run.checkpoints());
    }
}

#[test]
fn the_run_continues_elsewhere_with_the_correct_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let healthy = run(temporary.path(), "healthy", seed, Some((1000, 0)), json!({}));
    let expected = outcome_of(&healthy);
    let unverified =
        run(temporary.path(), "unverified", seed, Some((1000, 0)), json!({"verify_every": 0}));
    assert_eq!(outcome_of(&unverified), expected, "computing twice changes nothing");
    // The second attempt resumes at update 55 or later, with too few computations to reach the flip at 70.
    let run = run(temporary.path(), "flipped", seed, Some((70, 0)), json!({}));
    assert_eq!(run.start(), 75);
    assert_eq!(outcome_of(&run), expected);
}

#[test]
fn without_a_checkpoint_it_is_a_failure() {
    let temporary = tempfile::tempdir().unwrap();
    let mut run =
        run(temporary.path(), "run", seed(), Some((11, 0)), json!({"validate_every": 50}));
    run.config["checkpoint"]["every"] = json!(50);
    assert_eq!(run.start(), 1);
    assert_eq!(run.status().state, State::Failed);
    assert!(run.checkpoints().is_empty());
}

#[test]
fn the_parameter_hash_detects_flips_that_are_not_recomputed() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let hashes = |name: &str, flip| {
        let run = run(temporary.path(), name, seed, flip, json!({"verify_every": 0}));
        assert_eq!(run.start(), 0);
        let hashes = run.records("hash", false).into_iter();
        let hashes: Vec<(u64, String)> = hashes
            .map(|r| (r["update"].as_u64().unwrap(), r["parameters"].as_str().unwrap().into()))
            .collect();
        assert_eq!(hashes.len(), 6);
        assert!(hashes.iter().all(|(_, hash)| hash.len() == 16));
        hashes
    };
    let healthy = hashes("healthy", None);
    assert_eq!(hashes("again", None), healthy);
    let flipped = hashes("flipped", Some((25, 20)));
    assert_eq!(flipped[..2], healthy[..2]);
    assert_ne!(flipped[2], healthy[2], "seen at the next hash, update 30");
}
