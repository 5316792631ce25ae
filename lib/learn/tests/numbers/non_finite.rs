use super::*;

#[test]
fn a_sample_that_is_not_a_number_costs_one_update() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let faults = json!({"nan_sample": sample_of(seed, 20)});
    let new = |name: &str| Run::new(temporary.path(), name, seed, faults.clone(), json!({}));
    let whole = new("whole");
    assert_eq!(whole.start(), 0);
    let updates = whole.records("update", false);
    let skipped = |update: usize| updates[update - 1]["skipped"].as_u64().unwrap();
    assert_eq!((updates.len(), skipped(19), skipped(20), skipped(60)), (60, 0, 1, 1));
    assert_eq!(updates[19]["loss"], Value::Null, "it was not finite");
    assert!(updates[20..].iter().all(|record| record["loss"].is_number()));
    let outcome = whole.outcome();
    assert_eq!((&outcome.progress["steps"], &outcome.progress["skipped"]), (&json!(59), &json!(1)));
    for at in [38, 41, 44] {
        // Two computations per update: before the bad one, right after it, and behind it.
        let run = new(&format!("killed-{at}"));
        assert_eq!(run.start_and_die(&format!("kill:{at}")), None);
        assert_eq!(run.start(), 0);
        assert!(run.outcome() == outcome, "seed {seed}, killed at {at}: ended differently");
    }
}

#[test]
fn numbers_that_are_never_finite_end_the_run() {
    let temporary = tempfile::tempdir().unwrap();
    let run = Run::new(temporary.path(), "all", seed(), json!({"nan_from": 2 * 19}), json!({}));
    assert_eq!(run.start(), 1);
    let status = run.status();
    assert_eq!((status.state, status.update), (State::Failed, 26));
    let reason = status.reason.unwrap();
    assert!(reason.contains("diverged") && reason.contains("8 updates in a row"), "{reason}");
    let stop = run.records("stop", false).pop().unwrap();
    assert_eq!((&stop["state"], &stop["reason"]), (&json!("failed"), &json!(reason)));
    // Nothing was saved after the end, and the newest checkpoint is from before it.
    let newest = checkpoint::load_newest(&run.folder.join("ckpt")).unwrap().unwrap();
    assert_eq!((newest.manifest.update, &newest.manifest.progress["steps"]), (21, &json!(18)));
    // Another attempt would end in the same way, and does nothing.
    assert_eq!(run.start(), 1);
    assert_eq!(run.status().update, 26);
}

#[test]
fn one_update_in_a_hundred_is_too_many() {
    let temporary = tempfile::tempdir().unwrap();
    let (seed, keys) = (seed(), json!({"updates": 1100, "validate_every": 1000, "log_every": 100}));
    let new = |name, every| {
        let mut run =
            Run::new(temporary.path(), name, seed, json!({"nan_every": 2 * every}), keys.clone());
        run.config["checkpoint"]["every"] = json!(400);
        run
    };
    let whole = new("whole", 95);
    assert_eq!(whole.start(), 1);
    let status = whole.status();
    assert_eq!(status.update, 1000, "ten by update 950, and counted when there are a thousand");
    let reason = status.reason.clone().unwrap();
    assert!(reason.contains("10 of 1000 updates up to update 1000"), "{reason}");
    let run = new("killed", 95);
    assert_eq!(run.start_and_die("kill:1900"), None);
    assert_eq!(run.start(), 1);
    assert_eq!((run.status().update, run.status().reason), (1000, status.reason));

    let run = new("few", 112);
    assert_eq!(run.start(), 0, "never more than nine of a thousand: {:?}", run.status());
}
